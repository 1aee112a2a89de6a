"""A pair made by a worker from plain data, as on another machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from reprokit.study.attempt import PairTask, Task, read_report
from reprokit.study.engines import worker
from reprokit.study.engines.worker import JobEnd, Order
from reprokit.study.results import Mode, Part

SCRIPT = """
import random, reprokit
reprokit.log(step=0, value=random.random())
"""


def task(directory: Path, part: Part, mode: Mode, script: str = SCRIPT) -> Task:
    """A run whose outputs are apart from the job's files: its signs of life come with each second that a run takes."""
    working_directory = directory / "work"
    working_directory.mkdir(exist_ok=True)
    return Task(
        setup="a",
        pair=3,
        part=part,
        mode=mode,
        command=(sys.executable, "-c", script),
        working_directory=str(working_directory),
        place=str(directory),
        run=str(directory / f"run-{part}"),
        recording=str(directory / "run-first") if mode == "replayed" else "",
    )


def start(directory: Path, pair: PairTask) -> subprocess.Popen[bytes]:
    (directory / "job.order.json").write_bytes(worker.encoded(Order(pair=pair, apart=False)))
    command = [sys.executable, "-m", worker.__name__, str(directory), "job"]
    return subprocess.Popen(command, env={**os.environ, "SLURM_JOB_ID": "5"})


def test_a_pair_is_made_and_compared_where_its_process_is(tmp_path: Path) -> None:
    pair = PairTask(first=task(tmp_path, "first", "recorded"), second=task(tmp_path, "second", "replayed"))
    assert start(tmp_path, pair).wait() == 0
    report = read_report(tmp_path / "job.report.json")
    assert [(run.pair, run.mode, run.outcome, run.worker) for run in report.runs] == [
        (3, "recorded", "finished", "job 5"),
        (3, "replayed", "finished", "job 5"),
    ]
    assert report.pair is not None
    assert report.pair.identical is True
    assert not (tmp_path / "run-first").exists()


def test_what_may_differ_goes_with_the_pair(tmp_path: Path) -> None:
    script = SCRIPT + "import time; open('log.txt', 'w').write(str(time.monotonic_ns()))\n"
    pair = PairTask(
        first=task(tmp_path, "first", "recorded", script),
        second=task(tmp_path, "second", "replayed", script),
        ignore=("log.txt", "stale.txt"),
    )
    assert start(tmp_path, pair).wait() == 0
    report = read_report(tmp_path / "job.report.json")
    assert report.pair is not None
    assert (report.pair.identical, report.pair.categories) == (True, [])
    assert report.pair.ignored == {"--ignore log.txt of the study": 1, "--ignore stale.txt of the study": 0}
    assert report.pair.words.endswith("; 1 file was ignored as declared")


def at_the_second_run(directory: Path) -> subprocess.Popen[bytes]:
    """A worker whose pair's second run has begun and goes on for long."""
    mark = directory / "second-began"
    script = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(100)"
    second = task(directory, "second", "observed", script)
    process = start(directory, PairTask(first=task(directory, "first", "observed"), second=second))
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def left(directory: Path) -> tuple[list[str], str]:
    """The runs that a worker has told of, and how it ended; nothing of it goes on."""
    report = read_report(directory / "job.report.json")
    assert report.pair is None
    assert not (directory / "a-03-second.task.json").exists()
    ended = msgspec.json.decode((directory / "job.ended.json").read_bytes(), type=JobEnd)
    return [run.part for run in report.runs], ended.words


def test_a_worker_that_is_terminated_leaves_the_run_that_has_ended(tmp_path: Path) -> None:
    process = at_the_second_run(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert left(tmp_path) == (["first"], f"its worker was ended (SystemExit: {128 + signal.SIGTERM})")


def test_a_worker_ends_its_pair_when_it_is_asked_to_and_gives_signs_of_life_until_then(tmp_path: Path) -> None:
    process = at_the_second_run(tmp_path)
    while not (tmp_path / "job.beat").exists():
        time.sleep(0.02)
    (tmp_path / f"job.{worker.STOP}").write_bytes(worker.NOW)
    assert process.wait() == 0
    assert left(tmp_path) == (["first"], "it was interrupted")


def test_what_is_no_report_says_nothing(tmp_path: Path) -> None:
    assert read_report(tmp_path / "absent").runs == []
    (tmp_path / "result.json").write_text('{"runs":[{}]}')
    assert read_report(tmp_path / "result.json").runs == []
