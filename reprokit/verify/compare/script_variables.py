"""Compares the environment variables that the user's own code asked for: by name and keyed digest, never by value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from reprokit.difference import Difference, Verdict, information
from reprokit.verify.compare.match import RunPair
from reprokit.verify.read.scan import VariableStates

NAME = "script variable"


class VariableRead(NamedTuple):
    """A variable that was asked for, in words."""

    name: str
    where: str  # the first place
    state: str  # "set", "unset", or both in turn


def listed(reads: dict[str, VariableStates]) -> list[VariableRead]:
    """Return what a run's code asked for, by name."""
    return [VariableRead(name, found.where, _presence(found)) for name, found in sorted(reads.items())]


def _presence(found: VariableStates) -> str:
    return ", ".join("set" if is_set else "unset" for is_set in sorted(found.presence))


def compare(runs: RunPair) -> Iterator[Difference]:
    """One leaf a variable that differs; the others are counted."""
    left, right = runs.left.variables, runs.right.variables
    both = sorted({*left} & {*right})
    differing = [name for name in both if not _same(left[name], right[name])]
    unknown = [name for name in both if name not in differing and not _are_comparable(left[name], right[name])]
    if same := len(both) - len(differing) - len(unknown):
        yield Difference(f"{NAME}s", Verdict.IDENTICAL, f"{same} the same", f"{same} the same")
    yield from (_leaf(name, left[name], right[name]) for name in differing)
    if unknown:
        meaning = "digests are missing, or have the key of another recording: compare a recording with its replay"
        yield information(f"{NAME}s that are not comparable", _counted(unknown), "", meaning)
    for one, other, side in ((left, right, "left"), (right, left, "right")):
        if names := sorted({*one} - {*other}):
            meaning = "whether it is read follows from something else"
            yield information(f"{NAME}s that only the {side} run read", _counted(names), "", meaning)


def _are_comparable(left: VariableStates, right: VariableStates) -> bool:
    """Whether the digests of both are all there and of the same key; true where both were asked for presence alone."""
    return left.keys == right.keys and not (left.is_cut or right.is_cut)


def _same(left: VariableStates, right: VariableStates) -> bool:
    """Return whether nothing that can be compared differs."""
    return left.presence == right.presence and (not _are_comparable(left, right) or left.digests == right.digests)


def _leaf(name: str, left: VariableStates, right: VariableStates) -> Difference:
    texts = _presence(left), _presence(right)
    if texts[0] == texts[1]:
        texts = texts[0], f"{texts[1]} to another value"
    meaning = f"can change results: the script reads it at {left.where}"
    return information(f"{NAME} {name}", *texts, meaning, can_change_results=True)


def _counted(names: list[str]) -> str:
    return f"{len(names)}, first {names[0]}"
