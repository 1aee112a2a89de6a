"""What recording costs commands of many processes and files: a tree of forks, open and read in Python, make, pip."""

from __future__ import annotations

import ensurepip
import functools
import itertools
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

DEPTH = 6
PROCESSES = sum(4**depth for depth in range(DEPTH + 1))
SOURCES = 100  # files of the smaller C project
NATIVE = Path(__file__).parent.parent / "native"
SHIM = sorted(path for part in ("*", "recorder/*", "shim/**/*") for path in NATIVE.glob(f"{part}.[ch]"))
FILES, ROUNDS = 1000, 10
READ = f"""
import time
def read():
    for number in range({FILES}):
        with open(f"data/{{number}}", "rb") as file:
            file.read()
times = [time.process_time()]
for _ in range({ROUNDS}):
    read()
    times.append(time.process_time())
print((times[1] - times[0]) / {FILES}, (times[-1] - times[0]) / {FILES * ROUNDS})
"""
SOURCE = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "all.h"
double part%d(const double *numbers, int count) {
    double sum = %d;
    char text[64];
    for (int i = 0; i < count; i++) sum += numbers[i] * (i %% 3 ? 1 : -1);
    snprintf(text, sizeof(text), "%%g", sum);
    return strtod(text, NULL) + (double)strlen(text);
}
"""
MAKEFILE = """OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c */*.c */*/*.c))
CFLAGS = -O2 -fPIC -std=gnu11 -D_GNU_SOURCE -I.
all.so: $(OBJECTS)
	$(CC) -shared -o $@ $^
clean:
	rm -f all.so $(OBJECTS)
"""

Side = Callable[[], tuple[float, float]]


def timed(command: Sequence[str], directory: Path) -> tuple[float, float]:
    """Milliseconds of processor time, of the command with all that it started, and on the clock."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), 1000 * clock


class Sides:
    """A command bare, recorded and replayed, each time in a run directory that was not there before."""

    def __init__(self, command: Sequence[str], directory: Path, clean: Callable[[], object] = lambda: None):
        self.command, self.directory, self.clean = command, directory, clean
        self.numbers = itertools.count()
        timed(self._record("first"), directory)

    def _record(self, run: str) -> list[str]:
        return [REPROKIT, "record", "-o", run, "--", *self.command]

    def _run(self, make: Callable[[str], list[str]]) -> tuple[float, float]:
        self.clean()
        return timed(make(f"run{next(self.numbers)}"), self.directory)

    def all(self) -> dict[str, Side]:
        """The sides by their names, for in_turn."""
        return {
            "bare": lambda: self._run(lambda run: list(self.command)),
            "record": lambda: self._run(self._record),
            "replay": lambda: self._run(lambda run: [REPROKIT, "replay", "first", "-o", run]),
        }


def show_both(results: dict[str, list[tuple[float, float]]]) -> None:
    for part, title in enumerate(("processor time", "on the clock")):
        print(f" {title}:")
        show({side: [pair[part] for pair in pairs] for side, pairs in results.items()}, "ms", "bare")


def forks(runs: int) -> None:
    print(f"a tree of {PROCESSES} forked processes, each of which draws 16 bytes")
    with scratch() as name:
        directory = Path(name)
        program = str(directory / "trees")
        subprocess.run(["gcc", "-O2", "-o", program, Path(__file__).with_suffix(".c")], check=True)
        results = in_turn(Sides([program, str(DEPTH)], directory).all(), runs)
    show_both(results)
    for side in ("record", "replay"):
        added = [(a[0] - b[0]) / PROCESSES for a, b in zip(results[side], results["bare"], strict=True)]
        words = f"{statistics.median(added):.3f} ms ({min(added):.3f} to {max(added):.3f})"
        print(f"  {side}: {words} of processor time more for each process; target: 0.3 ms")


def reads(runs: int) -> None:
    print(f"open and read in Python: {FILES} files of 4 KiB, {ROUNDS} times, processor time of the process")
    with scratch() as name:
        directory = Path(name)
        (directory / "data").mkdir()
        for number in range(FILES):
            (directory / "data" / str(number)).write_bytes(b"x" * 4096)
        command = [sys.executable, "-c", READ]
        record = [REPROKIT, "record", "-o", "run", "--overwrite", "--", *command]

        def side(words: Sequence[str]) -> tuple[float, float]:
            done = subprocess.run(words, cwd=directory, check=True, capture_output=True, text=True)
            first, every = (1e6 * float(word) for word in done.stdout.split())
            return first, every

        results = in_turn({"bare": lambda: side(command), "record": lambda: side(record)}, runs)
    for part, title in enumerate(("the first time", "all, target: 1.15 x")):
        print(f" {title}:")
        show({key: [pair[part] for pair in pairs] for key, pairs in results.items()}, "us", "bare")


def _small_files(project: Path) -> None:
    for number in range(SOURCES):
        (project / f"part{number}.c").write_text(SOURCE % (number, number), encoding="utf-8")
    declared = (f"double part{number}(const double *numbers, int count);\n" for number in range(SOURCES))
    (project / "all.h").write_text("".join(declared), encoding="utf-8")


def _shim(project: Path) -> None:
    for file in SHIM:
        place = project / file.relative_to(NATIVE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def make(runs: int) -> None:
    sizes = sum(file.suffix == ".c" for file in SHIM)
    projects = {f"of {SOURCES} files of ten lines": _small_files, f"of {sizes} files: the shim": _shim}
    for title, write in projects.items():
        print(f"make -j2 of a C project {title}, target: 1.08 x")
        with scratch() as name:
            directory = Path(name)
            project = directory / "project"
            project.mkdir()
            write(project)
            (project / "Makefile").write_text(MAKEFILE, encoding="utf-8")
            command = ["make", "-s", "-j2", "-C", "project"]
            clean = functools.partial(subprocess.run, [*command, "clean"], cwd=directory, check=True)
            show_both(in_turn(Sides(command, directory, clean).all(), runs))


def pip(runs: int) -> None:
    wheel = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)
    if wheel is None:
        print("pip install: this Python brings no wheel")
        return
    print(f"pip install of {wheel.name}, offline, target: 1.15 x")
    with scratch() as name:
        directory = Path(name)
        options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check", "--target", "installed"]
        command = [sys.executable, "-m", "pip", "install", *options, str(wheel)]
        clean = lambda: shutil.rmtree(directory / "installed", ignore_errors=True)  # noqa: E731
        show_both(in_turn(Sides(command, directory, clean).all(), runs))


def main(runs: int) -> None:
    for part in (forks, reads, make, pip):
        part(runs)
