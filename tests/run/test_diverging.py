"""Replays of programs that do something else than in the recording: none waits for what cannot come true."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.support import Done, Reprokit, rest_slow

TRAINING = str(Path(__file__).parent.parent / "trainings" / "ordered_diverging.py")
AT_ONCE = ["absent", "blocked", "circular", "queues", "polls", "sockets", "processes", "killed"]


def diverged(reprokit: Reprokit, *kind: str) -> tuple[Done, float]:
    """Record, then replay where the script does something else; return that and how much longer it took."""
    command = [sys.executable, TRAINING, *kind]
    times = [time.monotonic()]
    for arguments in (("record", "-o", "recorded", "--", *command), ("replay", "recorded", "-o", "replayed")):
        done = reprokit.run(*arguments)
        assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
        reprokit.script("other", "")
        times.append(time.monotonic())
    began, recorded, replayed = times
    assert " moved" in done.stderr.partition("reprokit: orders: ")[2].partition("\n")[0]
    return done, (replayed - recorded) - (recorded - began)


@pytest.mark.parametrize("kind", rest_slow(AT_ONCE))
def test_what_cannot_come_is_not_waited_for(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """No time ends a wait in this replay: it would not end before the command is killed."""
    monkeypatch.chdir(reprokit.directory)
    done, _ = diverged(reprokit, kind, "at-once")
    assert "has waited" not in done.stderr


@pytest.mark.slow
def test_who_waits_long_says_for_whom_and_gives_up_once(reprokit: Reprokit) -> None:
    done, _ = diverged(reprokit, "sleeping")
    said = "the agent: thread m.2 of process 0 has waited 10 s at ordered_diverging.py:"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(f"reprokit: warning: {said}")]
    assert " for m.1, as recorded (order threading ordered_diverging.py:" in line
    assert said in reprokit.run("show", "replayed").stdout
    assert reprokit.run("check", "replayed").returncode == 0


@pytest.mark.slow
def test_waits_by_time_do_not_add_up(reprokit: Reprokit) -> None:
    """Each of 40 could take 10 seconds."""
    done, longer = diverged(reprokit, "timed")
    assert done.stderr.count("has waited") < 4
    assert longer < 40
