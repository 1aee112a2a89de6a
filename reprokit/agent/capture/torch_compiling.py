"""Compiled models and functions, in which no hook sees a step begin or an optimizer apply it."""

from __future__ import annotations

import functools
import inspect

from .torch_held import Held
from .torch_scaling import Scaling
from .torch_watched import drop_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]


class Compiling(Scaling):
    """Looks at steps from outside of compiled code."""

    def _make_compile(self, original: Function) -> Function:
        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            if model is None or hasattr(compiled, "_modules") or not inspect.isroutine(compiled):
                return compiled
            owner = getattr(model, "__self__", None)
            return self._watching(compiled, owner if hasattr(owner, "_modules") else None)

        return compile_

    def _watching(self, compiled: Function, module: Any) -> Function:
        """A compiled function: an optimizer's step may be in it, which no hook sees."""
        is_compiling, attempt = self._is_compiling, self._capture.attempt

        @functools.wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.fetching:
                return compiled(*arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            held.compiled += 1
            try:
                return compiled(*arguments, **keywords)
            finally:
                held.compiled -= 1
                attempt(self._leave_compiled, held, seen)

        return call

    def _enter_compiled(self, held: Held, module: Any, arguments: Any, keywords: Any) -> tuple[bool, int, int]:
        """Dynamo must not find our hook, with which it would compile all again."""
        was_armed = held.armed
        if was_armed:
            self._disarm(held)
            if self._is_grad_enabled():
                was_armed = False
                self._begin_step(held, module)
                name, given = "" if module is None else module, [arguments, dict(keywords)]
                if not held.saw_loader:
                    held.batches.add("forward", given, name)
                elif held.batches.is_ahead:
                    held.enter(name, given)
            else:
                held.looked = True
        if module is None and held.round != held.tested and not held.skipped:
            self._test_compiled(held)
            if held.triggers:
                self._alarm(held, self._due(held), held.triggers)
        if module is None and held.skipped:
            drop_gradients(self._watched.alive())
        return was_armed, self._steps, 0 if module is not None else self._watched.versions()

    def _leave_compiled(self, held: Held, seen: tuple[bool, int, int] | None) -> None:
        if seen is None:
            return
        was_armed, steps, versions = seen
        if was_armed and not held.armed:
            self._arm(held)
        if not versions or steps != self._steps:
            return
        if held.skipped:
            for record in self._watched.alive():
                self.skipped(held, record)
        elif versions != self._watched.versions():
            for record in self._watched.alive():  # its step was compiled
                self.applied(held, record)

    def _make_optimized_call(self, original: Function) -> Function:
        is_compiling, attempt = self._is_compiling, self._capture.attempt

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.fetching or not held.armed:
                return original(module, *arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            try:
                return original(module, *arguments, **keywords)
            finally:
                attempt(self._leave_compiled, held, seen)

        return call
