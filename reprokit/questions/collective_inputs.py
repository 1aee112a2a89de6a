"""Tells of ranks that diverge after a collective whether its inputs were equal on all ranks, by operator logs.

The logs have the inputs of collectives, but not their outputs, which are complete only after a wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from reprokit.core.printable import listed
from reprokit.questions.operator_divergence import DivergenceKind, ThreadDivergence
from reprokit.questions.operator_logs import OperatorCall, ProcessLog

LIBRARIES = ("c10d::", "_c10d_functional::")
ROOTED = ("broadcast", "scatter")  # collectives that read the inputs of one rank only
LISTED = 8  # ranks in a sentence


def notes(
    divergences: Sequence[ThreadDivergence], left: Mapping[str, ProcessLog], right: Mapping[str, ProcessLog]
) -> Iterator[str]:
    """Yield a sentence for each rank about the last collective before its first divergence."""
    ranks = [name for name in left if name in right and name.startswith("rank")]
    calls = {name: (_collectives(left[name]), _collectives(right[name])) for name in ranks}
    for divergence in divergences:
        before = sum(call.number < divergence.call.number for call in calls.get(divergence.process, ((), ()))[0])
        if divergence.kind is DivergenceKind.OUTSIDE and before:
            yield _sentence(divergence.process, before - 1, calls)


def _collectives(log: ProcessLog) -> list[OperatorCall]:
    """Return the collectives of all threads, in order: all ranks execute the same ones."""
    calls = [call for thread in log.threads.values() for call in thread if call.operator.name.startswith(LIBRARIES)]
    names = ((call, call.operator.name.partition("::")[2]) for call in calls)
    return sorted((call for call, name in names if not name.startswith(ROOTED)), key=lambda call: call.number)


def _sentence(process: str, number: int, calls: Mapping[str, tuple[list[OperatorCall], list[OperatorCall]]]) -> str:
    call = calls[process][0][number]
    key = call.operator.name, call.step
    differing, unknown = [], []
    for rank, sides in calls.items():
        pair = [side[number] for side in sides if len(side) > number]
        if [(call.operator.name, call.step) for call in pair] != [key, key]:
            unknown.append(rank)
        elif pair[0].inputs != pair[1].inputs:
            differing.append(rank)
    compared = len(calls) - len(unknown)
    where = f"the last collective before {process} parted, {call.operator.name} in step {call.step}"
    if not differing:
        ranks = f"{'' if unknown else 'all '}{compared} rank{'s' if compared > 1 else ''}"
        rest = f", and is not known of {listed(unknown, LISTED)}" if unknown else ""
        return f"{where}, was given equal inputs on {ranks}{rest}"
    return f"{where}, was given other inputs on {listed(differing, LISTED)}" + (
        f", equal ones on the other {compared - len(differing)}" if compared > len(differing) else ""
    )
