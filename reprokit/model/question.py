"""A question put to a replay: which steps are watched, and what of them is kept beside the run's own records."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

BUFFER = 256 << 20


class StepRange(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a training, both ends included: step n is under way once some optimizer has made n updates."""

    first: int = 0
    last: int | None = None  # None: to the end


class KeptOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator whose calls at a place of the user's code are kept whole."""

    operator: str
    place: tuple[str, int] | tuple[()]  # file and line; none: where no code of the user's is


class OperatorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Each call of an operator is logged, with digests of its inputs and outputs."""

    keep: KeptOperator | None = None
    eager: bool = False  # what compilers made is executed operator by operator, which is another computation


class StateQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What state the first steps find: their digests; once the state itself; or parts of another run's, put in."""

    every: int = 0  # of every so manyth step, to the end, each part has one digest and the batch none
    keeps: bool = False  # keep the state that the first step finds, and the batches of all steps
    put: str = ""  # answers of a replay that kept its own, of which the first step gets parts
    parts: tuple[str, ...] = ()
    fetched: Mapping[str, int] = {}  # batches by place, that this run fetches until its first step


class InterruptionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that takes steps is to end itself, and by which signal."""

    at: int | None = None  # once it has taken so many steps
    pattern: str = ""  # or after the first step at whose end there is a new file of such a path
    signal: int = 2


class StepSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Every so manyth step from the first to the last of them."""

    first: int = 0
    last: int | None = None  # None: to the end
    every: int = 1


class TensorRule(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that are saved: those of a collection, and those in whose names a regular expression is found."""

    collections: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    steps: tuple[StepSpan, ...] = (StepSpan(),)
    modes: tuple[str, ...] = ("train",)
    reductions: tuple[str, ...] = ()  # what is saved in place of the values


class TensorSelection(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved of a training's tensors."""

    rules: tuple[TensorRule, ...]
    buffer: int = BUFFER  # bytes of values that are not yet written

    @property
    def steps(self) -> StepRange:
        """From the first to the last step that any rule is about."""
        spans = [span for rule in self.rules for span in rule.steps]
        lasts = [span.last for span in spans if span.last is not None]
        return StepRange(first=min(span.first for span in spans), last=max(lasts) if len(lasts) == len(spans) else None)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a run keep beside the rest; it stands in plan.json as it is."""

    steps: StepRange = StepRange()
    to_end: bool = False  # the replay goes on when these steps are over
    each_step: bool = False  # the trail has of each step what it has of some only, as TensorFlow's of weights
    operators: OperatorQuestion | None = None
    state: StateQuestion | None = None
    interrupt: InterruptionAsked | None = None
    tensors: TensorSelection | None = None
    may_stop: bool = False  # the launcher may interrupt the training at any time
