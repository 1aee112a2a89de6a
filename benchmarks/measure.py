"""Running sides in turn, and saying what came out: medians, spread, ratios, tests."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
REPROKIT = str(Path(sys.executable).with_name("reprokit"))


def machine() -> str:
    """The machine in words."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} processors, Linux {platform.release()}, {' '.join(platform.libc_ver())}"


def in_turn(sides: dict[str, Callable[[], T]], runs: int, warm_up: int = 1) -> dict[str, list[T]]:
    """Run A B C A B C ...: a machine that drifts favors nobody."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(warm_up + runs):
        for name, side in sides.items():
            value = side()
            if number >= warm_up:
                results[name].append(value)
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{warm_up + runs} ", end="", file=sys.stderr, flush=True)
    return results


def show(results: dict[str, list[float]], unit: str, base: str) -> None:
    """A line a side: median and range, and the ratio to the base, run by run."""
    for name, values in results.items():
        ratios = [value / other for value, other in zip(values, results[base], strict=True)]
        print(
            f"  {name:<24} {statistics.median(values):10.2f} {unit} "
            f"({min(values):.2f} to {max(values):.2f})   {statistics.median(ratios):6.3f} x {base}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})"
        )


def cliffs_delta(left: Sequence[float], right: Sequence[float]) -> tuple[float, str]:
    """Cliff's delta with its magnitude (Romano et al. 2006: 0.147, 0.33, 0.474)."""
    more = sum((a > b) - (a < b) for a in left for b in right)
    delta = more / (len(left) * len(right))
    for bound, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")):
        if abs(delta) < bound:
            return delta, word
    return delta, "large"


def compare(name: str, values: Sequence[float], base: Sequence[float]) -> None:
    """The paper's test: Wilcoxon rank-sum (two-sided) and Cliff's delta."""
    from scipy.stats import ranksums

    delta, magnitude = cliffs_delta(values, base)
    p = float(ranksums(values, base).pvalue)
    verdict = "significantly different" if p < 0.05 else "not significantly different"
    print(f"  {name}: Wilcoxon rank-sum p = {p:.3f} ({verdict}), Cliff's delta = {delta:+.3f} ({magnitude})")


def seconds(command: Sequence[str], directory: Path) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


@dataclass
class Sides:
    """One command bare, recorded, and replayed from a first recording."""

    command: Sequence[str]
    directory: Path

    def __post_init__(self) -> None:
        seconds([REPROKIT, "record", "-o", "first", "--", *self.command], self.directory)

    def bare(self) -> float:
        return seconds(self.command, self.directory)

    def recorded(self) -> float:
        return seconds([REPROKIT, "record", "-o", "recorded", "--overwrite", "--", *self.command], self.directory)

    def replayed(self) -> float:
        return seconds([REPROKIT, "replay", "first", "-o", "replayed", "--overwrite"], self.directory)

    def all(self) -> dict[str, Callable[[], float]]:
        return {"bare": self.bare, "recorded": self.recorded, "replayed": self.replayed}


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="reprokit-benchmark-")
