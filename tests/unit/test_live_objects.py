"""The search for objects of a class among all that are alive, beside threads that make tuples."""

from __future__ import annotations

import threading

import pytest

from reprokit.agent.core.live_objects import instances


class Kind:
    pass


class Derived(Kind):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("what objects say of themselves is not asked")


def test_those_of_a_class_and_of_derived_ones_are_found() -> None:
    made = [Kind(), Derived(), Kind()]
    found = instances(Kind)
    assert set(map(id, found)) == set(map(id, made))
    assert len(found) == 3
    assert [type(one) for one in instances(Derived)] == [Derived]
    assert instances() == []


class Compared(type):
    """A metaclass whose classes are compared by Python code, in which threads switch."""

    def __eq__(cls, other: object) -> bool:
        return cls is other

    def __hash__(cls) -> int:
        return id(cls)


class First(metaclass=Compared):
    pass


class Second(metaclass=Compared):
    pass


@pytest.mark.slow
def test_threads_that_make_tuples_are_not_disturbed() -> None:
    """Whoever holds the list of all objects makes `tuple()` of a generator fail, which it is about to fill."""
    others = [kind() for _ in range(2000) for kind in (First, Second)]
    kept, errors, made, over = Kind(), [], [], threading.Event()

    def make() -> None:
        while not over.is_set():
            try:
                made.append(len(tuple(number for number in range(1000))))
            except SystemError as error:
                errors.append(error)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert instances(Kind) == [kept]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert set(made) == {1000}
    assert len(others) == 4000
