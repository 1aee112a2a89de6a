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
    return Task(
        setup="a",
        pair=3,
        part=part,
        mode=mode,
        command=(sys.executable, "-c", script),
        working_directory=str(directory),
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


def test_a_pair_that_is_interrupted_leaves_the_run_that_has_ended(tmp_path: Path) -> None:
    mark = tmp_path / "second-began"
    script = f"import pathlib, time; pathlib.Path({str(mark)!r}).touch(); time.sleep(100)"
    second = task(tmp_path, "second", "observed", script)
    process = start(tmp_path, PairTask(first=task(tmp_path, "first", "observed"), second=second))
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    report = read_report(tmp_path / "job.report.json")
    assert [run.part for run in report.runs] == ["first"]
    assert report.pair is None
    ended = msgspec.json.decode((tmp_path / "job.ended.json").read_bytes(), type=JobEnd)
    assert ended.words == f"its worker was ended (SystemExit: {128 + signal.SIGTERM})"


def test_what_is_no_report_says_nothing(tmp_path: Path) -> None:
    assert read_report(tmp_path / "absent").runs == []
    (tmp_path / "result.json").write_text('{"runs":[{}]}')
    assert read_report(tmp_path / "result.json").runs == []
