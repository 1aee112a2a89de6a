"""Separates errors that the script's signal handlers raise within the agent's functions from the agent's own errors."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
from types import CodeType, FrameType, FunctionType, MethodType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_TAKES_MORE = 4  # CO_VARARGS


def pass_on(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it: it is meant for the script, wherever the signal arrived."""
    try:
        if _was_raised_by_handler(error):
            raise error
    finally:
        del error  # its traceback refers to this frame: a reference cycle


def _was_raised_by_handler(error: BaseException) -> bool:
    entry, handler_codes = error.__traceback__, list(_codes_of_handlers())
    while entry is not None and entry.tb_next is not None:
        called = entry.tb_next.tb_frame
        if called.f_code in handler_codes or _looks_like_handler(called, entry.tb_frame):
            return True
        entry = entry.tb_next
    return False


def _codes_of_handlers() -> Iterator[CodeType]:
    """Yield the code of the installed handlers; a handler may have removed itself."""
    for number in range(1, _signal.NSIG):
        handler = _signal.getsignal(number)
        function = handler.__func__ if type(handler) is MethodType else handler
        if type(function) is FunctionType:
            yield function.__code__


def _looks_like_handler(called: FrameType, interrupted: FrameType) -> bool:
    """Return whether a function was called with a number and the interrupted frame, as handlers are."""
    code, variables = called.f_code, called.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _TAKES_MORE)
    arguments: list[Any] = []
    for value in map(variables.get, code.co_varnames[:count]):
        arguments += value if type(value) is tuple else [value]
    return any(
        issubclass(type(number), int) and frame is interrupted for number, frame in zip(arguments, arguments[1:])
    )
