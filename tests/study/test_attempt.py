"""A pair made as a task from the study's directory alone, as on another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from reprokit.study import store, tasks
from reprokit.study.attempt import PairReport, read_report
from reprokit.study.description import Setup, Study
from reprokit.study.results import PairPlace
from tests.support import LIMIT

SCRIPT = """
import random, reprokit
reprokit.log(step=0, value=random.random())
"""
PLACE = PairPlace(3, "a")
RECORDED = Setup(name="a", entropy="replayed")


def planned(directory: Path, script: str = SCRIPT, setup: Setup = RECORDED, **values: object) -> Path:
    """The directory of a study that has this one pair to be made, below the one in which its command runs."""
    study = Study(name="tiny", command=(sys.executable, "-c", script), setup=(setup,), runs=6)
    study = msgspec.structs.replace(study, **values)
    out = directory / "out"
    out.mkdir()
    store.write_study(out, store.StudyFile(reprokit="1", study=study, base=str(directory), order=[PLACE]))
    return out


def start(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(tasks.command_of(out, PLACE.name), env={**os.environ, "SLURM_JOB_ID": "5"})


def report_of(out: Path) -> PairReport:
    report = tasks.read_report(store.read_study(out), out, PLACE)
    assert report is not None
    return report


def test_a_pair_is_made_and_compared_where_its_process_is(tmp_path: Path) -> None:
    out = planned(tmp_path)
    assert start(out).wait() == 0
    report = report_of(out)
    assert [(run.pair, run.mode, run.outcome, run.worker) for run in report.runs] == [
        (3, "recorded", "finished", "job 5"),
        (3, "replayed", "finished", "job 5"),
    ]
    assert report.pair is not None
    assert report.pair.identical is True
    assert not list((out / store.RUNS).iterdir())


@pytest.mark.slow
def test_what_may_differ_goes_with_the_pair(tmp_path: Path) -> None:
    script = SCRIPT + "import time; open('log.txt', 'w').write(str(time.monotonic_ns()))\n"
    out = planned(tmp_path, script, ignore=("log.txt", "stale.txt"))
    assert start(out).wait() == 0
    report = report_of(out)
    assert report.pair is not None
    assert (report.pair.identical, report.pair.categories) == (True, [])
    assert report.pair.ignored == {"--ignore log.txt of the study": 1, "--ignore stale.txt of the study": 0}
    assert report.pair.words.endswith("; 1 file was ignored as declared")


SECOND_WAITS = """
import os, pathlib, time
here = pathlib.Path(".cache")  # in which nothing is a result
here.mkdir(exist_ok=True)
with open(here / "began", "a") as file:
    file.write("x")
while len((here / "began").read_text()) == 2 and not (here / "go").exists():
    time.sleep(0.02)
"""


def at_the_second_run(directory: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """A study, and the task of its pair, whose second run has begun and goes on for long."""
    out = planned(directory, SECOND_WAITS, Setup(name="a"))
    process, began = start(out), directory / ".cache" / "began"
    while not (began.exists() and len(began.read_text()) == 2):
        assert process.poll() is None
        time.sleep(0.02)
    return out, process


@pytest.mark.slow
def test_a_task_that_is_ended_leaves_the_run_that_has_ended_and_goes_on_from_there(tmp_path: Path) -> None:
    out, process = at_the_second_run(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    (first,) = report_of(out).runs
    assert first.part == "first"
    assert not (out / "a-03-second.task.json").exists()
    assert start(out).wait() == 0
    assert (tmp_path / ".cache" / "began").read_text() == "xxx"
    report = report_of(out)
    assert report.runs[0] == first
    assert report.runs[1].notes == ["an earlier attempt at this run was interrupted; nothing of it was used"]
    assert report.pair is not None


@pytest.mark.slow
def test_tasks_of_one_pair_at_the_same_time_make_it_once(tmp_path: Path) -> None:
    out, process = at_the_second_run(tmp_path)
    again = start(out)
    time.sleep(1.0)
    assert again.poll() is None  # it waits for the other one
    (tmp_path / ".cache" / "go").touch()
    assert (process.wait(timeout=LIMIT), again.wait(timeout=LIMIT)) == (0, 0)
    assert (tmp_path / ".cache" / "began").read_text() == "xx"
    assert not list((out / store.RUNS).iterdir())


@pytest.mark.slow
def test_a_task_that_is_killed_loses_only_the_run_that_was_under_way(tmp_path: Path) -> None:
    out, process = at_the_second_run(tmp_path)
    process.kill()
    process.wait()
    assert start(out).wait() == 0  # which waits for the end of the run that the kernel ends
    assert (tmp_path / ".cache" / "began").read_text() == "xxx"
    assert [run.outcome for run in report_of(out).runs] == ["finished", "finished"]


def test_what_a_task_cannot_do_is_one_line_and_stays_in_its_report(tmp_path: Path) -> None:
    out = planned(tmp_path)
    (out / store.RESULTS).write_bytes(b"{}\n")
    done = subprocess.run(tasks.command_of(out, PLACE.name), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("reprokit: study-damaged: ")
    assert done.stderr.count("\n") == 1
    assert done.stderr.strip().removeprefix("reprokit: ") == report_of(out).refused
    done = subprocess.run(tasks.command_of(out, "b-01"), stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, f"reprokit: cannot-begin: the study in {out} has no task b-01\n")


def test_what_is_no_report_says_nothing(tmp_path: Path) -> None:
    assert read_report(tmp_path / "absent").runs == []
    (tmp_path / "result.json").write_text('{"runs":[{}]}')
    assert read_report(tmp_path / "result.json").runs == []
