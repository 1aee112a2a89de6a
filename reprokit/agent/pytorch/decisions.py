"""Hooks and wrappers of PyTorch that only a listener needs who may skip updates: a capture, or a re-execution."""

from __future__ import annotations

import functools
import inspect
import weakref

from .. import events
from ..core.signal_errors import pass_on
from ..events import SKIP, tell
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.patching import Function
    from .events import EventHooks


def parts_of_steps(kind: type) -> Iterator[tuple[type, str]]:
    """Yield the parts that an optimizer's class has, each with the class that defines it; PyTorch's own have none."""
    for owner in kind.__mro__:
        if not own_step(owner) or owner is object:
            continue
        for name, value in list(vars(owner).items()):
            if name.endswith("step") and name != "step" and not name.startswith("_") and callable(value):
                yield owner, name


def own_step(kind: type) -> bool:
    """Whether an optimizer is none of PyTorch's: its step may use gradients that were there before its closure's."""
    return not kind.__module__.startswith("torch.")


def replace_targets(torch: Any, replace: Function) -> None:
    """Give losses other targets, from here to the end: below all modes of the user's."""
    base: Any = torch.overrides.TorchFunctionMode

    @functools.lru_cache(maxsize=None)
    def position_of(function: Any) -> int | None:
        """Which argument is called the target; functions that are written in C do not tell, and are called by these."""
        code = getattr(function, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if code is not None else ()
        return names.index("target") if "target" in names else None

    class TargetMode(base):  # type: ignore[misc]
        """Stands between losses and those who compute them."""

        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, place = dict(kwargs or {}), position_of(function)
            if place is not None and len(args) > place:
                args = (*args[:place], replace(args[place]), *args[place + 1 :])
            elif place is not None and "target" in kwargs:
                kwargs["target"] = replace(kwargs["target"])
            return function(*args, **kwargs)

    private_api.push_function_mode(torch, TargetMode())


def make_clip(hooks: EventHooks, original: Function) -> Function:
    """Return clip_grad_norm_, which tells what it is about to clip, and when it has."""
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
    """Asks before updates, and tells what else captures need."""

    def __init__(self, hooks: EventHooks) -> None:
        self._hooks = hooks
        self._handlers, self._thread = hooks.events, hooks.thread
        torch = hooks.torch
        hooks.replace(torch, "compile", self._make_compile)
        hooks.watch_made()

    def watch(self, name: str, module: Any) -> None:
        """A further module of PyTorch is there."""
        if name.endswith("grad_scaler"):
            self._hooks.watch_made()
            self._hooks.replace(module.GradScaler, "scale", self._make_scale)
            self._hooks.replace(module.GradScaler, "step", self._make_scaler_step)

    # Compiled functions

    def _make_compile(self, original: Function) -> Function:
        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            if model is None or private_api.has_children(compiled) or not inspect.isroutine(compiled):
                return compiled  # models' calls are told of anyhow
            owner = getattr(model, "__self__", None)
            return self._told_of(compiled, owner if private_api.has_children(owner) else None)

        return compile_

    def _told_of(self, compiled: Function, owner: Any) -> Function:
        """Return a compiled function whose calls are told: an optimizer's step may be in it, which no hook sees."""
        inside, is_compiling = self._thread, self._hooks.is_compiling

        @functools.wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or inside.call or inside.told or inside.backward:
                return compiled(*arguments, **keywords)
            began = events.ForwardBegan(owner, arguments, keywords, is_compiled=True)
            return self._hooks.tell_of_call(compiled, (), began)

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
        handlers, inside = self._handlers, self._thread

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            inside.has_stepped = False
            result = original(scaler, optimizer, *arguments, **keywords)
            tell(handlers.scaled_update_ended, events.ScaledUpdateEnded(scaler, optimizer, inside.has_stepped))
            return result

        return step

    # Updates

    def attach(self, optimizer: Any) -> None:
        """Ask before the steps of an optimizer's class, and their parts."""
        kind = type(optimizer)
        owner = next((owner for owner in kind.__mro__ if "step" in vars(owner)), kind)
        self._hooks.replace(owner, "step", self._make_step)
        for owner, name in parts_of_steps(kind):
            self._hooks.replace(owner, name, functools.partial(self._make_part, name))

    def attach_own_step(self, optimizer: Any) -> None:
        """Ask before the step that a schedule has put in front of an optimizer's."""
        original, reference = vars(optimizer).get("step"), weakref.ref(optimizer)
        if original is not None:
            take = self._make_step(lambda _optimizer, *arguments, **keywords: original(*arguments, **keywords))
            step = functools.wraps(original)(lambda *arguments, **keywords: take(reference(), *arguments, **keywords))
            optimizer.step = step

    def _make_step(self, original: Function) -> Function:
        inside, handlers, hooks = self._thread, self._handlers, self._hooks
        is_compiling, failed = hooks.is_compiling, hooks.failed
        update_due, update_done = hooks.update_due, hooks.update_done

        def step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(optimizer, *arguments, **keywords)
            closure = _closure_in(arguments, keywords) if arguments or keywords else None
            due = events.UpdateDue(None, optimizer, closure, is_nested=inside.steps > 0)
            inside.steps += 1
            inside.has_stepped = True
            try:
                try:
                    answer = update_due(due)
                except Exception as error:
                    answer = failed(update_due, error)
                    pass_on(error)
                if answer is SKIP:
                    return due.result
                if due.closure is not closure:
                    arguments, keywords = _with_closure(due.closure, arguments, keywords)
                result = original(optimizer, *arguments, **keywords)
                try:
                    update_done(due)
                except Exception as error:
                    failed(update_done, error)
                    pass_on(error)
                return result
            except events.NotApplied:
                if due.is_nested:
                    raise
                return due.result
            finally:
                inside.steps -= 1
                if due.closure is not closure:
                    tell(handlers.update_ended, events.UpdateEnded(due))

        return step

    def _make_part(self, name: str, original: Function) -> Function:
        inside, handlers, is_compiling = self._thread, self._handlers, self._hooks.is_compiling

        def part(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or inside.steps:
                return original(optimizer, *arguments, **keywords)
            due = events.PartDue(optimizer, name)
            if tell(handlers.part_due, due) is SKIP:
                return None
            result = original(optimizer, *arguments, **keywords)
            tell(handlers.part_done, events.PartDone(due))
            return result

        return part


def _closure_in(arguments: Any, keywords: Any) -> Function | None:
    closure = arguments[0] if arguments else keywords.get("closure")
    return closure if callable(closure) and not private_api.has_children(closure) else None


def _with_closure(closure: Function, arguments: Any, keywords: Any) -> tuple[Any, Any]:
    return ((closure, *arguments[1:]), keywords) if arguments else ((), {**keywords, "closure": closure})
