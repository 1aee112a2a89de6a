"""Tells what a signal's handler of the script raised, while a function of ours ran, from errors of ours."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from types import CodeType, FrameType, FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_TAKES_MORE = 4  # CO_VARARGS


def pass_on(error: BaseException) -> None:
    """Raise an error again that a handler raised: it is meant for the script, wherever the signal came."""
    try:
        if _is_of_handler(error):
            raise error
    finally:
        del error  # whose traceback holds this frame: together they would live on


def _is_of_handler(error: BaseException) -> bool:
    place, installed = error.__traceback__, list(_codes_of_handlers())
    while place is not None and place.tb_next is not None:
        called = place.tb_next.tb_frame
        if called.f_code in installed or _is_told_of(called, place.tb_frame):
            return True
        place = place.tb_next
    return False


def _codes_of_handlers() -> Iterator[CodeType]:
    """Yield the code of the handlers that there are now; one may have taken itself away."""
    for number in range(1, _signal.NSIG):
        handler = _signal.getsignal(number)
        function = handler.__func__ if type(handler) is MethodType else handler
        if type(function) is FunctionType:
            yield function.__code__


def _is_told_of(called: FrameType, interrupted: FrameType) -> bool:
    """Return whether a function was given a number and the frame that called it, as handlers are."""
    code, known = called.f_code, called.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _TAKES_MORE)
    given: list[Any] = []
    for value in map(known.get, code.co_varnames[:count]):
        given += value if type(value) is tuple else [value]
    return any(issubclass(type(one), int) and other is interrupted for one, other in zip(given, given[1:]))
