"""Finds the live objects of given classes, without affecting other threads, and lists objects while they live."""

from __future__ import annotations

import gc
import weakref
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


class LiveObjects:
    """Weak references to objects in the order of creation; by identity, as classes may define equality."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, value: Any) -> None:
        """Add an object, once."""
        references, key = self._references, id(value)
        if key not in references:
            references[key] = weakref.ref(value, lambda _: references.pop(key, None))

    def __iter__(self) -> Iterator[Any]:
        values = [reference() for reference in list(self._references.values())]
        return iter([value for value in values if value is not None])
