"""Declares what a replay is asked: which steps it watches, and what it records of them in addition."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

BUFFER = 256 << 20
KEYFRAME_BYTES = 2 << 30


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


class DebugAsked(msgspec.Struct, frozen=True, kw_only=True):
    """Where the debugger stops, once the first step of the question begins."""

    at: str = ""  # FILE:LINE
    when: str = ""  # an expression of Python's in the script's frame


class KeyframesAsked(msgspec.Struct, frozen=True, kw_only=True):
    """How often all of the training state is kept, and how many bytes may be."""

    steps: int | None = None  # a keyframe each so many steps
    seconds: float | None = None  # or each so many seconds
    max_bytes: int = KEYFRAME_BYTES
    bound: str = "--keyframe-bytes"  # what sets that limit
    after: int = 0  # of a continued run: the step of the keyframe that it goes on from, which is its first


class RankKeyframe(msgspec.Struct, frozen=True, kw_only=True):
    """The keyframe of a rank, where several processes are fast-forwarded together."""

    process: str
    key: str
    updates: int


class KeyframeStart(msgspec.Struct, frozen=True, kw_only=True):
    """The keyframe to which a replay is fast-forwarded."""

    directory: str  # the recording's keyframes
    key: str  # of the process, as in the names of its files
    step: int  # that begins with the keyframe
    updates: int  # of all optimizers until then
    series: Mapping[str, int] = {}  # steps of each series of the trail until then
    ranks: tuple[RankKeyframe, ...] = ()  # of a distributed training: all of them, the first one as well


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of a run keep beside the rest; it stands in plan.json as it is."""

    steps: StepRange = StepRange()
    to_end: bool = False  # whether the replay continues after these steps
    proved_by: int | None = None  # a later step than their last one, up to which it continues so that the trail has one
    each_step: bool = False  # trail: digest in every step what is otherwise digested in some (TensorFlow's weights)
    eager: bool = False  # compiled code is executed operator by operator, which may compute other bits
    operators: OperatorQuestion | None = None
    state: StateQuestion | None = None
    interrupt: InterruptionAsked | None = None
    tensors: TensorSelection | None = None
    keyframes: KeyframesAsked | None = None
    from_keyframe: KeyframeStart | None = None
    debug: DebugAsked | None = None
    may_stop: bool = False  # the launcher may interrupt the training at any time
