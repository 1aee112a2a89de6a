"""What one request costs: bare, recorded, replayed and keyed, under the shim alone."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show
from reprokit.core import native
from reprokit.model.plan import Plan

SOURCE = Path(__file__).with_suffix(".c")
KINDS = {"getrandom": 200_000, "read": 200_000, "open": 50_000, "bulk": 64}
MANY = 10_000_000
PRINTED = 20_000  # lines a round
TITLES = {
    "getrandom": "getrandom(16 bytes); targets: replay at most 60 ns, record at most bare + 50 ns",
    "read": "read(4 KiB) of a cached ordinary file; target: within 2 % of bare",
    "open": "open and close of an ordinary file; target: within 2 % of bare",
    "bulk": "read(1 MiB) of /dev/urandom; target: replay at least 5 GB/s",
}


@dataclass(frozen=True)
class EntropyRequest:
    """One kind of request in a program of its own, in a given mode."""

    program: Path
    directory: Path
    kind: str
    count: int

    rounds: int = 5

    def _run(self, environment: dict[str, str]) -> float:
        """Nanoseconds a request, the median of the rounds in one process."""
        command = [str(self.program), self.kind, str(self.count), str(self.rounds)]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return statistics.median(map(float, done.stdout.split()))

    def _environment(self, name: str, mode: str, profile: Path | None = None, keyed: bool = False) -> dict[str, str]:
        run = self.directory / name
        shutil.rmtree(run, ignore_errors=True)
        (run / "entropy").mkdir(parents=True)
        plan = Plan(
            mode=mode, command=(), working_directory=self.directory, key=bytes(32), profile=profile, keyed=keyed
        )
        native.write_shim_plan(run / "shim.plan", plan, native.shim_path(), self.directory)
        run_text = os.fspath(run).rjust(512, "/")
        return {"LD_PRELOAD": str(native.shim_path()), "REPROKIT_RUN": run_text, "REPROKIT_ID": "0"}

    def bare(self) -> float:
        return self._run({})

    def record(self) -> float:
        return self._run(self._environment("recorded", "record"))

    def replay(self) -> float:
        return self._run(self._environment("replayed", "replay", self.directory / "recorded" / "entropy"))

    def keyed(self) -> float:
        return self._run(self._environment("keyed", "record", keyed=True))

    def sides(self) -> dict[str, Callable[[], float]]:
        return {"bare": self.bare, "record": self.record, "replay": self.replay, "keyed": self.keyed}


@dataclass(frozen=True)
class Printing:
    """A program that prints to a file, bare and under record."""

    program: Path
    directory: Path
    rounds: int = 5

    def _run(self, *before: str) -> float:
        command = [*before, str(self.program), "print", str(PRINTED), str(self.rounds)]
        with open(self.directory / "printed", "wb") as file:
            done = subprocess.run(
                command, cwd=self.directory, stdout=file, stderr=subprocess.PIPE, text=True, check=True
            )
        return statistics.median(float(line) for line in done.stderr.split("\n") if line[:1].isdigit())

    def _record(self, *options: str) -> float:
        return self._run(REPROKIT, "record", "--overwrite", "-o", "printing", *options, "--")

    def sides(self) -> dict[str, Callable[[], float]]:
        return {"bare": self._run, "record": self._record, "without console": lambda: self._record("--no-console")}


def main(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        program = directory / "requests"
        subprocess.run(["gcc", "-O2", "-o", program, SOURCE], check=True)
        for kind, count in KINDS.items():
            results = in_turn(EntropyRequest(program, directory, kind, count).sides(), runs)
            print(TITLES[kind])
            show(results, "ns", "bare")
            if kind == "getrandom":
                added = [a - b for a, b in zip(results["record"], results["bare"], strict=True)]
                print(f"  record adds {statistics.median(added):.1f} ns ({min(added):.1f} to {max(added):.1f})")
            if kind == "bulk":
                for side, values in results.items():
                    print(f"  {side}: {(1 << 20) / statistics.median(values):.2f} GB/s")
        print("write(80 bytes) to stdout, a file; target: record at most bare + 400 ns")
        show(in_turn(Printing(program, directory).sides(), runs), "ns", "bare")
        print(f"memory of a process that makes {MANY} requests, and of one that makes a thousandth")
        for count in (MANY // 1000, MANY):
            sides = EntropyRequest(program, directory, "memory", count, rounds=1).sides()
            print(f"  {count}: " + ", ".join(f"{side} {call():.0f} KiB" for side, call in sides.items()))
