"""The settings of captures: what is captured, and what happens then, parsed from plan.json."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

STOP, SKIP, ROLLBACK = "stop", "skip", "rollback"
ACTIONS = (STOP, SKIP, ROLLBACK)
ACTIVATIONS, LOSS, JUMP = "activations", "loss>", "gradient-jump>"
# Values of "condition" in a trigger of kind "condition": the quantity beyond its limit, or another rank.
LOSS_ABOVE, GRADIENT_JUMP, GRADIENT_SCALE, OTHER_RANK = "loss-above", "gradient-jump", "gradient-scale", "other-rank"
ASKED = "asked"  # of a step whose snapshot was asked for, although nothing in it was wrong
# Why a framework's steps are not captured: values in the journal and run.json, and texts for them.
NEEDS_TENSORFLOW_2 = "needs-tensorflow-2"
NEEDS_KERAS_ON_TENSORFLOW = "needs-keras-on-tensorflow"
NEEDS_OTHER_FRAMEWORK = "needs-other-framework"
NEEDS_CAPTURE, NEEDS_JIT, NEEDS_ONE_DEVICE = "needs-capture", "needs-jit", "needs-one-device"  # of JAX
UNAVAILABLE = {
    NEEDS_TENSORFLOW_2: "captures need TensorFlow 2",
    NEEDS_KERAS_ON_TENSORFLOW: "captures need Keras on TensorFlow",
    NEEDS_OTHER_FRAMEWORK: "snapshots of any step need PyTorch or TensorFlow",
    NEEDS_CAPTURE: "skip and rollback need PyTorch or TensorFlow; --on-nan capture works",
    NEEDS_JIT: "captures need steps that are calls of a jitted function",
    NEEDS_ONE_DEVICE: "captures need arrays on one device",
}


class Conditions:
    """The conditions under which steps are captured, beside gradients and losses that are not finite."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words = tuple(words)
        self.activations = False  # also if a module's or layer's output is not finite
        self.loss_above: float | None = None
        self.gradient_jump: float | None = None  # times the running mean of the norm of all gradients
        for word in self.words:
            self._add("".join(word.split()))

    def _add(self, word: str) -> None:
        if word == ACTIVATIONS:
            self.activations = True
        elif word.startswith(LOSS):
            self.loss_above = _number(word, LOSS)
        elif word.startswith(JUMP):
            self.gradient_jump = _number(word, JUMP)
        else:
            raise ValueError(f"{word!r} is no condition; write {LOSS}X, {JUMP}X or {ACTIVATIONS}")


def _number(word: str, start: str) -> float:
    """Return the finite number after a condition's name."""
    try:
        number = float(word[len(start) :])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{word!r}: write a finite number after {start}")
    return number


@dataclass
class RedoOptions:
    """Options of a process that re-executes a captured step, as its first step."""

    mode: str  # "reproduce", "minimize" or "explain"
    snapshot: str  # path of its directory
    result: str  # path of the JSON file to write
    progress: str | None = None  # path of a file to which each trial adds a line
    trials: list[Any] = field(default_factory=list)
    in_place: bool = False  # not as the first step, but where a replay of the recording reaches it


@dataclass
class CaptureSettings:
    """The options of captures."""

    directory: str  # of the snapshots
    action: str = STOP
    max_snapshots: int = 3
    max_bytes: int | None = None  # of one snapshot; None: what the disk has free
    fallback: str | None = None  # another directory, if the disk is full
    conditions: Any = ()  # texts; converted to Conditions
    rollback_every: int = 100  # steps between two states to roll back to
    take: int | None = None  # in a replay: the one step that is captured, whatever is in it
    take_from: int = 0  # the first step that this replay computes; it is fast-forwarded to it
    redo: RedoOptions | None = None
    library: str | None = None  # path of libreprokit_trail.so, if it was built

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"{self.action!r} is no action; choose one of {', '.join(ACTIONS)}")
        self.conditions = Conditions(self.conditions)

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> CaptureSettings:
        """Return the settings under "capture" of plan.json."""
        redo = plan.get("redo")
        return cls(**{**plan, "redo": None if redo is None else RedoOptions(**redo)})
