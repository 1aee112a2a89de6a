"""Compares the environment variables that the user's code read, by name and keyed digest, never by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reprokit.core.difference import Difference, Verdict, information
from reprokit.verify.categories.match import RunPair
from reprokit.verify.read.scan import VariableStates

NAME = "script variable"
RENDEZVOUS = frozenset({"MASTER_ADDR", "MASTER_PORT"})


class VariableRead(NamedTuple):
    """A variable that was read, in words."""

    name: str
    where: str  # first place that read it
    state: str  # "set", "unset", or both in turn


def listed(reads: dict[str, VariableStates]) -> list[VariableRead]:
    """Return the variables that a run's code read, sorted by name."""
    return [VariableRead(name, states.where, _presence(states)) for name, states in sorted(reads.items())]


def _presence(states: VariableStates) -> str:
    return ", ".join("set" if is_set else "unset" for is_set in sorted(states.presence))


def compare(runs: RunPair, *, is_part: bool = False) -> Iterator[Difference]:
    """Yield a leaf for each variable that differs, and the number of others.

    If the right run is a part of the left one, it need not have read all values that a script gives a variable in turn.
    """
    left, right = runs.left.variables, runs.right.variables
    common = sorted({*left} & {*right})
    is_equal = _is_within if is_part else _same
    differing = [name for name in common if not is_equal(left[name], right[name])]
    unknown = [name for name in common if name not in differing and not _are_comparable(left[name], right[name])]
    if equal := len(common) - len(differing) - len(unknown):
        yield Difference(f"{NAME}s", Verdict.IDENTICAL, f"{equal} the same", f"{equal} the same")
    yield from (_leaf(name, left[name], right[name]) for name in differing)
    if unknown:
        meaning = "digests are missing, or have the key of another recording: compare a recording with its replay"
        yield information(f"{NAME}s that are not comparable", _counted(unknown), "", meaning)
    for variables_here, variables_there, side in ((left, right, "left"), (right, left, "right")):
        if names := sorted({*variables_here} - {*variables_there}):
            meaning = "whether it is read follows from something else"
            yield information(f"{NAME}s that only the {side} run read", _counted(names), "", meaning)


def _are_comparable(left: VariableStates, right: VariableStates) -> bool:
    """Return whether all digests are known and have the same key; true if only the presence was read."""
    return left.keys == right.keys and not (left.is_cut or right.is_cut)


def _same(left: VariableStates, right: VariableStates) -> bool:
    """Return whether nothing comparable differs."""
    return left.presence == right.presence and (not _are_comparable(left, right) or left.digests == right.digests)


def _is_within(left: VariableStates, right: VariableStates) -> bool:
    """Return whether the right run read nothing that the left one did not, as far as that is comparable."""
    return right.presence <= left.presence and (not _are_comparable(left, right) or right.digests <= left.digests)


def _leaf(name: str, left: VariableStates, right: VariableStates) -> Difference:
    texts = _presence(left), _presence(right)
    if texts[0] == texts[1]:
        texts = texts[0], f"{texts[1]} to another value"
    if name in RENDEZVOUS:
        return information(f"{NAME} {name}", *texts, "where ranks meet changes no result")
    meaning = f"can change results: the script reads it at {left.where}"
    return information(f"{NAME} {name}", *texts, meaning, can_change_results=True)


def _counted(names: list[str]) -> str:
    return f"{len(names)}, first {names[0]}"
