"""Gates before the wrappers of PyTorch's functions: one look where nobody listens, and none where PyTorch compiles.

Compiled gates cost a step no call of Python, but torch.compile cannot trace them. So the first use of it puts functions
of Python in their place, which it traces as if they were the originals.
"""

from __future__ import annotations

import functools

from ..core.patching import replace
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.patching import Function
    from ..events.steps import Events


def tracing_test(torch: Any) -> Callable[[], bool]:
    """Return a function that tells whether torch.compile is tracing; traced calls must not be recorded."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


class Gates:
    """The gates of some hooks."""

    def __init__(self, events: Events, torch: Any, compiled: Any, mark: str) -> None:
        self._events, self._compiled, self._mark = events, compiled, mark
        self.is_compiling = tracing_test(torch)
        # Where PyTorch says otherwise whether it compiles, Python asks it.
        self._can_compile = compiled is not None and private_api.says_whether_it_compiles(torch)
        self._globals = vars(torch.compiler) if self._can_compile else None
        self._traced: dict[tuple[Any, str], Function] = {}  # by owner and name of a gate, the function in its place

    def put(
        self,
        owner: Any,
        name: str,
        make: Callable[[Function], Function],
        events: Sequence[str] = (),
        nested: Sequence[str] = (),
    ) -> None:
        """Replace a function with a wrapper, behind a gate that is closed while none of these events has a handler.

        With ``nested``, calls within the wrapper are passed on while none of those events has a handler.
        """

        def make_gate(original: Function) -> Any:
            return self.before(original, make(original), events, nested)

        replace(owner, name, make_gate, self._mark)
        gate = vars(owner).get(name)
        if self._can_compile and hasattr(gate, self._mark) and hasattr(gate, "is_open"):
            self._traced[owner, name] = self._in_python(gate.original, gate.wrapper)

    def before(
        self, original: Function | None, wrapper: Function, events: Sequence[str] = (), nested: Sequence[str] = ()
    ) -> Any:
        """Return a gate before a wrapper of a function, or of nothing."""
        if not self._can_compile:
            return self._in_python(original, wrapper)
        gate = self._compiled.gate(original, wrapper, self._globals)
        gate.original, gate.wrapper = original, wrapper
        if events:
            self._events.set_by_handlers(gate, "is_open", events)
        if nested:
            self._events.set_by_handlers(gate, "hears_nested", nested)
        return gate

    def _in_python(self, original: Function | None, wrapper: Function) -> Function:
        is_compiling = self.is_compiling

        def call(*arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return None if original is None else original(*arguments, **keywords)
            return wrapper(*arguments, **keywords)

        return call

    def watch_compiler(self, module: Any) -> None:
        """Wait for the first use of torch.compile, from the module torch._dynamo.eval_frame."""
        if self._traced:
            replace(private_api.compiling_context(module), "__init__", self._make_context, self._mark)

    def _make_context(self, original: Function) -> Function:
        def initialize(*arguments: Any, **keywords: Any) -> None:
            traced, self._traced, self._can_compile = self._traced, {}, False
            for (owner, name), function in traced.items():
                gate = vars(owner).get(name)
                if hasattr(gate, self._mark) and hasattr(gate, "is_open"):
                    setattr(owner, name, functools.wraps(gate)(function))
            original(*arguments, **keywords)

        return initialize
