"""Declares what a replay is asked: which steps it watches, and what it records of them in addition."""

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
    place: tuple[str, int] | tuple[()]  # file and line; empty if no code of the user is on the stack


class OperatorQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Each call of an operator is logged, with digests of its inputs and outputs."""

    keep: KeptOperator | None = None
    eager: bool = False  # compiled code is executed operator by operator, which is another computation


class StateQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What state the first steps find: their digests; once the state itself; or parts of another run's, put in."""

    every: int = 0  # interval in steps, to the end; each part then has one digest and the batch none
    keeps: bool = False  # save the state before the first step, and the batches of all steps
    put: str = ""  # directory of a replay's saved state, of which parts are restored before the first step
    parts: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # of the script that are restored, if they are among the parts
    resumed: Mapping[str, str] = {}  # those of the resumed script, as they were logged: equal ones are not saved
    fetched: Mapping[str, int] = {}  # number of batches, by place, that this run fetches before its first step
    calls: int = 0  # last calls of models in the first step, before which its state is read; 0: all of them


class InterruptionAsked(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that takes steps is to end itself, and by which signal."""

    at: int | None = None  # after this many steps
    pattern: str = ""  # or after the first step at whose end a new file matches this pattern
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
    reductions: tuple[str, ...] = ()  # reductions that are saved in place of the values


class TensorSelection(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved of a training's tensors."""

    rules: tuple[TensorRule, ...]
    buffer: int = BUFFER  # bytes of values that may wait to be written

    @property
    def steps(self) -> StepRange:
        """Return the range from the first to the last step of all rules."""
        spans = [span for rule in self.rules for span in rule.steps]
        lasts = [span.last for span in spans if span.last is not None]
        return StepRange(first=min(span.first for span in spans), last=max(lasts) if len(lasts) == len(spans) else None)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a run keep beside the rest; it stands in plan.json as it is."""

    steps: StepRange = StepRange()
    to_end: bool = False  # whether the replay continues after these steps
    each_step: bool = False  # trail: digest in every step what is otherwise digested in some (TensorFlow's weights)
    operators: OperatorQuestion | None = None
    state: StateQuestion | None = None
    interrupt: InterruptionAsked | None = None
    tensors: TensorSelection | None = None
    may_stop: bool = False  # the launcher may interrupt the training at any time
