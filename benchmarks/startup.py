"""When a command begins under reprokit (target: at most 100 ms later), how long its end takes, what both cost."""

from __future__ import annotations

import compileall
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.measure import REPROKIT, Sides, in_turn, scratch, show
from reprokit.run.environment import agent_directory


def begin_and_end(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Milliseconds from the call to the program's first line, and from there to the end of the call."""
    called = time.monotonic()
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    ended = time.monotonic()
    began = float(done.stdout)
    return 1000 * (began - called), 1000 * (ended - began)


def ends_of_a_command(runs: int) -> None:
    with scratch() as name:
        directory = Path(name)
        program = str(directory / "startup")
        subprocess.run(["gcc", "-O2", "-o", program, Path(__file__).with_suffix(".c")], check=True)
        record = [REPROKIT, "record", "--", program]  # as users call it most often
        replay = [REPROKIT, "replay", "last"]
        times: dict[str, list[tuple[float, float]]] = {"bare": [], "record": [], "replay": []}
        for _ in range(runs + 1):
            for side, command in {"bare": [program], "record": record, "replay": replay}.items():
                times[side].append(begin_and_end(command, directory))
    for part, title in enumerate(("from the call to the command's first line", "from there to the end of the call")):
        print(title)
        show({side: [pair[part] for pair in pairs[1:]] for side, pairs in times.items()}, "ms", "bare")


PROCESSES = 8
# What the launcher cannot do without: an interpreter, and the libraries of its command line and its files.
FLOOR = "import click, msgspec\n@click.command()\ndef program(): pass\nprogram()"


def processor_milliseconds(command: Sequence[str], directory: Path) -> float:
    """Processor time of a command and of all that it waits for, in milliseconds."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return 1000 * (usage.ru_utime + usage.ru_stime)

    before = used()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return used() - before


def processor_times(runs: int) -> None:
    """Print what a recorded program costs that does nothing, and each Python process in a recording."""
    compileall.compile_dir(agent_directory(), quiet=2)  # as an installer does
    python = [sys.executable, "-c", "pass"]
    record = [REPROKIT, "record", "--"]

    def recorded(processes: int) -> list[str]:
        return [*record, "sh", "-c", "; ".join([" ".join(python)] * processes) or ":"]

    commands = {
        "python -c pass": python,
        "floor": [sys.executable, "-c", FLOOR],
        "record": [*record, "true"],
        **{f"record {count} x python": recorded(count) for count in (0, 1, 1 + PROCESSES)},
    }
    with scratch() as name:
        sides: dict[str, Callable[[], float]] = {
            side: partial(processor_milliseconds, command, Path(name)) for side, command in commands.items()
        }
        results = in_turn(sides, runs)
    print("processor time")
    show(results, "ms", "floor")
    bare, *_, none, one, full = results.values()
    first = [b - a - c for a, b, c in zip(none, one, bare, strict=True)]
    further = [(b - a) / PROCESSES - c for a, b, c in zip(one, full, bare, strict=True)]
    for words, added in (("the first Python process", first), ("each further one", further)):
        print(f"  {words}: {statistics.median(added):+.1f} ms ({min(added):+.1f} to {max(added):+.1f})")


def main(runs: int) -> None:
    processor_times(runs)
    ends_of_a_command(runs)
    print("python -c pass, as a whole")
    with scratch() as name:
        results = in_turn(Sides([sys.executable, "-c", "pass"], Path(name)).all(), runs)
    show({side: [1000 * value for value in values] for side, values in results.items()}, "ms", "bare")
    for side in ("recorded", "replayed"):
        added = [1000 * (a - b) for a, b in zip(results[side], results["bare"], strict=True)]
        print(f"  {side}: {statistics.median(added):+.1f} ms ({min(added):+.1f} to {max(added):+.1f})")
