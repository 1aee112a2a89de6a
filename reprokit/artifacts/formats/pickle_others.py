"""Recognises what the standard library writes in more than one way among the nodes of a pickle."""

from __future__ import annotations

import itertools

from reprokit.artifacts.formats.pickle_nodes import Item, Object, Sequence
from reprokit.artifacts.formats.pickle_walk import Made, Seen, Step, Walk

ORDERED = "collections.OrderedDict"


def recognise_others(walk: Walk, path: str, item: Object) -> Seen | None:
    """An OrderedDict, whose items stand below it like those of a dict."""
    if not item.called(ORDERED) or item.keywords is not None or any(how != "set" for how, _, _ in item.changes):
        return None
    pairs = pairs_of(item)
    if pairs is None:
        return None
    later = [(key, value) for _, key, value in item.changes]
    keys = [key for key, _ in [*pairs, *later]]
    made: list[Step] = [("", Made(item))]
    return (
        walk.keyed(path, f"OrderedDict of {len(keys)}", keys),
        itertools.chain(walk.pairs(path, pairs), made, walk.pairs(path, later)),
    )


def pairs_of(item: Object) -> list[tuple[Item, Item]] | None:
    """What it is made with: nothing, or as Python 2 writes it a list of pairs."""
    if not item.arguments:
        return []
    given = item.arguments[0]
    if len(item.arguments) != 1 or not isinstance(given, Sequence) or given.kind != "list":
        return None
    pairs = [pair.items for pair in given.items if isinstance(pair, Sequence) and pair.kind in ("list", "tuple")]
    if len(pairs) < len(given.items) or any(len(pair) != 2 for pair in pairs):
        return None
    return [(key, value) for key, value in pairs]
