"""Compares the states of random generators at the end of each process."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from reprokit.core.difference import Difference, Role, group
from reprokit.verify.categories.match import RunPair, SeriesPair
from reprokit.verify.categories.processes import marked_if_stopped
from reprokit.verify.categories.series_leaves import LineWording, at_end, leaf

NAME = "random states"
_IN_TRAILS = {"random": "python"}  # generators with another name in trails


def compare(runs: RunPair, idle: Set[tuple[str, str]] = frozenset()) -> Difference:
    """Return a leaf for each generator; `idle` ones differ, but no step of a trail drew from them."""
    return group(NAME, tuple(_state(runs, pair, idle) for pair in runs.of("random_state")))


def _state(runs: RunPair, pair: SeriesPair, idle: Set[tuple[str, str]]) -> Difference:
    result = leaf(pair, _WORDING)
    if (pair.key.process, _IN_TRAILS.get(pair.key.name, pair.key.name)) in idle:
        result = replace(result, role=Role.IDLE)
    return marked_if_stopped(runs, pair, result)


_WORDING = LineWording("random state", "digest", at_end, lambda line: str(line["digest"]))
