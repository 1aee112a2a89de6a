"""How runs, ranks and helpers ended: said by everything that shows it, and before what only follows from it."""

from __future__ import annotations

import json
import signal
import sys

import pytest

from tests.support import Reprokit, python, training_text

ENDS = training_text("ends.py")
CHILDREN = """
import os, signal, subprocess, sys, time
def child(end):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), end) if end else os._exit(3)
        time.sleep(60)
    return pid
waits = [
    lambda pid: os.waitpid(pid, 0), lambda pid: os.wait(), lambda pid: os.wait3(0), lambda pid: os.wait4(pid, 0),
    lambda pid: os.waitid(os.P_PID, pid, os.WEXITED), lambda pid: os.waitid(os.P_PIDFD, os.pidfd_open(pid), os.WEXITED),
]
for number, wait in zip((1, 4, 6, 8, 9, 15), waits):
    wait(child(number))
    assert "Errno" not in repr(wait(child(0)))
os.waitid(os.P_PID, child(5), os.WEXITED | os.WNOWAIT)
os.wait()
os.system("kill -12 $$")
open("result", "w").write("done")
"""


def test_whatever_waits_for_a_child_notes_the_signal_that_ended_it(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "-o", "run", "--", *python(CHILDREN))
    assert done.returncode == 0, done.stderr
    assert sorted(killed["number"] for killed in reprokit.facts("run")["killed"]) == [1, 4, 5, 6, 8, 9, 12, 15]


@pytest.fixture
def whole(reprokit: Reprokit) -> Reprokit:
    """The recording of a training that came to its end."""
    assert reprokit.run("record", "-o", "whole", "--", *python(ENDS)).returncode == 0
    return reprokit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("SIGINT", "; the right run was killed by SIGINT"),
        ("fail", "; the right run failed with exit code 1"),
        ("exit", ""),
    ],
)
def test_the_verdict_names_the_end_and_not_what_follows_from_it(whole: Reprokit, end: str, reason: str) -> None:
    whole.run("replay", "whole", "-o", "cut", environment={"END": end})
    done = whole.run("verify", "whole", "cut")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == (
        "different: steps of optimizer#0 of process 0: identical for 6 steps, then the right run ends; the other has 12"
        f" steps{reason}; what else differs may follow from it"
    )
    assert "reprokit show cut" in done.stderr
    assert "ended normally" not in done.stdout


@pytest.mark.slow
def test_two_runs_that_were_interrupted_are_the_same_and_failed(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "one", "--", *python(ENDS), environment={"END": "SIGINT"})
    reprokit.run("replay", "one", "-o", "two", environment={"END": "SIGINT"})
    done = reprokit.run("verify", "one", "two")
    assert done.stdout.startswith("identical, and both failed (killed by SIGINT): ")
    assert done.returncode == 0
    assert "processes           identical     process 0: was killed by SIGINT" in done.stdout


@pytest.mark.slow
def test_a_rank_that_a_signal_ended_is_seen_although_the_run_succeeds(reprokit: Reprokit) -> None:
    (reprokit.directory / "ranks.py").write_text(training_text("dead_rank.py"))
    done = reprokit.run("record", "-o", "run", "--", sys.executable, "ranks.py")
    assert done.returncode == 0, done.stderr
    dead = "rank 1 was killed by SIGKILL, after step 3 of optimizer#0"
    done = reprokit.run("verify", "run")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"dead: {dead}")
    document = json.loads(reprokit.run("verify", "run", "--ranks", "--json").stdout)
    assert [(rank["rank"], rank["signal"]) for rank in document["dead"]] == [("rank1", signal.Signals.SIGKILL.name)]
    assert f"ended        {dead}" in reprokit.run("show", "run").stdout
