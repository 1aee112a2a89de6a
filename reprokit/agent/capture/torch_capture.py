"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

The gradients are tested when an optimizer is about to apply them. Whatever a step changes before that (buffers, random
states) or lets go of (batches) is held from its first forward pass on; everything else is still what it was.
"""

from __future__ import annotations

import sys
import weakref

from ..patching import replace
from ..pytorch.tensors import is_tensor
from .torch_beginnings import HOOK, make_next_index, make_reset
from .torch_compiling import Compiling
from .trigger import ACTIVATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]


class TorchCapture(Compiling):
    """What this process captures of PyTorch."""

    def forget(self) -> None:
        """In a forked child: what the parent held is the parent's."""
        if self._torch is not None:
            self._threads = self._new_threads()
            self._armed = 0
            self._hooks.pop(HOOK, None)
            if self._watched.records:
                self._arm(self._threads.held)

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, and to those of its modules that may come later."""
        if name == "torch" and self._torch is None:
            self._begin(module)
            for later in ("torch.utils.data.dataloader", "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
                if later in sys.modules:
                    self._capture.attempt(self._instrument, later, sys.modules[later])
        elif self._torch is not None:
            self._instrument(name, module)

    def _begin(self, torch: Any) -> None:
        self._attach(torch)
        for instrument in (
            self._instrument_optimizers,
            self._instrument_schedules,
            self._instrument_modules,
            self._instrument_clipping,
            self._instrument_compile,
        ):
            self._capture.attempt(instrument, torch)
        replace(torch.autograd, "backward", self._make_backward, self._mark)
        if self._settings.conditions.activations:
            torch.nn.modules.module.register_module_forward_hook(self._make_activation_hook())

    def _instrument(self, name: str, module: Any) -> None:
        if name == "torch.utils.data.dataloader":
            replace(module.DataLoader, "__iter__", self._make_iter, self._mark)
            replace(module._BaseDataLoaderIter, "__next__", self._make_next, self._mark)
            replace(module._BaseDataLoaderIter, "_reset", make_reset, self._mark)
            replace(module._BaseDataLoaderIter, "_next_index", make_next_index, self._mark)
        elif name == "torch._dynamo.eval_frame":
            self._instrument_dynamo(module)
        else:
            replace(module.GradScaler, "__init__", self._make_noting(self._watched.scalers), self._mark)
            replace(module.GradScaler, "scale", self._make_scale, self._mark)
            replace(module.GradScaler, "step", self._make_scaler_step, self._mark)

    def _instrument_optimizers(self, _torch: Any) -> None:
        optimizer_class = sys.modules["torch.optim.optimizer"].Optimizer
        replace(optimizer_class, "__init__", self._make_initializer, self._mark)

    def _instrument_schedules(self, torch: Any) -> None:
        module = torch.optim.lr_scheduler
        for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"):
            if hasattr(module, name):
                replace(getattr(module, name), "__init__", self._make_noting(self._watched.schedules), self._mark)

    def _instrument_modules(self, _torch: Any) -> None:
        module, is_compiling = sys.modules["torch.nn.modules.module"], self._is_compiling
        registered = self._modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)

    def _instrument_clipping(self, torch: Any) -> None:
        module = sys.modules["torch.nn.utils.clip_grad"]
        replace(module, "clip_grad_norm_", self._make_clip, self._mark)
        torch.nn.utils.clip_grad_norm_ = module.clip_grad_norm_

    def _instrument_compile(self, torch: Any) -> None:
        replace(torch, "compile", self._make_compile, self._mark)

    def _instrument_dynamo(self, module: Any) -> None:
        """What dynamo runs of ours between its graphs must not be compiled in its turn."""
        from ..pytorch.compiling import own_code

        for code in own_code():
            module.skip_code(code)
        if hasattr(module, "OptimizedModule"):
            replace(module.OptimizedModule, "__call__", self._make_optimized_call, self._mark)

    def guard(self, model: Any, optimizers: Iterable[Any]) -> Guard:
        """Watch these optimizers, and none that was not given; under the launcher all are watched as it is."""
        if self._capture.agent is not None:
            return Guard(self, [])
        optimizers = list(optimizers)
        self._only = (self._only or set()) | set(map(id, optimizers))
        self._modules.registered(model, "", None)
        for optimizer in optimizers:
            self._record(optimizer)
            if "step" in vars(optimizer):  # a schedule has put its own in front
                optimizer.step = self._make_own_step(optimizer, optimizer.step)
        for name in ("torch.utils.data.dataloader", "torch._dynamo.eval_frame"):
            if name in sys.modules:
                self._capture.attempt(self._instrument, name, sys.modules[name])
        return Guard(self, optimizers)

    def release(self, optimizers: Iterable[Any]) -> None:
        """Watch these no longer."""
        for optimizer in optimizers:
            if self._only is not None:
                self._only.discard(id(optimizer))
            self._watched.records.pop(id(optimizer), None)
        if not self._watched.records:
            self._disarm(self._threads.held)
            self._threads.held.end(None)

    def _make_noting(self, found: weakref.WeakKeyDictionary[Any, bool]) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def initialize(owner: Any, *arguments: Any, **keywords: Any) -> None:
                original(owner, *arguments, **keywords)
                if self._only is None:
                    found[owner] = True

            return initialize

        return make

    def _make_activation_hook(self) -> Function:
        is_compiling, attempt, look = self._is_compiling, self._capture.attempt, self._look

        def hook(module: Any, _arguments: Any, output: Any) -> None:
            if not is_compiling() and self._is_grad_enabled():
                attempt(look, module, output)

        return hook

    def _look(self, module: Any, output: Any) -> None:
        held = self._threads.held
        if not held.began or held.fetching or any(trigger.kind == ACTIVATION for trigger in held.triggers):
            return
        outputs = output if isinstance(output, (list, tuple)) else [output]
        for tensor in outputs:
            if not is_tensor(tensor) or not tensor.is_floating_point():
                continue
            if not tensor.is_cpu:
                if not self._is_recorded():
                    held.counts.append((module, self._gradients.not_finite(tensor.detach()), int(tensor.numel())))
                continue
            count, of = self._gradients.count(tensor.detach())
            if count:
                held.triggers.append(self._activation_trigger(module, count, of))
                return


class Guard:
    """Watches a script's own optimizers until it is closed; also as a context."""

    def __init__(self, capture: TorchCapture, optimizers: list[Any]) -> None:
        self._capture = capture
        self._optimizers = optimizers

    def close(self) -> None:
        """Watch no longer."""
        self._capture.release(self._optimizers)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
