"""Hooks and wrappers of PyTorch for listeners that may skip updates: a capture, or a re-execution."""

from __future__ import annotations

import functools
import inspect
import weakref

from ..core.signal_errors import pass_on
from ..events import steps as events
from ..events.steps import SKIP, tell
from . import private_api
from .state import closure_in, with_closure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from ..core.patching import Function
    from ..events.steps import Events, ForwardBegan, UpdateDue
    from .gates import Gates
    from .state import TrainingRecords

    class Hooks(Protocol):
        """What the wrappers here need of the hooks that they extend: events.EventHooks has it."""

        @property
        def events(self) -> Events: ...

        torch: Any
        thread: Any
        is_compiling: Callable[[], bool]
        failed: Function
        gates: Gates
        tell: Function
        without_overrides: Function
        records: TrainingRecords | None

        def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None: ...
        def watch_schedules_and_scalers(self) -> None: ...
        def report_call(self, original: Function, began: ForwardBegan) -> Any: ...
        def update_done(self, due: UpdateDue) -> None: ...


def step_parts(kind: type) -> Iterator[tuple[type, str]]:
    """Yield the sub-steps of a custom optimizer class (first_step, ...), each with the class that defines it."""
    for owner in kind.__mro__:
        if not own_step(owner) or owner is object:
            continue
        for name, value in list(vars(owner).items()):
            if name.endswith("step") and name != "step" and not name.startswith("_") and callable(value):
                yield owner, name


def own_step(kind: type) -> bool:
    """Return whether an optimizer is not PyTorch's own: its step may use gradients from before its closure."""
    return not kind.__module__.startswith("torch.")


def replace_targets(torch: Any, replace: Function) -> None:
    """Replace the targets of all losses from now on, below all function modes of the user."""
    base: Any = torch.overrides.TorchFunctionMode

    @functools.lru_cache(maxsize=None)
    def position_of(function: Any) -> int | None:
        """Return the position of the argument `target`; None for C functions, which Python functions call."""
        code = getattr(function, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        return names.index("target") if "target" in names else None

    class TargetMode(base):  # type: ignore[misc]
        """Replaces the target argument of loss functions."""

        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, position = dict(kwargs or {}), position_of(function)
            if position is not None and len(args) > position:
                args = (*args[:position], replace(args[position]), *args[position + 1 :])
            elif position is not None and "target" in kwargs:
                kwargs["target"] = replace(kwargs["target"])
            return function(*args, **kwargs)

    private_api.push_function_mode(torch, TargetMode())


def make_clip(hooks: Hooks, original: Function) -> Function:
    """Wrap clip_grad_norm_ to report which gradients it is about to clip, and when it has."""
    handlers, is_compiling = hooks.events, hooks.is_compiling

    def clip_grad_norm_(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_compiling():
            return original(parameters, *arguments, **keywords)
        if not hasattr(parameters, "data_ptr"):
            parameters = list(parameters)  # it may be a generator
        due = events.ClippingDue(parameters)
        if tell(handlers.clipping_due, due) is SKIP:
            keywords.pop("error_if_nonfinite", None)
            return original(parameters, *arguments[:2], **keywords)
        result = original(parameters, *arguments, **keywords)
        tell(handlers.gradients_clipped, events.GradientsClipped(due))
        return result

    return clip_grad_norm_


class DecisionHooks:
    """Wraps optimizer steps so that listeners can skip them, and reports what else captures need."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._handlers, self._thread = hooks.events, hooks.thread
        torch = hooks.torch
        hooks.replace(torch, "compile", self._make_compile)
        hooks.watch_schedules_and_scalers()

    def watch(self, name: str, module: Any) -> None:
        """Instrument a module of PyTorch that was imported later."""
        if name.endswith("grad_scaler"):
            self._hooks.watch_schedules_and_scalers()
            self._hooks.replace(module.GradScaler, "scale", self._make_scale)
            self._hooks.replace(module.GradScaler, "step", self._make_scaler_step)

    # Compiled functions

    def _make_compile(self, original: Function) -> Function:
        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            if model is None or private_api.has_children(compiled) or not inspect.isroutine(compiled):
                return compiled  # calls of models are reported anyway
            owner = getattr(model, "__self__", None)
            return self._reported(compiled, owner if private_api.has_children(owner) else None)

        return compile_

    def _reported(self, compiled: Function, owner: Any) -> Function:
        """Wrap a compiled function to report its calls: it may contain an optimizer step, which no hook sees."""
        thread, is_compiling = self._thread, self._hooks.is_compiling

        @functools.wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or thread.call or thread.is_reported or thread.backward:
                return compiled(*arguments, **keywords)
            began = events.ForwardBegan(owner, arguments, keywords, is_compiled=True)
            return self._hooks.report_call(compiled, began)

        return call

    # Losses

    def _make_scale(self, original: Function) -> Function:
        handlers, is_compiling = self._handlers, self._hooks.is_compiling

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if not is_compiling():
                tell(handlers.loss_scaled, events.LossScaled(outputs, scaled))
            return scaled

        return scale

    def _make_scaler_step(self, original: Function) -> Function:
        handlers, thread = self._handlers, self._thread

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            thread.has_stepped = False
            result = original(scaler, optimizer, *arguments, **keywords)
            tell(handlers.scaled_update_ended, events.ScaledUpdateEnded(scaler, optimizer, thread.has_stepped))
            return result

        return step

    # Updates

    def attach(self, optimizer: Any) -> None:
        """Wrap the step of an optimizer's class, and its sub-steps."""
        kind = type(optimizer)
        owner = next((owner for owner in kind.__mro__ if "step" in vars(owner)), kind)
        self._hooks.gates.put(owner, "step", self._make_step)
        for owner, name in step_parts(kind):
            self._hooks.replace(owner, name, functools.partial(self._make_part, name))

    def attach_own_step(self, optimizer: Any) -> None:
        """Wrap the step that a learning-rate schedule has set as an attribute of an optimizer."""
        original, reference = vars(optimizer).get("step"), weakref.ref(optimizer)
        if original is not None:
            plain = lambda _optimizer, *arguments, **keywords: original(*arguments, **keywords)  # noqa: E731
            take = self._hooks.gates.before(plain, self._make_step(plain))
            step = functools.wraps(original)(lambda *arguments, **keywords: take(reference(), *arguments, **keywords))
            optimizer.step = step

    def _make_step(self, original: Function) -> Function:
        thread, handlers, hooks = self._thread, self._handlers, self._hooks
        failed, new, without_overrides = hooks.failed, object.__new__, hooks.without_overrides
        tell_quickly, note_done, records = hooks.tell, hooks.update_done, hooks.records

        # In one function for all of it, as each one outside the caches costs a microsecond or two.
        def step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            closure = closure_in(arguments, keywords) if arguments or keywords else None
            nesting = thread.steps
            due, answer = new(events.UpdateDue), None
            due.optimizer, due.target, due.closure, due.is_nested = None, optimizer, closure, nesting > 0
            thread.steps, thread.has_stepped = nesting + 1, True
            try:
                try:
                    if handlers.update_due:
                        if records is not None:
                            due.optimizer = records.of(optimizer)
                        due.began, due.previous = thread.began, thread.previous
                        with without_overrides():
                            answer = tell_quickly(handlers.update_due, due)
                except Exception as error:
                    failed(step, error)
                    pass_on(error)
                if answer is SKIP:
                    return due.result
                if due.closure is not closure:
                    arguments, keywords = with_closure(due.closure, arguments, keywords)
                result = original(optimizer, *arguments, **keywords)
                try:
                    with without_overrides():
                        note_done(due)
                except Exception as error:
                    failed(step, error)
                    pass_on(error)
                return result
            except events.NotApplied:
                if due.is_nested:
                    raise
                return due.result
            finally:
                thread.steps = nesting
                if due.closure is not closure:
                    tell(handlers.update_ended, events.UpdateEnded(due))

        return step

    def _make_part(self, name: str, original: Function) -> Function:
        thread, handlers, is_compiling = self._thread, self._handlers, self._hooks.is_compiling

        def part(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or thread.steps:
                return original(optimizer, *arguments, **keywords)
            due = events.PartDue(optimizer, name)
            if tell(handlers.part_due, due) is SKIP:
                return None
            result = original(optimizer, *arguments, **keywords)
            tell(handlers.part_done, events.PartDone(due))
            return result

        return part
