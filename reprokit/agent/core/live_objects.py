"""Finds the live objects of given classes, without affecting other threads, and lists objects while they live."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from itertools import chain, compress, islice, starmap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any


def instances(*classes: type) -> list[Any]:
    """Return all objects of these classes and of their subclasses.

    A list of all objects refers to tuples that other threads are about to fill. CPython does not fill a tuple that has
    a second reference: `tuple()` of a generator raises SystemError. So the list is made, searched and dropped in one
    call of `list`, without bytecode in between at which threads could switch. Classes are compared by their `id`, as a
    metaclass may define in Python what equal classes are.
    """
    wanted = frozenset(map(id, _derived(classes)))
    everything: list[Any] = []
    made: Iterator[Any] = filter(None, map(everything.extend, islice(iter(gc.get_objects, None), 1)))
    found = compress(everything, map(wanted.__contains__, map(id, map(type, everything))))
    dropped: Iterator[Any] = filter(None, starmap(everything.clear, [()]))
    objects: list[Any] = without_collections(partial(list, chain(made, found, dropped)))
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
