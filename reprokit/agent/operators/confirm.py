"""Executes each distinct call of an operator again on its own inputs: a listener beside the profile's.

Results are compared by digests of their bits. At the end of the process other processes execute the saved calls again:
with other numbers of threads, or with fewer capabilities of the CPU.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from . import Observer
    from .files import CallRecord

    Digests = dict[str, None]  # distinct results, in the order of their first occurrence
    Line = dict[str, Any]
    Processes = list[tuple[dict[str, str], list[tuple[str, int]]]]  # variables, and circumstances

    class Repeatable(Protocol):
        """A call that can be executed again."""

        size: int  # of its inputs, in bytes
        can_race: bool
        does_race: bool

        def execute(self) -> str:
            """Execute the call; return the digest of its results."""

        def end(self) -> None:
            """Restore what the repeats changed."""

        def save(self, file: Any) -> object:
            """Write what another process needs to execute the call."""

    class Repeats(Protocol):
        """How calls of a framework are repeated; its module has prepare() and load() for other processes."""

        framework: str  # the module to import

        def undisturbed(self, function: Callable[..., Any], *arguments: Any) -> Any:
            """Call a function of the agent's, of whose calls no events are made."""

        def is_due(self, record: CallRecord, call: Any, line: Line | None) -> bool:
            """Return whether to repeat a call now; line: of its earlier repeats."""

        def can_race(self, operator: Any) -> bool:
            """Return whether threads may race in an operator."""

        def prepare(self, call: Any) -> Any:
            """Return the repeatable call; raises NotRepeatable."""

        def vary(self, record: CallRecord, repeatable: Any, digests: Digests, line: Line) -> object | None:
            """Repeat a call in other circumstances here; return its key if other processes are to repeat it too."""

        def processes(self) -> tuple[Processes, dict[str, Any]]:
            """Return the other processes that repeat calls, and what they are ordered besides."""


MAX_SECONDS = 300.0  # for all repeats of a process; the second half only for calls that can race
MAX_SECONDS_OF_ONE = 3.0  # for the requested repeats of one call
MAX_SECONDS_OF_RACING = 10.0  # the same for a call that is known to race
FURTHER_SECONDS = (0.3, 3.0)  # for further repeats of a call that could race, and of one that is known to
FURTHER_TIMES = 10  # limit of further repeats, in multiples of the requested ones
MAX_CALLS = 1000  # saved calls
MAX_BYTES = 256 << 20  # of the inputs of all saved calls
MAX_BYTES_OF_ONE = 64 << 20
MAX_SECONDS_ELSEWHERE = 300.0  # for the other processes, which run in parallel
PRESENT = ""  # name of the circumstance equal to the training's
_SHARED = tuple("framework version name overload phase device dtypes shapes attributes operators where".split())
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "repeat_process.py")


class NotRepeatable(Exception):
    """A call cannot be executed again, for the reason that is the text."""


class Confirmer:
    """Repeats the calls of a framework in this process."""

    def __init__(self, observer: Observer, repeats: Repeats) -> None:
        self._observer = observer
        self._repeats = repeats
        self.forget()

    def forget(self) -> None:
        """Start afresh, also in a forked child."""
        self._confirmations = Confirmations(self._observer)
        adapter = type(self._repeats).__module__.rpartition(".operators.")[2]
        self._saved = SavedCalls(self._observer, self._repeats.framework, adapter)

    def begins(self, record: CallRecord, call: Any) -> Repeatable | None:
        """Prepare the repeats of a call that is about to be executed, if they are due."""
        line = self._confirmations.of(record.key)
        if not (self._observer.collecting and self._repeats.is_due(record, call, line)):
            return None
        return self._attempt(self._prepare, record, call)  # type: ignore[no-any-return]

    def ended(self, record: CallRecord, repeatable: Repeatable) -> None:
        """Repeat a call that was executed."""
        self._attempt(self._repeat, record, repeatable)

    def leave_out(self, key: object, line: Line, why: str) -> None:
        """Write why a call is not repeated, unless such a call was."""
        confirmed = self._confirmations.line(key, line)
        confirmed["problem"] = "" if confirmed["repeats"] else why

    def finish(self) -> None:
        """Let other processes repeat the saved calls."""
        processes, order = self._repeats.processes()
        self._saved.execute_elsewhere(processes, **order)

    def _attempt(self, part: Callable[..., Any], record: CallRecord, argument: Any) -> Any:
        """Execute a part of the confirmation; an exception is recorded as the call's problem and not raised."""
        line, start = self._confirmations.line(record.key, record.line), time.monotonic()
        try:
            return self._repeats.undisturbed(part, record, line, argument)
        except NotRepeatable as reason:
            line["problem"] = str(reason)
        except Exception as error:
            message = " ".join(str(error).split())
            line["problem"] = f"executed again, it raised {type(error).__name__}: {message}"[:300]
            pass_on(error)
        finally:
            self._confirmations.seconds_spent += time.monotonic() - start
        return None

    def _prepare(self, record: CallRecord, line: Line, call: Any) -> Repeatable | None:
        line["problem"] = self._confirmations.no_time_left(self._repeats.can_race(record.operator))
        return None if line["problem"] else self._repeats.prepare(call)

    def _repeat(self, record: CallRecord, line: Line, repeatable: Repeatable) -> None:
        try:
            digests = self._confirmations.repeat(line, repeatable)
            key = None if self._observer.racing_only else self._repeats.vary(record, repeatable, digests, line)
            if key is not None:
                self._saved.add(key, repeatable, digests, line)
        finally:
            repeatable.end()


class Confirmations:
    """The results of repeated calls in this process."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lines: dict[object, Line] = {}
        self.seconds_spent = 0.0  # seconds spent on repeats

    def of(self, key: object) -> Line | None:
        """Return the line of a call; None if it has none so far."""
        return self._lines.get(key)

    def line(self, key: object, call: Line) -> Line:
        """Return the line of a call, created on first use."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = {name: call[name] for name in _SHARED if name in call}
            line.update(repeats=0, results=0, threads={}, capabilities={}, problem="")
            self._observer.write("confirmed", key, line)
        return line

    def no_time_left(self, can_race: bool) -> str:
        """Return the reason if no time is left for one more call, else an empty text."""
        limit = MAX_SECONDS if can_race else MAX_SECONDS / 2
        return f"no time was left: repeats had taken {limit:.0f} s" if self.seconds_spent > limit else ""

    def repeat(self, line: Line, repeatable: Repeatable) -> Digests:
        """Execute a call as often as requested, and more often if only a race of threads can change its result."""
        requested = self._observer.confirm
        can_race, does_race = repeatable.can_race, repeatable.does_race
        limit = MAX_SECONDS_OF_RACING if does_race else MAX_SECONDS_OF_ONE
        start = time.monotonic()
        digests: Digests = {}
        repeats = 0
        while repeats < requested or (can_race and len(digests) == 1 and repeats < requested * FURTHER_TIMES):
            digests[repeatable.execute()] = None
            repeats += 1
            elapsed = time.monotonic() - start
            if elapsed > (limit if repeats < requested else FURTHER_SECONDS[does_race]) and repeats > 1:
                break
        line["repeats"] += repeats
        line["results"] = max(line["results"], len(digests))
        return digests


def verdict(results_here: Digests, results_there: Digests, previous: str | None = None, *, is_cure: bool = True) -> str:
    """Compare results under other circumstances with those here; is_cure: the circumstances may make a call repeat."""
    if len(results_there) > 1 or previous == "varies":
        return "varies"
    if len(results_here) > 1 and is_cure:
        return "repeats"
    return "same" if set(results_there) <= set(results_here) and previous != "different" else "different"


class SavedCalls:
    """Calls saved to files, which other processes execute again at the end."""

    def __init__(self, observer: Observer, framework: str, adapter: str) -> None:
        self._observer = observer
        self._framework = framework  # torch or tensorflow
        self._adapter = adapter  # the module here that loads its calls
        self._directory = f"{observer.directory}/captured"
        self._calls: dict[object, tuple[str, Digests, list[Line]]] = {}  # file, results, and lines to complete
        self._bytes = self._files = 0

    def add(self, key: object, repeatable: Repeatable, digests: Digests, line: Line) -> None:
        """Save a call if there is room; calls of one key, which may differ in their places, are saved once."""
        saved = self._calls.get(key)
        if saved is not None:
            if not any(line is saved_line for saved_line in saved[2]):
                saved[2].append(line)
            return
        size = repeatable.size
        if size > MAX_BYTES_OF_ONE or size + self._bytes > MAX_BYTES or len(self._calls) >= MAX_CALLS:
            return
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = f"{self._directory}/{os.getpid()}-{self._files}"
        self._files += 1
        with os.fdopen(os.open(path, _NEW, 0o600), "wb") as file:
            try:
                repeatable.save(file)
            except BaseException:
                os.unlink(path)
                raise
        self._calls[key] = path, digests, [line]
        self._bytes += size

    def execute_elsewhere(self, processes: Processes, **order: Any) -> None:
        """Execute all saved calls in processes with other variables and circumstances, then remove them.

        A circumstance is a field and a key of the lines, "threads 4", and the number of threads, 0: unchanged. For
        calls that do not even repeat under PRESENT in another process, nothing is reported.
        """
        calls, self._calls = list(self._calls.values()), {}
        paths = [path for path, _, _ in calls]
        if not calls:
            return
        outcomes: dict[str, dict[int, Digests]] = {}
        end = time.monotonic() + MAX_SECONDS_ELSEWHERE
        try:
            for child in [self._start(paths, *process, order) for process in processes]:
                for circumstance, number, digests in _read_results(child, end):
                    outcomes.setdefault(circumstance, {})[number] = dict.fromkeys(digests)
        finally:
            self._remove(paths)
        present = outcomes.pop(PRESENT, {})
        for circumstance, results in outcomes.items():
            field, _, name = circumstance.partition(" ")
            for number, results_there in results.items():
                _, results_here, lines = calls[number]
                if len(results_here) > 1 or present.get(number) == results_here:
                    for line in lines:
                        line[field][name] = verdict(results_here, results_there, is_cure=field == "threads")

    def _start(
        self, paths: list[str], variables: dict[str, str], circumstances: list[tuple[str, int]], order: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        import subprocess

        sys_path = [entry for entry in sys.path if type(entry) is str]
        order = {
            "framework": self._framework,
            "adapter": self._adapter,
            "path": sys_path,
            "files": paths,
            "circumstances": circumstances,
            **order,
        }
        child = subprocess.Popen(
            [sys.executable, "-I", _PROGRAM],
            env={**_bare_environment(), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._observer.note_helper(child.pid)
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
        except OSError:  # it does not exist, or other processes have files in it
            pass


def _bare_environment() -> dict[str, str]:
    """Return the environment without reprokit; another REPROKIT_RUN makes the shim ignore a child."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("REPROKIT_")}
    preloaded = [path for path in variables.pop("LD_PRELOAD", "").split(":") if path and "liburandom_hook" not in path]
    if preloaded:
        variables["LD_PRELOAD"] = ":".join(preloaded)
    return {**variables, "REPROKIT_RUN": "none"}


def _read_results(child: subprocess.Popen[bytes], end: float) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the results that a process printed, until it exits or the timeout."""
    import subprocess

    try:
        output, _ = child.communicate(timeout=max(end - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        child.kill()
        output, _ = child.communicate()
    for line in output.splitlines():
        if line.endswith(b"]"):  # an incomplete line means that the process was killed
            yield tuple(json.loads(line))
