"""Looks for objects of given classes among all that are alive, so that other threads do not notice."""

from __future__ import annotations

import gc
from functools import partial
from itertools import chain, filterfalse, groupby
from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

# What is done to the list of all objects.
_TO_GROUPS = partial(groupby, key=type)  # of neighbors, with their class
_TO_MEMBERS = partial(map, itemgetter(1))


def instances(*classes: type) -> list[Any]:
    """Return all objects of these classes and of those that are derived of them.

    Who holds the list of all objects holds tuples that other threads are about to fill, and CPython's calls refuse to
    fill what a second one holds (`tuple()` of a generator says SystemError). So the list is made, searched and dropped
    in one call of `next`, with no bytecode in between at which threads change.
    """
    wanted = set(_derived(classes))
    found: Iterator[Any] = iter(gc.get_objects, None)
    for stage in (_TO_GROUPS, partial(filterfalse, wanted.isdisjoint), _TO_MEMBERS, chain.from_iterable, list):
        found = map(stage, found)
    objects: list[Any] = without_collections(found.__next__)
    return objects


def _derived(classes: Iterable[type]) -> Iterator[type]:
    for one in classes:
        yield one
        yield from _derived(type.__subclasses__(one))


def without_collections(call: Callable[[], Any]) -> Any:
    """Make a call of compiled code; a collection in the middle of it would call finalizers, and let threads change."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return call()
    finally:
        if collects:
            gc.enable()
