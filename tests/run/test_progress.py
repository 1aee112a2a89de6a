"""How far a replay is, on a terminal alone; and which of several trainings begins."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from reprokit.core import messages
from reprokit.core.messages import TrainingCount, time_left
from tests.support import COMMAND, Reprokit, python

PACED = Path(__file__).parents[1] / "trainings" / "pytorch_paced.py"


def test_times_that_are_left() -> None:
    words = [time_left(seconds) for seconds in (0.2, 42.4, 240, 5000, 7200)]
    assert words == ["about 1 s left", "about 42 s left", "about 4 min left", "about 83 min left", "about 2.0 h left"]


@pytest.mark.parametrize("is_watched", [True, False])
def test_trainings_are_counted(is_watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "is_watched", lambda: is_watched)
    times = iter([0.0, 60.0, 120.0, 180.0])
    count = TrainingCount(3, lambda: next(times))
    said = [count.begin() for _ in range(4)]
    left = [", about 2 min left", ", about 60 s left"] if is_watched else ["", ""]
    assert said == ["training 1 of 3", f"training 2 of 3{left[0]}", f"training 3 of 3{left[1]}", "training 4"]


def test_trainings_whose_number_may_be_smaller_are_told_to_who_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for is_watched in (True, False):
        monkeypatch.setattr(messages, "is_watched", partial(bool, is_watched))
        count = TrainingCount(10, iter([0.0, 60.0]).__next__, may_be_fewer=True)
        for _ in range(2):
            count.tell(said.append)
    assert said == ["training 1 of at most 10", "training 2 of at most 10, at most about 9 min left"]


def on_terminal(directory: Path, *arguments: str, **variables: str) -> str:
    """Return what a command prints to a terminal."""
    own, terminal = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | variables
    process = subprocess.Popen([COMMAND, *arguments], cwd=directory, env=environment, stdout=terminal, stderr=terminal)
    os.close(terminal)
    printed = b""
    try:
        while data := os.read(own, 65536):
            printed += data
    except OSError:  # the other end is closed
        pass
    os.close(own)
    assert process.wait() == 0
    return printed.decode()


@pytest.mark.slow
def test_reproduce_counts_its_replays_on_a_terminal(tmp_path: Path) -> None:
    command = ("reproduce", "-o", "journal", "--pairs", "2", "--", *python("import random; print(random.random())"))
    assert re.findall(r"training \d of at most \d", on_terminal(tmp_path, *command))


def test_a_gate_counts_its_trainings_on_a_terminal(tmp_path: Path) -> None:
    command = ("gate", "--", *python("print(1)"))
    printed = on_terminal(tmp_path, *command)
    assert re.findall(r"training \d of \d", printed) == ["training 1 of 2", "training 2 of 2"]
    assert re.search(r"gate: training: training 2 of 2, about \d+ s left", printed)
    assert "training 1 of 2" not in Reprokit(tmp_path).run(*command).stderr


@pytest.mark.slow
def test_a_replay_says_how_many_steps_it_has_made(tmp_path: Path) -> None:
    pause = tmp_path / "pause"
    pause.write_text("0.01")
    assert Reprokit(tmp_path).record(sys.executable, str(PACED)).returncode == 0
    pause.write_text("0.45")
    printed = on_terminal(tmp_path, "replay", "last")
    steps = [int(number) for number in re.findall(r"reprokit: step (\d+) of 40", printed)]
    assert len(steps) >= 2
    assert steps == sorted(steps)
    assert re.search(r"step \d+ of 40, about \d+ s left", printed)
    pause.write_text("0.2")
    with ThreadPoolExecutor() as beside:
        quiet = beside.submit(on_terminal, tmp_path, "replay", "-q", "last")
        plain = beside.submit(on_terminal, tmp_path, "replay", "last", NO_COLOR="1")
    assert not re.search(r"step \d+ of 40", quiet.result() + plain.result())
