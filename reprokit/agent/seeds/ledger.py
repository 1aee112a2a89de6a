"""The ledger of seeding calls: each is written down, and in a replay gets the recorded value where it differs.

A seed that differs came from the clock, a process id, an address: from something that no entropy is asked
for. In a replay the n-th call of the same function at the same line of the same thread and process gets what
it got in the recording. A value that the recording holds at this line, if in another place of the order, is
left alone: tasks of a pool are seeded by their number, in whichever worker takes them.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import _local

from ..core.json_text import to_json
from ..core.signal_errors import pass_on
from ..core.thread_names import on_thread
from ..core.user_frames import INSTALLED, installed_package
from ..frameworks import WATCHED
from .encoding import NotExact, decode, encode
from .recording import RecordedSeeds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ..core.journal import Journal

    Text = Callable[[object], str]
    Place = tuple[str, str, str, int]  # call, thread, name of the file, line
    Caller = tuple[str, str, int]  # thread ("" is the main one), file, line

MAX_LINES = 1000  # of one place; further calls there are counted and left alone
MAX_PLACES = 10_000
MAX_ARGUMENT = 200  # characters of a seed's text
MAX_FRAMES = 60  # a search over a pipeline, cross-validated, has some 40
_ON_BEHALF = frozenset(
    {"catboost", "lightgbm", "scipy", "sklearn", "xgboost"}
)  # whose random_state becomes a seed inside
_TAKES, _TAKES_NEXT = "dispatch_one_batch", "dispatch_next"  # methods of Parallel; joblib's threads call the latter
_CALLED_BY = "joblib"  # stands between scikit-learn and itself
_OWN = __name__.partition(".")[0]
_FROM_OUTSIDE = _OWN + ".patches.general"  # the launcher's seed, which is no script's
_BETWEEN = _ON_BEHALF.union((_CALLED_BY, _OWN))
_DRAWN_BY = ("sklearn.ensemble._bagging", "sklearn.ensemble._forest")  # seeds of many parts, from one that is noted
# Not the standard library, in whose threads joblib seeds as the script would.
_FRAMEWORKS = _ON_BEHALF.union(name.partition(".")[0] for name, adapter in WATCHED.items() if adapter != "orders")
_SEE_THROUGH = ("torch._compile", "torch._dynamo")  # stand between a script and torch.manual_seed


class _SeedingThread(_local):
    """What each thread is in the middle of."""

    inside = False  # of a seeding call, which makes others


class Ledger:
    """The seeding calls of this process."""

    def __init__(self, run: str, journal: Journal, warn: Callable[[str], None]) -> None:
        self._journal = journal
        self._recorded = RecordedSeeds(run)
        self._warn = warn
        self._thread = _SeedingThread()
        self._counts: dict[Place, int] = {}
        self._tasks = JoblibTasks()
        self._names: dict[str, str] = {}  # of files

    def forget(self) -> None:
        """In a forked child: what the parent counted is the parent's."""
        self._counts.clear()
        self._tasks.forget()
        self._thread.inside = False

    def seed(self, call: str, asked: Any, caller: FrameType | None, text: Text | None = None) -> Any:
        """Return the value to seed with: the one asked for, or in a replay the one that was recorded."""
        if asked is None or self._thread.inside or caller is None:
            return asked
        try:
            return self._seed(call, asked, caller, text or described)
        except Exception as error:
            self._warn(f"{call}: {type(error).__name__}: {error}")
            pass_on(error)
            return asked

    def within(self, original: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a seeding function; those that it calls in its turn are not the script's."""
        thread = self._thread
        if thread.inside:
            return original(*arguments, **keywords)
        thread.inside = True
        try:
            return original(*arguments, **keywords)
        finally:
            thread.inside = False

    def _seed(self, call: str, asked: Any, caller: FrameType, text: Text) -> Any:
        origin = _origin(caller)
        if origin is None:
            return asked
        thread, file, line = self._tasks.place(caller, origin, on_thread(""))
        place = (call, thread, self._names.get(file) or self._name(file), line)
        number = self._counts.get(place, 0)
        if not number and len(self._counts) >= MAX_PLACES:
            return asked
        self._counts[place] = number + 1
        return asked if number >= MAX_LINES else self._note(place, number, asked, text, bool(installed_package(file)))

    def _name(self, file: str) -> str:
        """Return the file's name without its directory; of a library the path below where libraries lie."""
        name = file
        for part in (*INSTALLED, "/"):
            if part in file:
                name = file.rpartition(part)[2]
                break
        if len(self._names) < MAX_PLACES:
            self._names[file] = name
        return name

    def _note(self, place: Place, number: int, asked: Any, text: Text, from_library: bool) -> Any:
        """Write the line of one call, and find out what it is given."""
        where, given = f"{place[2]}:{place[3]}", asked
        fields = {"call": place[0], "argument": text(asked), "where": where, "thread": place[1]}
        try:
            fields["value"] = encode(asked)
        except NotExact:
            if from_library:  # that hands a generator on
                self._counts[place] = number
                return asked
        else:
            given = self._given(place, where, number, asked, fields["value"])
        if given is not asked:
            fields.update(argument=text(given), value=encode(given), asked=fields["argument"])
        if not place[1]:
            del fields["thread"]
        # A forked child in which nobody but a library seeds has nothing else to tell at its end.
        self._journal.write("seed", fields, aside=from_library)
        return given

    def _given(self, place: Place, where: str, number: int, asked: Any, value: Any) -> Any:
        site = f"{to_json(place[0])},{to_json(where)},"
        start = f"[{to_json(self._journal.identity)},{to_json(place[1])},{number},{site}"
        wanted = to_json(value)
        if self._recorded.agrees(start + wanted):
            return asked
        recorded = self._recorded.value(start)
        if recorded is None or recorded == wanted.encode():
            return asked
        is_elsewhere = self._recorded.holds(f",{site}{wanted}") and not _is_process_id(asked)
        return asked if is_elsewhere or _on_command_line(asked) else _rebuilt(recorded, asked)

    def finish(self) -> None:
        """Write how often the places were called that are only counted by now."""
        for place, count in list(self._counts.items()):
            if count > MAX_LINES:
                fields = {"call": place[0], "where": f"{place[2]}:{place[3]}", "thread": place[1], "count": count}
                self._journal.write("seed_count", fields)


def seeding(
    ledger: Ledger, call: str, original: Callable[..., Any], keyword: str = "seed", depth: int = 1
) -> Callable[..., Any]:
    """Return a function whose first argument is a seed: written down, and called with the value to be given."""

    def seed(*arguments: Any, **keywords: Any) -> Any:
        asked = arguments[0] if arguments else keywords.get(keyword)
        text: Text = lambda value: _arguments(value, arguments, keywords, keyword)  # noqa: E731
        given = ledger.seed(call, asked, _seen_through(sys._getframe(depth)), text)
        if given is not asked and arguments:
            arguments = (given, *arguments[1:])
        elif given is not asked:
            keywords[keyword] = given
        return ledger.within(original, arguments, keywords)

    return seed


def seeding_method(ledger: Ledger, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for a method that takes a seed and nothing else."""

    def seed(owner: Any, *arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 1:
            arguments = (ledger.seed(call, arguments[0], sys._getframe(1)),)
        elif "seed" in keywords:
            keywords["seed"] = ledger.seed(call, keywords["seed"], sys._getframe(1))
        return original(owner, *arguments, **keywords)

    return seed


def described(value: object) -> str:
    """Return the value as text that repeats: an address in it would not."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"<int of {value.bit_length()} bits>"
    if isinstance(value, (str, bytes, bytearray)):
        value = value[:MAX_ARGUMENT]
    text = repr(value)
    return f"<{type(value).__qualname__}>" if " at 0x" in text else text[:MAX_ARGUMENT]


def _arguments(value: object, arguments: tuple[Any, ...], keywords: dict[str, Any], keyword: str) -> str:
    """Return the arguments of a call as text, with this value for the seed."""
    named = keywords if arguments else {**keywords, keyword: value}
    parts = [described(part) for part in ((value, *arguments[1:]) if arguments else ())]
    return ", ".join(parts + [f"{key}={described(named[key])}" for key in named])[:MAX_ARGUMENT]


def _origin(caller: FrameType) -> FrameType | None:
    """Who seeds: the caller, or the script that it acts for; None where a library seeds many parts of one estimator."""
    while _package(caller) == _OWN and caller.f_back is not None:  # another adapter stands in between
        if caller.f_globals.get("__name__") == _FROM_OUTSIDE:
            return None
        caller = caller.f_back
    if _package(caller) not in _ON_BEHALF:
        return caller
    frame: FrameType | None = caller
    called = False
    for _ in range(MAX_FRAMES):
        if frame is None or _package(frame) not in _BETWEEN:
            break
        if called and frame.f_globals.get("__name__") in _DRAWN_BY:
            return None
        called = called or _package(frame) == _CALLED_BY
        frame = frame.f_back
    return frame if frame is not None and _is_script(frame) else None


def _is_script(frame: FrameType) -> bool:
    """Return whether it is neither a library nor an import that runs a library."""
    file = frame.f_code.co_filename
    return not (installed_package(file) or file.startswith("<frozen") or _package(frame) in _FRAMEWORKS)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _seen_through(caller: FrameType) -> FrameType:
    while str(caller.f_globals.get("__name__", "")).startswith(_SEE_THROUGH) and caller.f_back is not None:
        caller = caller.f_back
    return caller


def _is_process_id(asked: Any) -> bool:
    """Return whether it is this process's: in a container another one of the recording may have had it."""
    return type(asked) is int and asked == os.getpid()


def _on_command_line(asked: Any) -> bool:
    """Return whether the user asks for this very seed: a replay may be given another command."""
    text = asked if isinstance(asked, str) else described(asked)
    return any(text == part or part.endswith("=" + text) for part in getattr(sys, "argv", ()))


def _rebuilt(recorded: bytes, asked: Any) -> Any:
    """Return the recorded value, where it is one of the same type: another might not be taken."""
    import json

    value = decode(json.loads(recorded))
    return value if type(value) is type(asked) else asked


# Which thread and line a seeding call counts for where joblib takes its tasks from a generator.
#
# The first tasks are taken by the script's thread. The others are taken as workers become free, by a thread of
# joblib's, from which no frame leads back to the script. How many are taken by which thread is a race; in which order
# is not, as joblib takes one after another. So all that the generator seeds counts for the thread that took its first
# task, and where a library seeds in it, for the line of the script that called joblib or the library.


class JoblibTasks:
    """The tasks of this process' joblib.Parallel objects."""

    def __init__(self) -> None:
        self._places: Any = weakref.WeakKeyDictionary()  # by Parallel

    def forget(self) -> None:
        """In a forked child: these are the parent's."""
        self._places.clear()

    def place(self, caller: FrameType, origin: FrameType, thread: str) -> Caller:
        """Thread, file and line that a call counts for, of who seeds and for whom: its own, unless joblib took it."""
        own = (thread, origin.f_code.co_filename, origin.f_lineno or 0)
        if "joblib.parallel" not in sys.modules:
            return own
        frame, is_inside = _taking(caller, origin)
        if frame is None:
            return own
        parallel, taker = frame.f_locals["self"], frame.f_back
        if taker is None or taker.f_code.co_name != _TAKES_NEXT:
            self._places[parallel] = own
            return own
        first: Caller = self._places.get(parallel, own)
        return (first[0], *own[1:]) if is_inside else first


def _taking(caller: FrameType, origin: FrameType) -> tuple[FrameType | None, bool]:
    """Return where a Parallel is taking a task, if the caller makes one, and whether the origin is within that."""
    frame: FrameType | None = caller
    is_inside = False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == _TAKES and frame.f_globals.get("__name__") == "joblib.parallel":
            return frame, is_inside
        is_inside = is_inside or frame is origin
        frame = frame.f_back
    return None, False
