"""What the supervisor costs: a request of a static program, and the import of a large framework (target: 2 %)."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

IMPORT = [sys.executable, "-c", "import torch"]


def processor_time(command: Sequence[str], directory: Path) -> float:
    """Milliseconds of processor time of a command and all that it started."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def imports(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        record = [REPROKIT, "record", "-o", "run", "--overwrite"]
        commands = {
            "bare": IMPORT,
            "--no-supervisor": [*record, "--no-supervisor", "--", *IMPORT],
            "supervised": [*record, "--", *IMPORT],
        }

        def side(command: Sequence[str]) -> Callable[[], float]:
            return lambda: processor_time(command, directory)

        results = in_turn({key: side(command) for key, command in commands.items()}, runs)
    show(results, "ms", "bare")
    share = [a / b - 1 for a, b in zip(results["supervised"], results["--no-supervisor"], strict=True)]
    print(f"  the supervisor's share: {100 * statistics.median(share):+.2f} %")


def requests(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        program = str(directory / "asks")
        subprocess.run(["gcc", "-O2", "-static", "-o", program, Path(__file__).with_suffix(".c")], check=True)
        record = [REPROKIT, "record", "-o", "run", "--overwrite", "--", program]
        replay = [REPROKIT, "replay", "run", "-o", "replayed", "--overwrite"]

        def side(command: Sequence[str]) -> Callable[[], float]:
            return lambda: float(subprocess.run(command, cwd=directory, capture_output=True, check=True).stdout)

        sides = {"bare": [program], "record": record, "replay": replay}
        results = in_turn({key: side(command) for key, command in sides.items()}, runs)
    show(results, "ns", "bare")


def main(runs: int) -> None:
    print("getrandom(16) in a static program")
    requests(runs)
    print("python -c 'import torch', processor time with the launcher's")
    imports(runs)
