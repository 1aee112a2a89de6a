"""Finds the live objects of given classes, without affecting other threads."""

from __future__ import annotations

import gc
from functools import partial
from itertools import chain, filterfalse, groupby
from operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

# Stages that process the list of all objects.
_TO_GROUPS = partial(groupby, key=type)  # groups of neighbors with one class
_TO_MEMBERS = partial(map, itemgetter(1))


def instances(*classes: type) -> list[Any]:
    """Return all objects of these classes and of their subclasses.

    A list of all objects refers to tuples that other threads are about to fill. CPython does not fill a tuple that has
    a second reference: `tuple()` of a generator raises SystemError. So the list is made, searched and dropped in one
    call of `next`, without bytecode in between at which threads could switch.
    """
    all_classes = set(_derived(classes))
    results: Iterator[Any] = iter(gc.get_objects, None)
    for stage in (_TO_GROUPS, partial(filterfalse, all_classes.isdisjoint), _TO_MEMBERS, chain.from_iterable, list):
        results = map(stage, results)
    objects: list[Any] = without_collections(results.__next__)
    return objects


def _derived(classes: Iterable[type]) -> Iterator[type]:
    for kind in classes:
        yield kind
        yield from _derived(type.__subclasses__(kind))


def without_collections(call: Callable[[], Any]) -> Any:
    """Make a call of compiled code with garbage collection off, as finalizers in it would let threads switch."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return call()
    finally:
        if collects:
            gc.enable()
