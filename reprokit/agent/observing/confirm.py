"""Executes each distinct call of an operator again on its own inputs: what PyTorch and TensorFlow share of it.

Results are told apart by digests of their bits. What could be kept is executed again at the end of the process by other
processes: with other numbers of threads, or with fewer capabilities of the CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from typing import Any

    from . import Observer

    Digests = dict[str, None]  # distinct results, in the order in which they came
    Line = dict[str, Any]

MAX_SECONDS = 300.0  # of all repeats of a process; the last half is for calls that can race
MAX_SECONDS_OF_ONE = 3.0  # for the repeats that were asked for
MAX_SECONDS_OF_RACING = 10.0  # likewise, of one that is known to race
FURTHER_SECONDS = (0.3, 3.0)  # how long one that could race, and one that is known to, is repeated further
FURTHER_TIMES = 10  # at most as many times the repeats that were asked for
MAX_CALLS = 1000  # that are kept
MAX_BYTES = 256 << 20  # of all inputs that are kept
MAX_BYTES_OF_ONE = 64 << 20
MAX_SECONDS_ELSEWHERE = 300.0  # for the other processes, which run side by side
PRESENT = ""  # the circumstance that is the training's own
_SHARED = tuple("framework version name overload phase device dtypes shapes attributes operators where".split())
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "repeat_process.py")


class Confirmations:
    """What came out of calls that were executed again in this process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[object, Line] = {}
        self.spent = 0.0  # seconds

    def of(self, key: object) -> Line | None:
        """Return the line of this call, if it was to be executed again before."""
        return self._lines.get(key)

    def line(self, key: object, call: Line) -> Line:
        """Return the line of a call, which is begun when it is first asked for."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = {name: call[name] for name in _SHARED if name in call}
            line.update(repeats=0, results=0, threads={}, capabilities={}, problem="")
            self._observer.write("confirmed", key, line)
        return line

    def no_time_left(self, can_race: bool) -> str:
        """Say that no time is left for one more call; empty while there is some."""
        limit = MAX_SECONDS if can_race else MAX_SECONDS / 2
        return f"no time was left: repeats had taken {limit:.0f} s" if self.spent > limit else ""

    def repeat(self, line: Line, once: Callable[[], str], can_race: bool, does_race: bool) -> Digests:
        """Execute a call as often as was asked for, and more often where threads must meet for it to differ."""
        wanted = self._observer.confirm
        limit = MAX_SECONDS_OF_RACING if does_race else MAX_SECONDS_OF_ONE
        begun = time.monotonic()
        found: Digests = {}
        made = 0
        while made < wanted or (can_race and len(found) == 1 and made < wanted * FURTHER_TIMES):
            found[once()] = None
            made += 1
            took = time.monotonic() - begun
            if took > (limit if made < wanted else FURTHER_SECONDS[does_race]) and made > 1:
                break
        line["repeats"] += made
        line["results"] = max(line["results"], len(found))
        return found


def verdict(here: Digests, there: Digests, before: str | None = None, *, is_cure: bool = True) -> str:
    """Return how results under other circumstances relate to those here; whether these may be what makes it repeat."""
    if len(there) > 1 or before == "varies":
        return "varies"
    if len(here) > 1 and is_cure:
        return "repeats"
    return "same" if set(there) <= set(here) and before != "different" else "different"


class KeptCalls:
    """Calls that other processes can execute again, each in a file until the end."""

    def __init__(self, observer: Observer, framework: str) -> None:
        self._observer = observer
        self._framework = framework  # torch or tensorflow; the module NAME_confirm here knows how to load its calls
        self._directory = f"{observer.directory}/captured"
        self._calls: dict[object, tuple[str, Digests, list[Line]]] = {}  # file, results, and lines to complete
        self._bytes = self._files = 0

    def keep(self, key: object, size: int, save: Callable[[Any], object], found: Digests, line: Line) -> None:
        """Keep a call as far as there is room; once for calls of this key, which may differ in their places."""
        known = self._calls.get(key)
        if known is not None:
            if not any(line is other for other in known[2]):
                known[2].append(line)
            return
        if size > MAX_BYTES_OF_ONE or size + self._bytes > MAX_BYTES or len(self._calls) >= MAX_CALLS:
            return
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = f"{self._directory}/{os.getpid()}-{self._files}"
        self._files += 1
        with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
            try:
                save(file)
            except BaseException:
                os.unlink(path)
                raise
        self._calls[key] = path, found, [line]
        self._bytes += size

    def execute_elsewhere(self, processes: list[tuple[dict[str, str], list[tuple[str, int]]]], **order: Any) -> None:
        """Execute all calls in processes with other variables, under some circumstances each, and remove them.

        A circumstance is a field and a key of the lines, "threads 4", and the number of threads, 0: as it was. Calls
        that do not repeat under the PRESENT one, in another process, are told nothing of.
        """
        calls, self._calls = list(self._calls.values()), {}
        paths = [path for path, _, _ in calls]
        if not calls:
            return
        outcomes: dict[str, dict[int, Digests]] = {}
        end = time.monotonic() + MAX_SECONDS_ELSEWHERE
        try:
            for child in [self._start(paths, *one, order) for one in processes]:
                for circumstance, number, digests in _printed(child, end):
                    outcomes.setdefault(circumstance, {})[number] = dict.fromkeys(digests)
        finally:
            self._remove(paths)
        present = outcomes.pop(PRESENT, {})
        for circumstance, results in outcomes.items():
            field, _, name = circumstance.partition(" ")
            for number, there in results.items():
                _, here, lines = calls[number]
                if len(here) > 1 or present.get(number) == here:
                    for line in lines:
                        line[field][name] = verdict(here, there, is_cure=field == "threads")

    def _start(
        self, paths: list[str], variables: dict[str, str], circumstances: list[tuple[str, int]], order: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        import subprocess

        places = [place for place in sys.path if type(place) is str]
        order = {"framework": self._framework, "path": places, "files": paths, "circumstances": circumstances, **order}
        child = subprocess.Popen(
            [sys.executable, "-I", _PROGRAM],
            env={**_bare_environment(), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._observer.helper(child.pid)
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
        child.stdin = None
        return child

    def _remove(self, paths: list[str]) -> None:
        for path in paths:
            os.unlink(path)
        try:
            os.rmdir(self._directory)
        except OSError:  # there was none, or another process has files of its own there
            pass


def _bare_environment() -> dict[str, str]:
    """Return the environment without reprokit, whose shim lets a child be that is told of another run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REPROKIT_")}
    preloaded = [path for path in kept.pop("LD_PRELOAD", "").split(":") if path and "liburandom_hook" not in path]
    if preloaded:
        kept["LD_PRELOAD"] = ":".join(preloaded)
    return {**kept, "REPROKIT_RUN": "none"}


def _printed(child: subprocess.Popen[bytes], end: float) -> Iterator[tuple[str, int, list[str]]]:
    """Yield what a process printed until its end, or until it takes too long."""
    import subprocess

    try:
        output, _ = child.communicate(timeout=max(end - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
    for line in output.splitlines():
        if line.endswith(b"]"):  # else it was ended in the middle of it
            yield tuple(json.loads(line))
