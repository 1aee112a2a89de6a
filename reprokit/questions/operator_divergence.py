"""Finds the first operator call by which two replays part: in each process, thread by thread, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from reprokit.questions.operator_logs import NO_OUTPUTS, OperatorCall, ProcessLog

LOOKED_AHEAD = 20_000  # calls, for those that both replays make again
CONFIRMING = 8  # calls in a row that are the same, by which a path is known to be common again


class DivergenceKind(Enum):
    """How two replays part. Of several kinds in one step the first one here is reported."""

    RESULT = "result"  # a call gave another result on equal inputs
    OUTSIDE = "outside"  # inputs of a call differ that no call before gave
    PATH = "path"  # other calls were made


@dataclass(frozen=True)
class ThreadDivergence:
    """The first call by which one thread of two replays parts."""

    kind: DivergenceKind
    process: str
    thread: str
    call: OperatorCall  # the left one's; for a path the first that only one of both makes
    other: OperatorCall | None  # the right one's
    before: OperatorCall | None  # the last one that both have alike
    position: int  # of the call in its step, in this thread
    more: int = 0  # calls that only one of both makes there; negative: the left one
    calls: int = 0  # compared, in all threads of the process
    varying: int = 0  # of them, those that gave another result on equal inputs

    @property
    def order(self) -> tuple[int, int, int]:
        """The key by which the first of several divergences is chosen."""
        return self.call.step, list(DivergenceKind).index(self.kind), self.call.number


def first_of_each(left: Mapping[str, ProcessLog], right: Mapping[str, ProcessLog]) -> list[ThreadDivergence]:
    """Return the first divergence of each process that has one, the earliest first."""
    divergences = []
    for identity in left.keys() & right.keys():
        threads = left[identity].threads, right[identity].threads
        parted = [_of_thread(identity, name, threads[0][name], threads[1][name]) for name in _common(*threads)]
        by_order = sorted(
            (divergence for divergence, _, _ in parted if divergence is not None),
            key=lambda divergence: divergence.order,
        )
        calls, varying = sum(calls for _, calls, _ in parted), sum(varying for _, _, varying in parted)
        divergences += [replace(divergence, calls=calls, varying=varying) for divergence in by_order[:1]]
    return sorted(divergences, key=lambda divergence: (divergence.order[:2], divergence.process))


def compared_calls(left: Mapping[str, ProcessLog], right: Mapping[str, ProcessLog]) -> int:
    """Return how many calls both replays have logged."""
    return sum(
        min(len(left[identity].threads[name]), len(right[identity].threads[name]))
        for identity in left.keys() & right.keys()
        for name in _common(left[identity].threads, right[identity].threads)
    )


def _common(left: Mapping[str, Sequence[OperatorCall]], right: Mapping[str, Sequence[OperatorCall]]) -> list[str]:
    return [name for name in left if name in right]


def _of_thread(
    process: str, thread: str, left: Sequence[OperatorCall], right: Sequence[OperatorCall]
) -> tuple[ThreadDivergence | None, int, int]:
    """Return the first divergence, and how many calls were compared and gave another result on equal inputs."""
    divergence: ThreadDivergence | None = None
    calls = varying = 0
    for position, (left_call, right_call) in enumerate(zip(left, right, strict=False)):
        if left_call.key != right_call.key:
            return divergence or _path(process, thread, (left, right), position), calls, varying
        calls += 1
        if left_call.flags & NO_OUTPUTS or left_call.outputs == right_call.outputs:
            continue
        is_result = left_call.inputs == right_call.inputs
        varying += is_result
        if divergence is None:
            kind = DivergenceKind.RESULT if is_result else DivergenceKind.OUTSIDE
            before = left[position - 1] if position else None
            divergence = ThreadDivergence(
                kind, process, thread, left_call, right_call, before, _in_step(left, position)
            )
    return divergence or _longer(process, thread, left, right), calls, varying


def _in_step(calls: Sequence[OperatorCall], position: int) -> int:
    """Return which call of its step it is, from 0 on."""
    step, first = calls[position].step, position
    while first and calls[first - 1].step == step:
        first -= 1
    return position - first


def _path(
    process: str, thread: str, sides: tuple[Sequence[OperatorCall], Sequence[OperatorCall]], position: int
) -> ThreadDivergence:
    """Return what only one of both does from here on, as far as they come together again."""
    left, right = sides
    more = 0
    for ahead in range(1, LOOKED_AHEAD):
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
    in_step = _in_step(right if more > 0 else left, position)
    return ThreadDivergence(DivergenceKind.PATH, process, thread, first, other, before, in_step, more)


def _agree(left: Sequence[OperatorCall], at: int, right: Sequence[OperatorCall], other: int) -> bool:
    pairs = list(zip(left[at : at + CONFIRMING], right[other : other + CONFIRMING], strict=False))
    return bool(pairs) and all(_same_call(left_call, right_call) for left_call, right_call in pairs)


def _same_call(left_call: OperatorCall, right_call: OperatorCall) -> bool:
    return left_call.operator.key == right_call.operator.key and left_call.place == right_call.place


def _longer(
    process: str, thread: str, left: Sequence[OperatorCall], right: Sequence[OperatorCall]
) -> ThreadDivergence | None:
    """Return what the longer of both goes on with, in a thread that takes steps: others may be ended at any call."""
    position = min(len(left), len(right))
    longer = left if len(left) > position else right
    if len(longer) == position or not longer[position].step:
        return None
    more = len(right) - len(left)
    before = left[position - 1] if position else None
    in_step = _in_step(longer, position)
    return ThreadDivergence(DivergenceKind.PATH, process, thread, longer[position], None, before, in_step, more)
