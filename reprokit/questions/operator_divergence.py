"""Finds the first operator call in which two replays diverge: in each process, thread by thread, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from reprokit.questions.operator_logs import NO_OUTPUTS, UNREAD, OperatorCall, ProcessLog

MAX_AHEAD = 20_000  # calls searched for those that both replays make again
CONFIRMING = 8  # equal calls in a row that show a common path again


class DivergenceKind(Enum):
    """How two replays diverge. If several kinds occur in one step, the first in this order is reported."""

    RESULT = "result"  # a call has different outputs for equal inputs
    OUTSIDE = "outside"  # inputs of a call differ, although no output of an earlier call does
    PATH = "path"  # different calls were made


@dataclass(frozen=True)
class ThreadDivergence:
    """The first call in which one thread of two replays diverges."""

    kind: DivergenceKind
    process: str
    thread: str
    call: OperatorCall  # of the left replay; of a path, the first call that only one replay makes
    other: OperatorCall | None  # of the right replay
    before: OperatorCall | None  # the last call before it, which both replays have
    position: int  # index in its step, in this thread
    more: int = 0  # number of calls that only the right replay makes; negative: the left
    calls: int = 0  # number compared, in all threads of the process
    varying: int = 0  # number of those with different outputs for equal inputs

    @property
    def has_unread_values(self) -> bool:
        """Whether a tensor of the call could not be read in one of the replays, and is not in its digests."""
        return any(call is not None and call.flags & UNREAD for call in (self.call, self.other))

    @property
    def has_other_program(self) -> bool:
        """Whether the call executes a function that both replays compiled to different code."""
        programs = {call.operator.attributes.get("program") for call in (self.call, self.other) if call is not None}
        return len(programs) > 1

    @property
    def order(self) -> tuple[int, int, int]:
        """The sort key by which the first of several divergences is selected."""
        return self.call.step, list(DivergenceKind).index(self.kind), self.call.number


def first_of_each(
    left: Mapping[str, ProcessLog], right: Mapping[str, ProcessLog], *, since: Mapping[str, int] | None = None
) -> list[ThreadDivergence]:
    """Return the first divergence of each process that has one, the earliest first.

    Until the step of `since`, by process, the results of all steps are equal: what differs before has no effect on
    them, nor has what the same calls make later, where another call differs too.
    """
    divergences = []
    for identity in left.keys() & right.keys():
        threads = left[identity].threads, right[identity].threads
        first = (since or {}).get(identity, 0)
        results = [_of_thread(identity, name, threads[0][name], threads[1][name], first) for name in _common(*threads)]
        by_order = sorted(
            (divergence for divergence, _, _ in results if divergence is not None),
            key=lambda divergence: divergence.order,
        )
        calls, varying = sum(calls for _, calls, _ in results), sum(varying for _, _, varying in results)
        divergences += [replace(divergence, calls=calls, varying=varying) for divergence in by_order[:1]]
    return sorted(divergences, key=lambda divergence: (divergence.order[:2], divergence.process))


def compared_calls(left: Mapping[str, ProcessLog], right: Mapping[str, ProcessLog]) -> int:
    """Return how many calls both replays have in common."""
    return sum(
        min(len(left[identity].threads[name]), len(right[identity].threads[name]))
        for identity in left.keys() & right.keys()
        for name in _common(left[identity].threads, right[identity].threads)
    )


def _common(left: Mapping[str, Sequence[OperatorCall]], right: Mapping[str, Sequence[OperatorCall]]) -> list[str]:
    return [name for name in left if name in right]


def _of_thread(
    process: str, thread: str, left: Sequence[OperatorCall], right: Sequence[OperatorCall], since: int = 0
) -> tuple[ThreadDivergence | None, int, int]:
    """Return the first divergence, the number of calls compared, and how many differ on equal inputs.

    Calls that differ before the step `since` have no effect; the same calls are the first later only if no other is.
    """
    divergence: ThreadDivergence | None = None
    without_effect: set[tuple[object, ...]] = set()
    of_those: ThreadDivergence | None = None
    calls = varying = 0
    for position, (left_call, right_call) in enumerate(zip(left, right, strict=False)):
        if not left_call.is_same(right_call):
            return divergence or _path(process, thread, (left, right), position), calls, varying
        calls += 1
        if left_call.flags & NO_OUTPUTS or left_call.outputs == right_call.outputs:
            continue
        is_result = left_call.inputs == right_call.inputs
        varying += is_result
        if left_call.step < since and is_result:
            continue  # an operator that varies by itself may have an effect another time
        if left_call.step < since:
            without_effect.add((left_call.operator.name, left_call.place))
        elif divergence is None:
            kind = DivergenceKind.RESULT if is_result else DivergenceKind.OUTSIDE
            before = left[position - 1] if position else None
            found = ThreadDivergence(
                kind, process, thread, left_call, right_call, before, _position_in_step(left, position)
            )
            if (left_call.operator.name, left_call.place) in without_effect:
                of_those = of_those or found
            else:
                divergence = found
    return divergence or of_those or _trailing_calls(process, thread, left, right), calls, varying


def _position_in_step(calls: Sequence[OperatorCall], position: int) -> int:
    """Return the index of a call in its step."""
    step, first = calls[position].step, position
    while first and calls[first - 1].step == step:
        first -= 1
    return position - first


def _path(
    process: str, thread: str, sides: tuple[Sequence[OperatorCall], Sequence[OperatorCall]], position: int
) -> ThreadDivergence:
    """Return the calls that only one replay makes from here on, until both make the same calls again."""
    left, right = sides
    more = 0
    for ahead in range(1, MAX_AHEAD):
        if _agree(left, position, right, position + ahead):
            more = ahead
            break
        if _agree(left, position + ahead, right, position):
            more = -ahead
            break
        if max(len(left), len(right)) < position + ahead:
            break
    call, other = left[position], right[position]
    first = other if more > 0 else call
    before = left[position - 1] if position else None
    in_step = _position_in_step(right if more > 0 else left, position)
    return ThreadDivergence(DivergenceKind.PATH, process, thread, first, other, before, in_step, more)


def _agree(left: Sequence[OperatorCall], here: int, right: Sequence[OperatorCall], there: int) -> bool:
    pairs = list(zip(left[here : here + CONFIRMING], right[there : there + CONFIRMING], strict=False))
    return bool(pairs) and all(_same_call(left_call, right_call) for left_call, right_call in pairs)


def _same_call(left_call: OperatorCall, right_call: OperatorCall) -> bool:
    return left_call.operator.key == right_call.operator.key and left_call.place.is_same(right_call.place)


def _trailing_calls(
    process: str, thread: str, left: Sequence[OperatorCall], right: Sequence[OperatorCall]
) -> ThreadDivergence | None:
    """Return the further calls of the longer thread, if it takes steps: others may end at any call."""
    position = min(len(left), len(right))
    longer = left if len(left) > position else right
    if len(longer) == position or not longer[position].step:
        return None
    more = len(right) - len(left)
    before = left[position - 1] if position else None
    in_step = _position_in_step(longer, position)
    return ThreadDivergence(DivergenceKind.PATH, process, thread, longer[position], None, before, in_step, more)
