"""What the whole of `reprokit resume` takes beside one training of that length: processor time. Target: 3.3 x.

Trainings of 10, 30 and 90 s are interrupted at the default step, once with a checkpoint that lacks a part, which is put
in and proved, and once with an exact one. Starting each run (importing PyTorch) is fixed, the rest grows with length.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.measure import in_turn, scratch

TRAINING = Path(__file__).with_name("resume_training.py")
LENGTHS = {"mlp": (1200, 3600, 10800), "cnn": (240, 720, 2160)}  # epochs of eight steps of 1 and 5 ms

Times = dict[str, float]  # processor seconds by run


def main(runs: int) -> None:
    for kind, lengths in LENGTHS.items():
        for epochs in lengths:
            measure(kind, epochs, max(1, runs // 8))


def measure(kind: str, epochs: int, rounds: int) -> None:
    """Print what the command takes for one training: all of it, and run by run."""
    command = [sys.executable, "train.py", kind, str(epochs)]
    study = [sys.executable, "-m", "benchmarks.resume"]
    sides: dict[str, Callable[[], Times]] = {
        "start": lambda: _times([*command[:3], "1"], 0),
        "bare": lambda: _times(command, 0),
        "one part missing": lambda: _times([*study, *command], 1),
        "exact": lambda: _times([*study, *command, "exact"], 0),
    }
    results = in_turn(sides, rounds, warm_up=0)
    start, bare = (statistics.median(times["all"] for times in results[side]) for side in ("start", "bare"))
    print(f"  {kind}, {8 * epochs:,} steps: {bare:.1f} s bare, {start:.1f} s of it to start (not growing)")
    for side in list(sides)[2:]:
        ratios = [{run: time / bare for run, time in times.items()} for times in results[side]]
        median = {run: statistics.median(ratio[run] for ratio in ratios) for run in ratios[0]}
        total = sorted(ratio["all"] for ratio in ratios)
        split = ", ".join(f"{run} {ratio:.2f}" for run, ratio in median.items() if run != "all")
        starts = (len(median) - 1) * start / bare
        print(
            f"    {side:<17} {median['all']:.2f} x ({total[0]:.2f} to {total[-1]:.2f}): {split}; starts: {starts:.2f}"
        )


def _times(command: Sequence[str], status: int) -> Times:
    with scratch() as directory:
        shutil.copy(TRAINING, Path(directory, "train.py"))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINING.parents[1])}
        before = _processor_time()
        done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert done.stdout or "-m" not in command, done.stderr
        return {"all": _processor_time() - before, **json.loads(done.stdout or "{}")}


def _processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def study(command: Sequence[str]) -> int:
    """Do what `reprokit resume` does, and print the processor time of each run."""
    from reprokit.questions import resume
    from reprokit.run.interruption import Interruption
    from reprokit.run.launcher_process import execute

    times: Times = {}

    def measured(plan: Any, *arguments: Any) -> Any:
        result = execute(plan, *arguments)
        times[plan.output.name] = result.processor
        return result

    work = resume.ResumeWork(
        command=tuple(command), resume_command=tuple(command), directory=Path.cwd(), place=Path.cwd() / "runs"
    )
    with Interruption() as interruption, mock.patch.object(resume, "execute", measured):
        finding = resume.ResumeStudy(work, interruption).find()
    assert finding.is_exact or finding.proved
    print(json.dumps(times))
    return int(not finding.is_exact)


if __name__ == "__main__":
    sys.exit(study(sys.argv[1:]))
