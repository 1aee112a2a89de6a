"""What torch.compile must know of the agent: which code it never compiles, and when it traces."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any


def tracing_test(torch: Any) -> Callable[[], bool]:
    """A function that tells whether torch.compile is tracing; what it traces must not reach our records."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def own_code() -> Iterator[CodeType]:
    """The code of every function of the agent."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            owners = [value for value in vars(module).values() if isinstance(value, type)]
            for owner in [module, *owners]:
                for value in list(vars(owner).values()):
                    function = getattr(value, "fget", value)
                    if getattr(function, "__module__", "") == name and hasattr(function, "__code__"):
                        yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _with_inner(constant)
