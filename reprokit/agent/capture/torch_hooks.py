"""Where PyTorch tells of a step: batches, module calls, backward passes, and updates, which may be held back.

Only for doing a captured step again, where no cost counts.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref

from ..patching import replace
from ..pytorch.decisions import parts_of_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_redo import RedoWatch

    Function = Callable[..., Any]


MARK = "_reprokit_redo"  # of what is wrapped here


class Made:
    """What the script has made of a kind, in order, while it lives."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[Any]] = []

    def add(self, made: Any) -> None:
        """Take it in once."""
        if all(known is not made for known in self.alive()):
            self._references.append(weakref.ref(made))

    def alive(self) -> list[Any]:
        """Those that there are."""
        found = [reference() for reference in self._references]
        return [made for made in found if made is not None]


class RedoHooks:
    """Puts wrappers around PyTorch's own functions, once."""

    def __init__(self, torch: Any, listener: RedoWatch) -> None:
        self._listener = listener
        self.optimizers, self.scalers, self.schedules = Made(), Made(), Made()
        is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
        _wrap(torch.nn.Module, "__call__", lambda original: self._make_call(original, is_compiling))
        if hasattr(torch, "compile"):
            _wrap(torch, "compile", self._make_compile)
        _wrap(torch.autograd, "backward", self._make_backward)
        clipping = sys.modules["torch.nn.utils.clip_grad"]
        _wrap(clipping, "clip_grad_norm_", self._make_clip)
        torch.nn.utils.clip_grad_norm_ = clipping.clip_grad_norm_
        self._watch_optimizers(torch)

    def watch(self, name: str, module: Any) -> None:
        """A further module is there."""
        if name == "torch.utils.data.dataloader":
            _wrap(module._BaseDataLoaderIter, "__next__", self._make_next)
        elif name.endswith("grad_scaler"):
            _wrap(module.GradScaler, "__init__", lambda original: _after(original, self.scalers.add))
            _wrap(module.GradScaler, "step", self._make_scaled_step)
            _wrap(module.GradScaler, "scale", self._make_scale)
        elif name == "torch.optim.lr_scheduler":
            for kind in ("_LRScheduler", "LRScheduler", "ReduceLROnPlateau"):
                if hasattr(module, kind):
                    _wrap(getattr(module, kind), "__init__", lambda original: _after(original, self.schedules.add))

    def watch_losses(self, torch: Any) -> None:
        """Tell of all targets, from here to the end: below all modes of the user's."""
        torch.overrides._push_mode(_make_target_mode(torch, self._listener))

    def _make_next(self, original: Function) -> Function:
        return lambda iterator: self._listener.fetch(lambda: original(iterator), iterator)

    def _make_call(self, original: Function, is_compiling: Callable[[], bool]) -> Function:
        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(module, *arguments, **keywords)
            return self._listener.call(original, module, arguments, keywords)

        return call

    def _make_compile(self, original: Function) -> Function:
        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            is_model = model is None or hasattr(compiled, "_modules")  # whose calls are told of anyhow
            return compiled if is_model or not inspect.isroutine(compiled) else _told_of(self._listener, compiled)

        return compile_

    def _make_backward(self, original: Function) -> Function:
        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._listener.backward(lambda: original(tensors, *arguments, **keywords), tensors)

        return backward

    def _make_scaled_step(self, original: Function) -> Function:
        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._listener.scaled_step(lambda: original(scaler, optimizer, *arguments, **keywords), optimizer)

        return step

    def _make_scale(self, original: Function) -> Function:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            self._listener.scale(outputs, scaled)
            return scaled

        return scale

    def _make_clip(self, original: Function) -> Function:
        def clip_grad_norm_(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._listener.clip(lambda: original(parameters, *arguments, **keywords))

        return clip_grad_norm_

    def _watch_optimizers(self, torch: Any) -> None:
        owner: Any = torch.optim.Optimizer
        _wrap(owner, "__init__", lambda original: _after(original, self._made))
        if hasattr(owner, "profile_hook_step"):  # which wraps the step of each class, once
            around = owner.profile_hook_step
            owner.profile_hook_step = staticmethod(lambda step: around(self._held_back(step)))
        else:
            _wrap(owner, "_hook_for_profile", self._make_profile_hook)

    def _made(self, optimizer: Any) -> None:
        self.optimizers.add(optimizer)
        for owner, name in parts_of_steps(type(optimizer)):
            _wrap(owner, name, self._make_part(name))

    def _make_part(self, name: str) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def part(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
                return self._listener.part(lambda: original(optimizer, *arguments, **keywords), optimizer, name)

            return part

        return make

    def _make_profile_hook(self, original: Function) -> Function:
        """PyTorch before 2.0 does the same here."""

        def _hook_for_profile(optimizer: Any) -> None:
            original(optimizer)
            kind = type(optimizer)
            if not hasattr(kind.step, "_reprokit_held_back"):
                kind.step = self._held_back(kind.step)
                kind.step._reprokit_held_back = True

        return _hook_for_profile

    def _held_back(self, step: Function) -> Function:
        @functools.wraps(step)
        def held_back(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            self.optimizers.add(optimizer)  # a copy of another has not been initialised
            return self._listener.step(step, optimizer, arguments, keywords)

        return held_back


def _told_of(listener: RedoWatch, compiled: Function) -> Function:
    """Within a compiled function nothing tells of the modules that it calls."""

    def call_without(_function: Any, *arguments: Any, **keywords: Any) -> Any:
        return compiled(*arguments, **keywords)

    @functools.wraps(compiled)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return listener.call(call_without, call, arguments, keywords)

    return call


def _make_target_mode(torch: Any, listener: RedoWatch) -> Any:
    base: Any = torch.overrides.TorchFunctionMode
    positions: dict[Any, int | None] = {}

    def position_of(function: Any) -> int | None:
        """Which argument is called the target; functions that are written in C do not tell, and are called by these."""
        if function not in positions:
            code = getattr(function, "__code__", None)
            names = code.co_varnames[: code.co_argcount] if code is not None else ()
            positions[function] = names.index("target") if "target" in names else None
        return positions[function]

    class ReprokitTargets(base):  # type: ignore[misc]
        """Gives losses the snapshot's targets."""

        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs, place = dict(kwargs or {}), position_of(function)
            if place is not None and len(args) > place:
                args = (*args[:place], listener.target(args[place]), *args[place + 1 :])
            elif place is not None and "target" in kwargs:
                kwargs["target"] = listener.target(kwargs["target"])
            return function(*args, **kwargs)

    return ReprokitTargets()


def _wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    replace(owner, name, make, MARK)


def _after(original: Function, then: Callable[[Any], object]) -> Function:
    def initialize(owner: Any, *arguments: Any, **keywords: Any) -> None:
        original(owner, *arguments, **keywords)
        then(owner)

    return initialize


MODULES = (
    "torch",
    "torch.utils.data.dataloader",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch.optim.lr_scheduler",
)


def loaded_with(torch: Any) -> list[tuple[str, Any]]:
    """The other modules that PyTorch has brought already."""
    found = [(name, sys.modules.get(name)) for name in MODULES[1:]]
    return [(name, module) for name, module in found if module is not None and torch is not None]
