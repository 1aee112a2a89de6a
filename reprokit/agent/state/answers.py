"""Logs the state that the first steps of a training start from, saves it, or restores parts that another run saved.

The state of a step is read when the step first calls a model: all checkpoints are loaded by then, and nothing of
the step has changed the state yet.
"""

from __future__ import annotations

import hashlib
import marshal

from ..capture import numeric_variable
from ..capture.store import PREFIX, Part, SnapshotContents, SnapshotFile, Store
from ..core.digests import array_entry
from ..core.json_text import to_json
from ..core.signal_errors import pass_on
from ..core.state_entries import StateKind
from ..core.step_window import StepWindow
from ..operators.files import append

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..core.state_entries import StateEntry
    from ..events.steps import Handler

NUMBERS = "biufc"  # kinds of NumPy's data types
ALL = "*"  # the name of one digest for all tensors and values of a part
LOGGED = 16  # number of steps whose state is logged, at either end of the question's steps
FILE = "state.jsonl"
_WITHOUT_REFERENCES = 2  # version of marshal's format in which equal values have equal bytes


def shorten(digest: str) -> str:
    """Return the first 16 hexadecimal digits of a digest, which are enough to distinguish two values."""
    return digest.rpartition(":")[2][:16]


def array_text(array: Any) -> str:
    """Return the number in an array of one element; the shortened digest of any other."""
    is_number = array.size == 1 and array.dtype.kind in NUMBERS
    return repr(array.item()) if is_number else "#" + shorten(array_entry("", array)[3])


def text_digest(text: str) -> str:
    """Return the shortened SHA-256 digest of a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def state_digest(state: Any) -> str:
    """Return the digest of a generator's state: numbers, texts and arrays, nested in tuples, lists and dictionaries."""
    return hashlib.sha256(marshal.dumps(_plain(state), _WITHOUT_REFERENCES)).hexdigest()[:16]


def generator_digests(entries: Iterable[StateEntry]) -> dict[str, dict[str, str]]:
    """Return the digests of the states that generators have now, as parts of a state."""
    states = [(entry, entry.read()) for entry in entries]
    return {entry.kind.value: {entry.name: state_digest(state)} for entry, state in states if state is not None}


def _plain(state: Any) -> Any:
    """Return a state with the bytes of its arrays."""
    if isinstance(state, dict):
        return [(_plain(key), _plain(state[key])) for key in state]
    if isinstance(state, (list, tuple)):
        return state if set(map(type, state)) == {int} else list(map(_plain, state))
    array = state.numpy() if hasattr(state, "numpy") else state
    return array.tobytes() if hasattr(array, "tobytes") else array


class StateAnswers:
    """The question about this process's state, and the files that its answers are written to."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        asked = question["state"]
        self.window = StepWindow(question["steps"])
        self.first, self._last = int(question["steps"]["first"]), question["steps"].get("last")
        self.every: int = asked["every"]
        self.saves_state: bool = asked["keeps"]
        self.parts = frozenset(asked["parts"])
        self.variables = frozenset(asked["variables"])
        self.resumed: Mapping[str, str] = asked["resumed"]
        self.fetched: Mapping[str, int] = asked["fetched"]
        self.calls: int = asked["calls"]
        self._agent, self._restore_from = agent, asked["put"]
        self._answers = f"{agent.run}/answers"

    @property
    def is_first(self) -> bool:
        """Whether the current step is the first one that the question is about."""
        return self.window.step == self.first

    @property
    def is_logged(self) -> bool:
        """Whether digests of the current step's state are logged."""
        step = self.window.step
        if self.every:
            return self.window.is_open and step % self.every == 0
        is_at_end = self._last is not None and step > self._last - LOGGED
        return self.window.is_open and (step < self.first + LOGGED or is_at_end)

    def log(self, **fields: object) -> None:
        """Append a line about the current step to the answers."""
        line = {"process": self._agent.journal.identity, "step": self.window.step, **fields}
        append(f"{self._answers}/{FILE}", to_json(line).encode() + b"\n")

    def log_parts(self, parts: dict[str, dict[str, str]], **fields: object) -> None:
        """Log digests of the state that the current step starts from."""
        if self.every:
            parts = {
                part: {ALL: text_digest(" ".join(parts[part].values()))}
                for part in parts
                if part != StateKind.DATA.value
            }
        self.log(parts=parts, **fields)

    def attempt(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that may fail on the script's objects; log its exception and return None then."""
        try:
            return function(*arguments)
        except Exception as error:
            self.log(problem=f"{what}: {type(error).__name__}: {error}"[:500])
            pass_on(error)
            return None

    def failed(self, error: Exception, handler: Handler) -> None:
        """Log that a listener's handler failed: an incomplete state is no answer."""
        self.log(problem=f"{getattr(handler, '__name__', '')}: {type(error).__name__}: {error}"[:500])

    def save(self, kind: str, header: Mapping[str, Any], parts: Iterable[Part]) -> None:
        """Save values and tensors as a snapshot."""
        Store(f"{self._answers}/{kind}").save(SnapshotContents({**self._identity(), **header}, list(parts)))

    def snapshot_to_restore(self, kind: str) -> SnapshotFile | None:
        """Return the snapshot that another run saved for the same rank; None if nothing is to be restored."""
        if not self._restore_from:
            return None
        who = self._identity()
        rank = "" if who["rank"] is None else f"-rank{who['rank']}"
        return SnapshotFile(f"{self._restore_from}/{kind}/{PREFIX}{0:08d}{rank}")

    def _identity(self) -> dict[str, Any]:
        return {"step": 0, "rank": numeric_variable("RANK")}
