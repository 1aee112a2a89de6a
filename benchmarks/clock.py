"""What one read of the time of day costs: bare, recorded, told again, and under the shim without a calendar."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import in_turn, scratch, show
from reprokit import entropy
from reprokit.core import native
from reprokit.model.plan import Plan

SOURCE = Path(__file__).with_suffix(".c")
PYTHON = """
import time

def least(read):
    best = 1e9
    for _ in range(20):
        start = time.perf_counter_ns()
        for _ in range(2000):
            read()
        best = min(best, (time.perf_counter_ns() - start) / 2000)
    return best

print(least(time.time))
"""
KINDS = ("clock_gettime", "gettimeofday", "time", "Python's time.time")


@dataclass(frozen=True)
class ClockReads:
    """One kind of read in a program of its own; a side is the least time a read of 20 rounds in one process."""

    program: Path
    directory: Path
    kind: str

    def _run(self, environment: dict[str, str]) -> float:
        command = [str(self.program), self.kind]
        if self.kind == KINDS[-1]:
            command = [sys.executable, "-S", "-c", PYTHON]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return float(done.stdout)

    def _environment(self, name: str, mode: str, *, calendar: bool = True) -> dict[str, str]:
        run = self.directory / name
        shutil.rmtree(run, ignore_errors=True)
        (run / "entropy").mkdir(parents=True)
        profile = self.directory / "recorded" / "entropy" if mode == "replay" else None
        plan = Plan(
            mode=mode, command=(), working_directory=self.directory, key=bytes(32), calendar=calendar, profile=profile,
            recorded_at=0 if profile is None else entropy.started_at(profile),
        )  # fmt: skip
        native.write_shim_plan(run / "shim.plan", plan, native.shim_path(), self.directory)
        run_text = os.fspath(run).rjust(512, "/")
        return {"LD_PRELOAD": str(native.shim_path()), "REPROKIT_RUN": run_text, "REPROKIT_ID": "0"}

    def bare(self) -> float:
        return self._run({})

    def record(self) -> float:
        return self._run(self._environment("recorded", "record"))

    def replay(self) -> float:
        return self._run(self._environment("replayed", "replay"))

    def without(self) -> float:
        return self._run(self._environment("without", "record", calendar=False))

    def sides(self) -> dict[str, Callable[[], float]]:
        return {"bare": self.bare, "record": self.record, "replay": self.replay, "no calendar": self.without}


def main(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        program = directory / "clock"
        subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
        for kind in KINDS:
            results = in_turn(ClockReads(program, directory, kind).sides(), runs)
            print(f"{kind}; target: record and replay at most bare + 30 ns")
            show(results, "ns", "bare")
            for side in ("record", "replay"):
                added = [a - b for a, b in zip(results[side], results["bare"], strict=True)]
                print(f"  {side} adds {statistics.median(added):.1f} ns ({min(added):.1f} to {max(added):.1f})")
