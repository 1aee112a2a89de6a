"""Answers what state the first steps of a training find, keeps it, or puts in parts of what another run has kept.

The state of a step is taken where a model is first called for it: all that was loaded is in its place, and nothing of
the step has changed it yet.
"""

from __future__ import annotations

import hashlib

from ..capture import numeric_variable
from ..capture.store import PREFIX, Part, SnapshotContents, SnapshotFile, Store
from ..core.json_text import to_json
from ..core.signal_errors import pass_on
from ..observing.files import append
from .step_window import StepWindow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..agent import Agent
    from ..events import EventListener, Events

PARAMETERS, BUFFERS, DATA = "parameters", "buffers", "data"
OPTIMIZER, SETTINGS, SCALER = "optimizer", "settings", "scaler"
ALL = "*"  # names what stands for all tensors and values of a part
LOGGED = 16  # steps whose state is digested
FILE = "state.jsonl"


def listener(agent: Agent, question: Mapping[str, Any], framework: str, events: Events) -> EventListener | None:
    """Return who answers for a framework."""
    answers = StateAnswers(agent, question)
    if framework == "torch":
        from .pytorch_state import PytorchState

        return PytorchState(agent, answers)
    if framework == "tensorflow":
        from .keras_state import KerasState

        return KerasState(agent, answers, events)
    return None


def short(digest: str) -> str:
    """Return as much of a digest as is needed to tell two values apart."""
    return digest.rpartition(":")[2][:16]


def text_short(text: str) -> str:
    """Return the digest of something that has a text."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def state_digest(state: Any) -> str:
    """Return the digest of what a generator says of its state: numbers and arrays in tuples and lists."""
    if isinstance(state, (list, tuple)):
        return text_short(" ".join(map(state_digest, state)))
    return text_short(repr(state.tolist() if hasattr(state, "tolist") else state))


class StateAnswers:
    """What was asked of this process, and where its answers go."""

    def __init__(self, agent: Agent, question: Mapping[str, Any]) -> None:
        asked = question["state"]
        self.window = StepWindow(question["steps"])
        self.first = int(question["steps"]["first"])
        self.every: int = asked["every"]
        self.keeps: bool = asked["keeps"]
        self.parts = frozenset(asked["parts"])
        self.fetched: Mapping[str, int] = asked["fetched"]
        self._agent, self._put = agent, asked["put"]
        self._answers = f"{agent.run}/answers"

    @property
    def is_first(self) -> bool:
        """Whether the first of the steps asked about is under way."""
        return self.window.step == self.first

    @property
    def is_logged(self) -> bool:
        """Whether the state of the step under way is digested."""
        if self.every:
            return self.window.is_open and self.window.step % self.every == 0
        return self.window.is_open and self.window.step < self.first + LOGGED

    def log(self, **fields: object) -> None:
        """Write a line about the step under way."""
        line = {"process": self._agent.journal.identity, "step": self.window.step, **fields}
        append(f"{self._answers}/{FILE}", to_json(line).encode() + b"\n")

    def log_parts(self, parts: dict[str, dict[str, str]], **fields: object) -> None:
        """Write the digests of the state that the step under way finds."""
        if self.every:
            parts = {part: {ALL: text_short(" ".join(parts[part].values()))} for part in parts if part != DATA}
        self.log(parts=parts, **fields)

    def attempt(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what may fail on what a script made; say so then."""
        try:
            return function(*arguments)
        except Exception as error:
            self.log(problem=f"{what}: {type(error).__name__}: {error}"[:500])
            pass_on(error)
            return None

    def save(self, kind: str, header: Mapping[str, Any], parts: Iterable[Part]) -> None:
        """Keep values and tensors."""
        Store(f"{self._answers}/{kind}").save(SnapshotContents({**self._who(), **header}, list(parts)))

    def kept(self, kind: str) -> SnapshotFile | None:
        """Return what another run has kept for a process like this; None where nothing is to be put in."""
        if not self._put:
            return None
        who = self._who()
        rank = "" if who["rank"] is None else f"-rank{who['rank']}"
        return SnapshotFile(f"{self._put}/{kind}/{PREFIX}{0:08d}{rank}")

    def _who(self) -> dict[str, Any]:
        return {"step": 0, "rank": numeric_variable("RANK")}
