"""What the supervisor costs: a request of a static program, and the import of a large framework (target: 2 %)."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

IMPORT = [sys.executable, "-c", "import time, torch; print(time.process_time())"]


def processor_times(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Milliseconds of processor time: of a command with all that it started, and of the import's own process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * whole, 1000 * float(done.stdout)


def imports(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        record = [REPROKIT, "record", "-o", "run", "--overwrite"]
        commands = {
            "bare": IMPORT,
            "--no-supervisor": [*record, "--no-supervisor", "--", *IMPORT],
            "supervised": [*record, "--", *IMPORT],
        }

        def side(command: Sequence[str]) -> Callable[[], tuple[float, float]]:
            return lambda: processor_times(command, directory)

        pairs = in_turn({key: side(command) for key, command in commands.items()}, runs)
    for title, part in {"in the importing process; target: 3 %": 1, "with reprokit's own processes": 0}.items():
        print(f"{title}:")
        results = {key: [pair[part] for pair in values] for key, values in pairs.items()}
        show(results, "ms", "bare")
        share = [a / b - 1 for a, b in zip(results["supervised"], results["--no-supervisor"], strict=True)]
        print(f"  the supervisor's share: {100 * statistics.median(share):+.2f} %; target: 2 %")


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
    print("python -c 'import torch', processor time")
    imports(runs)
