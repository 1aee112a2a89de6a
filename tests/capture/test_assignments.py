"""The script's own line that made a value not finite, found by assignments alone."""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from reprokit.agent.capture.variables import lines_that_made

ZERO = numpy.zeros(4)
Lines = list[tuple[str, int, str]]


def lines(_: object) -> Lines:
    """What is found for who calls this, and for its caller."""
    frame = sys._getframe(1)
    assert frame.f_back is not None
    return lines_that_made([frame, frame.f_back], lambda value: bool(numpy.isfinite(value).all()), has_attributes=False)


def reassigned() -> Lines:
    x = ZERO[1:]
    x = (x - x.mean()) / x.std()  # here
    return lines(x)


def augmented() -> Lines:
    x = ZERO.copy()
    x /= x.sum()  # here
    return lines(x)


def in_the_call() -> Lines:
    return lines(numpy.log(ZERO))  # here


def into_another() -> Lines:
    out = numpy.empty_like(ZERO)  # here
    numpy.log(ZERO, out=out)  # here
    return lines(out)


def element_by_element() -> Lines:
    out = numpy.zeros(4)
    for place in range(4):
        out[place] = numpy.log(ZERO[place])  # here
    return lines(out)


def appended() -> Lines:
    rewards: list[float] = []
    for value in ZERO:
        rewards.append(float(numpy.log(value)))  # here
    return lines(rewards)


def listed() -> Lines:
    rewards = [numpy.log(value) for value in ZERO.astype("float32")]  # here
    return lines(rewards)


def by_the_caller() -> Lines:
    y = numpy.log(ZERO)  # here
    return handed_over(y)


def handed_over(y: Any) -> Lines:
    z = y[:2]
    return lines(z)


def in_a_dictionary() -> Lines:
    batch = {"x": numpy.log(ZERO), "y": ZERO}  # here
    x = batch["x"]
    return lines(x)


def afterwards() -> Lines:
    x = ZERO
    y = numpy.log(x)  # here
    x = y + 1
    return lines(y)


def of_an_attribute() -> Lines:
    memory = SimpleNamespace(x=ZERO)
    return lines(numpy.negative(memory.x))  # which may have been another then


def centered(values: Any) -> Any:
    return values - numpy.array(0)  # by a function that has returned


class Scaler:
    def scaled(self, values: Any) -> Any:
        scale = values.std()
        center = numpy.arange(len(values)).astype("float32")
        return centered(values) / scale + center.copy()  # by its method


def by_a_function() -> Lines:
    return lines(Scaler().scaled(ZERO))


def by_a_method() -> Lines:
    scaler = Scaler()
    x = numpy.asarray(scaler.scaled(ZERO), dtype="float32")
    return lines(x)


CASES = [reassigned, augmented, in_the_call, into_another, element_by_element, appended, by_the_caller]
CASES += [listed, in_a_dictionary, afterwards, of_an_attribute]


@pytest.mark.parametrize("case", CASES)
def test_lines_are_found_by_assignments(case: Callable[[], Lines]) -> None:
    source, first = inspect.getsourcelines(case)
    wanted = [first + number for number, line in enumerate(source) if line.endswith("# here\n")]
    with numpy.errstate(all="ignore"):
        assert [line for _, line, _ in case()] == wanted


def test_lines_of_functions_that_returned_are_found() -> None:
    with numpy.errstate(all="ignore"):
        named = [linecache.getline(file, line).strip() for file, line, _ in by_a_method()]
        assert [line.rpartition("  # by ")[2] for line in named] == [
            "a function that has returned",
            "scale = values.std()",
            "its method",
        ]
        (place,) = by_a_function()  # of an object that is gone
        assert place[2] == "by_a_function"
