"""Children that end in another order in each run: a replay finds them in the recorded one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.run.test_orders import bare_runs_differ, recorded_and_replayed
from tests.support import Reprokit, rest_slow

TRAINING = str(Path(__file__).parent.parent / "trainings" / "ordered_children.py")
KINDS = ["waited", "polled", "in_threads", "programs", "processes"]


@pytest.mark.parametrize("kind", rest_slow(KINDS))
def test_which_child_ends_first(reprokit: Reprokit, kind: str) -> None:
    command = [sys.executable, TRAINING, kind]
    assert bare_runs_differ(command)
    recorded_and_replayed(reprokit, *command)
    assert reprokit.run("verify", "recorded", "replayed1").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", pytest.param("3.10", marks=pytest.mark.extended), "3.13"])
@pytest.mark.parametrize("kind", ["waited", *(pytest.param(kind, marks=pytest.mark.extended) for kind in KINDS[1:])])
def test_children_in_other_pythons(reprokit: Reprokit, version: str, kind: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    recorded_and_replayed(reprokit, path, TRAINING, kind)


def test_waits_in_a_handler_are_named(reprokit: Reprokit) -> None:
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, TRAINING, "signaled")
    assert recorded.returncode == 0
    assert "handler of SIGCHLD finds children is not kept (ordered_children.py:" in recorded.stderr
    assert reprokit.run("replay", "recorded").returncode == 0


@pytest.mark.slow
def test_a_child_that_does_not_end_is_not_waited_for_without_end(
    reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ended first in the recording ends only once another one was found."""
    monkeypatch.chdir(reprokit.directory)
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, TRAINING, "waited")
    reprokit.script("hangs", str(json.loads(recorded.stdout)[0][0]))
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert [len(numbers) for numbers in json.loads(replayed.stdout)] == [6] * 5
    assert " moved" in replayed.stderr.partition("reprokit: orders: ")[2]


LAST = """
import os
pipes = [os.pipe() for _ in range(3)]
for number, (reader, _) in enumerate(pipes):
    if not os.fork():
        os.read(reader, 1)
        os._exit(number)
ended = []
for number in (0, 2 if os.path.exists("hangs") else 1):
    os.write(pipes[number][1], b"1")
    ended.append(os.wait()[1] >> 8)
print(ended)
for _, writer in pipes:
    os.write(writer, b"1")
"""


@pytest.mark.slow
def test_the_last_outcome_is_not_counted_as_exact_if_it_does_not_occur(reprokit: Reprokit) -> None:
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, str(reprokit.script("train.py", LAST)))
    reprokit.script("hangs", "")
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert (recorded.stdout, replayed.stdout) == ("[0, 1]\n", "[0, 2]\n")
    assert "orders: 1 exact, 1 moved" in replayed.stderr
