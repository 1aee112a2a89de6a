"""Lines that wait for each other in a mapped file: none is lost or doubled, whatever ends the process.

Numbers do not wait (test_number_records.py); a text does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.run_files import unflushed as pending_lines
from reprokit.run_files.rundir import RunDirectory
from tests.agent.training import Training
from tests.support import wait_until

LOG = """
import ctypes, os, signal, sys
import reprokit
def log(first, last):
    for step in range(first, last):
        reprokit.log(step=step, loss=str(step / 8))
"""


def waiting(training: Training) -> list[int]:
    """The steps of the lines that wait."""
    return [json.loads(line)["step"] for line in pending_lines.read(training.run_directory)]


def steps(training: Training) -> list[int]:
    """The steps of the lines of metrics.jsonl."""
    return [line["step"] for line in training.lines() if line["k"] == "log"]


def test_a_line_of_a_step_waits_and_is_written_before_another_kind(any_training: Training) -> None:
    look = "print(len(open('run/metrics.jsonl').readlines()), os.path.exists(f'run/pending/{os.getpid()}-0'))\n"
    outcome = any_training.run(LOG + "log(0, 3)\n" + look + "import random; random.seed(1)\nlog(3, 5)")
    assert (outcome.output, outcome.errors) == ("1 True\n", "")
    assert [line["k"] for line in outcome.lines[:7]] == ["agent", "log", "log", "log", "seed", "log", "log"]
    assert [line["n"] for line in outcome.lines] == list(range(len(outcome.lines)))
    assert os.listdir(any_training.run_directory / "pending") == []


def test_more_than_there_is_room_for_is_written_meanwhile(any_training: Training) -> None:
    outcome = any_training.run(LOG + "log(0, 500)\nreprokit.log(step=500, note='x' * 20_000)\nlog(501, 510)")
    assert steps(any_training) == list(range(510))
    assert [line["n"] for line in outcome.lines] == list(range(len(outcome.lines)))


def test_no_descriptor_stays_open(training: Training) -> None:
    script = "before = os.listdir('/proc/self/fd')\nlog(0, 9)\nprint(os.listdir('/proc/self/fd') == before)"
    assert training.run(LOG + script).output == "True\n"


def test_descriptors_that_are_closed_take_nothing_away(training: Training) -> None:
    training.run(LOG + "log(0, 5)\nos.closerange(3, 1000)\nlog(5, 300)")
    assert steps(training) == list(range(300))


@pytest.mark.parametrize("count", [5, 300])
def test_a_kill_loses_nothing(training: Training, count: int) -> None:
    outcome = training.run(LOG + f"log(0, {count})\nos.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.status == -signal.SIGKILL
    assert steps(training) + waiting(training) == list(range(count))
    pending_lines.gather(training.run_directory, training.run_directory / "metrics.jsonl")
    assert steps(training) == list(range(count))
    assert not (training.run_directory / "pending").exists()


def test_a_forked_child_leaves_its_parents_lines_alone(any_training: Training) -> None:
    script = "log(0, 2)\nif os.fork() == 0:\n    log(10, 13)\n    os._exit(0)\nos.wait()\nlog(2, 4)\n"
    any_training.run(LOG + script)
    assert steps(any_training) == [0, 1, 2, 3]
    assert waiting(any_training) == [10, 11, 12]


def test_lines_that_were_written_meanwhile_are_not_taken_again(training: Training) -> None:
    training.run(LOG + "log(0, 9)\nos._exit(0)")
    lines = list(pending_lines.read(training.run_directory))
    with open(training.run_directory / "metrics.jsonl", "ab") as file:
        file.writelines(lines[:4])
    pending_lines.gather(training.run_directory, training.run_directory / "metrics.jsonl")
    assert steps(training) == list(range(9))


def test_where_no_file_can_be_made_nothing_waits(training: Training) -> None:
    training.environment()
    training.run_directory.joinpath("pending").write_text("in the way")
    training.run(LOG + "log(0, 9)\nprint(len(open('run/metrics.jsonl').readlines()))")
    assert steps(training) == list(range(9))


def test_a_finalizer_may_write_at_any_moment(training: Training) -> None:
    script = """
import gc
class Ends:
    def __del__(self):
        reprokit.log(step=-1, ended='1')
gc.set_threshold(1, 1, 1)
for step in range(300):
    cycle = Ends()
    cycle.itself = cycle
    log(step, step + 1)
"""
    outcome = training.run(LOG + script)
    assert sorted(line["n"] for line in outcome.lines) == list(range(len(outcome.lines)))
    assert [line["step"] for line in outcome.of("log", name="loss")] == list(range(300))


def test_hostile_files_are_passed_over(tmp_path: Path) -> None:
    directory = tmp_path / "pending"
    directory.mkdir()
    (directory / "1-0").symlink_to("/etc/passwd")
    os.mkfifo(directory / "2-0")
    (directory / "3-0").mkdir()
    (directory / "4-0").write_bytes(b"whole\nhalf\0rest\n")
    (directory / "5-0").write_bytes(b"x" * (1 << 20))
    assert list(pending_lines.read(tmp_path)) == [b"whole\n"]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pending").symlink_to(directory)
    assert list(pending_lines.read(tmp_path / "elsewhere")) == []


ENDLESS = LOG + "log(0, 7)\nopen('ready', 'w').close()\nsignal.pause()"


def test_a_run_in_progress_and_a_killed_one_are_read_with_all_their_lines(training: Training) -> None:
    training.write("train.py", ENDLESS)
    reprokit = [str(Path(sys.executable).with_name("reprokit")), "record", "-o", "run", "--", sys.executable]
    launcher = subprocess.Popen([*reprokit, "train.py"], cwd=training.directory, stderr=subprocess.DEVNULL)
    wait_until((training.directory / "ready").exists, "the training")

    def logged() -> list[int]:
        return [line["step"] for line in RunDirectory(training.run_directory).metrics() if line["k"] == "log"]

    assert logged() == list(range(7))
    assert steps(training) == []
    os.kill(training.lines()[0]["pid"], signal.SIGKILL)
    assert launcher.wait() == -signal.SIGKILL
    assert logged() == steps(training) == list(range(7))
    assert not (training.run_directory / "pending").exists()
