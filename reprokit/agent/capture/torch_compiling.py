"""Compiled models and functions, in which no hook sees a step begin or an optimizer apply it."""

from __future__ import annotations

import functools
import inspect

from .torch_held import FETCHING
from .torch_watched import drop_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_alarms import Alarms
    from .torch_beginnings import Beginnings
    from .torch_held import TrainingStep
    from .torch_losses import Losses
    from .torch_steps import StepEnds
    from .torch_training import Training

    Function = Callable[..., Any]


class Compiling:
    """Looks at steps from outside of compiled code."""

    def __init__(
        self, training: Training, alarms: Alarms, beginnings: Beginnings, losses: Losses, ends: StepEnds
    ) -> None:
        self._training = training
        self._watched = training.watched
        self._alarms = alarms
        self._beginnings = beginnings
        self._losses = losses
        self._ends = ends

    def make_compile(self, original: Function) -> Function:
        """Watch the functions that are compiled from now on."""

        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            if model is None or hasattr(compiled, "_modules") or not inspect.isroutine(compiled):
                return compiled
            owner = getattr(model, "__self__", None)
            return self._watching(compiled, owner if hasattr(owner, "_modules") else None)

        return compile_

    def _watching(self, compiled: Function, module: Any) -> Function:
        """A compiled function: an optimizer's step may be in it, which no hook sees."""
        is_compiling, attempt = self._training.is_compiling, self._training.capture.attempt

        @functools.wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            held = self._training.threads.held
            if is_compiling() or held.activity is FETCHING:
                return compiled(*arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            held.update.compiled += 1
            try:
                return compiled(*arguments, **keywords)
            finally:
                held.update.compiled -= 1
                attempt(self._leave_compiled, held, seen)

        return call

    def _enter_compiled(self, held: TrainingStep, module: Any, arguments: Any, keywords: Any) -> tuple[bool, int, int]:
        """Dynamo must not find our hook, with which it would compile all again."""
        was_armed = held.armed
        if was_armed:
            self._beginnings.disarm(held)
            if self._training.torch.is_grad_enabled():
                was_armed = False
                self._beginnings.begin(held, module)
                name, given = "" if module is None else module, [arguments, dict(keywords)]
                if not held.batches.are_loaded:
                    held.batches.add("forward", given, name)
                elif held.batches.is_ahead:
                    held.start.enter(name, given)
            else:
                held.look()
        if module is None and held.round != held.update.tested and not held.findings.skipped:
            self._losses.test_compiled(held)
            if held.findings.triggers:
                self._alarms.alarm(held, self._alarms.due(held), held.findings.triggers)
        if module is None and held.findings.skipped:
            drop_gradients(self._watched.alive())
        return was_armed, self._watched.steps, 0 if module is not None else self._watched.versions()

    def _leave_compiled(self, held: TrainingStep, seen: tuple[bool, int, int] | None) -> None:
        if seen is None:
            return
        was_armed, steps, versions = seen
        if was_armed and not held.armed:
            self._beginnings.arm(held)
        if not versions or steps != self._watched.steps:
            return
        if held.findings.skipped:
            for record in self._watched.alive():
                self._ends.skipped(held, record)
        elif versions != self._watched.versions():
            for record in self._watched.alive():  # its step was compiled
                self._ends.applied(held, record)

    def make_optimized_call(self, original: Function) -> Function:
        """Watch the calls of compiled models."""
        is_compiling, attempt = self._training.is_compiling, self._training.capture.attempt

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._training.threads.held
            if is_compiling() or held.activity is FETCHING or not held.armed:
                return original(module, *arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            try:
                return original(module, *arguments, **keywords)
            finally:
                attempt(self._leave_compiled, held, seen)

        return call
