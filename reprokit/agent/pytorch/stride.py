"""Which steps the trail looks at, if it was asked for one in so many: the first ones, and each further multiple.

Two recordings with other strides, both powers of two, have steps in common. In the steps between, the trail hears of
nothing. Only how often the parameters were changed is noted, by compiled code, in each step.

An automatic stride is chosen per optimizer, once it has made some steps: so that the trail takes a small part of the
time. That is the thread's processor time, on which other programs have no influence, and which is neither recorded nor
replayed. A replay measures, too, so that it allocates what its recording did, and takes the stride that is written in
the recording's trail.
"""

from __future__ import annotations

from time import thread_time_ns

from ..events.steps import (
    BatchFetched,
    LossComputed,
    ModelCalled,
    OptimizerEnded,
    OptimizerMade,
    StepsReached,
    UpdateDone,
    UpdateDue,
)
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from ..events.steps import Handler, TrainingEvent

    class StridingTrail(Protocol):
        """What a stride asks of its trail."""

        def stride_changed(self, hears_steps: bool) -> None:
            """Hear of the next step, or not."""

        def stride_chosen(self, record: Any) -> None:
            """Write down the stride of an optimizer."""

        def rearrange(self) -> None:
            """Let the handlers be timed, or no longer."""


ALWAYS = 16  # first steps of an optimizer that the trail looks at in any case
PASSED_OVER = frozenset([BatchFetched, ModelCalled, LossComputed, UpdateDue, UpdateDone])
MEASURED = 64  # first steps with an automatic stride, of which those after ALWAYS are measured
BLOCK = 8  # steps that are measured together
SHARE = 0.03  # of the time of a step without the trail: what the trail may take
# Nanoseconds that a step which the trail looks at takes outside of its handlers: events are made and told for it alone,
# by code that the steps between have driven out of the caches. Measured by benchmarks.recording_in_turn.
OUTSIDE = 200_000
LONGEST = 256  # steps
NEVER = 1 << 62  # more steps than a training has


class TrailCost:
    """The time in the trail's handlers, and the share of it in blocks of an optimizer's steps."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        self.marks: dict[Any, list[tuple[int, int]]] = {}  # by optimizer: the clock, and the time in handlers

    def timed(self, handler: Handler) -> Handler:
        """Return a handler whose time is counted."""

        def handle(event: Any) -> object:
            begin = thread_time_ns()
            try:
                return handler(event)
            finally:
                self.nanoseconds += thread_time_ns() - begin

        return handle

    def mark(self, record: Any) -> None:
        """Note the end of a block of steps."""
        self.marks.setdefault(record, []).append((thread_time_ns(), self.nanoseconds))

    def stride(self, record: Any) -> int:
        """Return the least power of two by which the trail takes at most its share; 1 if the clock stood still."""
        marks = self.marks.pop(record, [])
        shares = [_share(*earlier, *later) for earlier, later in zip(marks, marks[1:])]
        wanted = sorted(shares)[len(shares) // 2] / SHARE if shares else 0.0
        every = 1
        while every < min(wanted, LONGEST):
            every *= 2
        return every


def _share(start: int, used_before: int, end: int, used: int) -> float:
    """Return the trail's time by that of the rest of a block, of which at least a tenth is not the trail's."""
    inside = used - used_before
    return (inside + BLOCK * OUTSIDE) / max(end - start - inside, (end - start) / 10) if end > start else 0.0


class TrailStride:
    """A listener that says whether the trail hears of the next step.

    ``every`` is 0 for automatic strides: chosen by measurement, or those that ``given()`` has by the optimizers' names
    in a replay, which obeys its recording; it returns None in a recording.
    """

    def __init__(
        self,
        every: int,
        given: Callable[[], Mapping[str, int] | None],
        compiled: Any,
        trail: StridingTrail,
    ) -> None:
        self._every, self._given, self._trail = every, given, trail
        self.cost = TrailCost()
        self._note_changes = _note_changes if compiled is None else compiled.note_changes
        self.forget()

    def forget(self) -> None:
        """Start anew, in a forked child too: what comes before the first optimizer is heard."""
        self.records: set[Any] = set()  # of optimizers that have not ended
        self.measured: set[Any] = set()  # those of them whose stride is not chosen so far
        self._due: set[Any] = set()  # those whose next step the trail looks at
        self._hear()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            OptimizerMade: self._optimizer_made,
            OptimizerEnded: self._optimizer_ended,
            StepsReached: self._steps_reached,
            UpdateDone: self._note_changes,
        }

    def _optimizer_made(self, event: OptimizerMade) -> None:
        record = event.optimizer
        record.alarm = ALWAYS
        self.records.add(record)
        self._due.add(record)
        self._hear()
        if self._every:
            record.trail.every = self._every
        else:
            self._measure_those(self.measured | {record})

    def _optimizer_ended(self, event: OptimizerEnded) -> None:
        self.records.discard(event.optimizer)
        self._measure_those(self.measured - {event.optimizer})
        self._due.discard(event.optimizer)
        self._hear()

    def _steps_reached(self, event: StepsReached) -> None:
        record, due = event.optimizer, self._due
        if record in self.measured and not self._measure(record):
            return
        every = record.trail.every
        over = record.steps % every
        if over and record.steps >= record.trail.always:
            due.discard(record)
            record.alarm = record.steps - over + every
        elif every == 1:
            record.alarm = NEVER
        else:
            due.add(record)
            record.alarm = record.steps + 1
        self._trail.stride_changed(bool(due))

    def _measure(self, record: Any) -> bool:
        """Measure another block of steps; return whether that was the last one, by which the stride is known."""
        self.cost.mark(record)
        if record.steps < MEASURED:
            record.alarm = record.steps + BLOCK
            return False
        measured, given = self.cost.stride(record), self._given()
        every = measured if given is None else given.get(record.name, 1)
        record.trail.every, record.trail.always = every, MEASURED
        self._measure_those(self.measured - {record})
        if every > 1:
            self._trail.stride_chosen(record)
        return True

    def _measure_those(self, records: set[Any]) -> None:
        """Count the time of the trail's handlers while the stride of an optimizer is to be chosen."""
        has_changed, self.measured = bool(records) is not bool(self.measured), records
        if has_changed:
            self.cost.marks = {}
            self._trail.rearrange()

    def _hear(self) -> None:
        self._trail.stride_changed(bool(self._due or not self.records))


def _note_changes(event: UpdateDone) -> None:
    """Note how often the parameters of an optimizer were changed, as native/python/trail.c does."""
    event.optimizer.change_count = private_api.changes_of(event.optimizer.parameters())
