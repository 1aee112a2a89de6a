"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

The gradients are tested when an optimizer is about to apply them. Whatever a step changes before that (buffers, random
states) or lets go of (batches) is held from its first forward pass on; everything else is still what it was.
"""

from __future__ import annotations

import sys
import weakref

from ..patching import replace
from .torch_alarms import Alarms
from .torch_beginnings import Beginnings, make_next_index, make_reset
from .torch_checks import StepChecks
from .torch_compiling import Compiling
from .torch_losses import Clipping, Losses
from .torch_scaling import Scaling
from .torch_steps import Refusals, StepEnds, Steps
from .torch_training import Training

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType
    from typing import Any

    from . import CaptureSession

    Function = Callable[..., Any]


class TorchCapture:
    """What this process captures of PyTorch."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self._watch: TorchWatch | None = None  # once PyTorch is there

    def forget(self) -> None:
        """In a forked child: what the parent held is the parent's."""
        if self._watch is not None:
            self._watch.forget()

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, and to those of its modules that may come later."""
        if name == "torch" and self._watch is None:
            self._watch = TorchWatch(Training(self._capture, module))
            for later in ("torch.utils.data.dataloader", "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
                if later in sys.modules:
                    self._capture.attempt(self._watch.attach, later, sys.modules[later])
        elif self._watch is not None:
            self._watch.attach(name, module)

    def guard(self, model: Any, optimizers: Iterable[Any]) -> Guard:
        """Watch these optimizers, and none that was not given; under the launcher all are watched as it is."""
        if self._capture.agent is not None or self._watch is None:
            return Guard(None, [])
        optimizers = list(optimizers)
        self._watch.take(model, optimizers)
        for name in ("torch.utils.data.dataloader", "torch._dynamo.eval_frame"):
            if name in sys.modules:
                self._capture.attempt(self._watch.attach, name, sys.modules[name])
        return Guard(self._watch, optimizers)


class TorchWatch:
    """Puts its functions around PyTorch's, each of a part that knows one thing of a step."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._checks = StepChecks(training)
        alarms = Alarms(training)
        self._beginnings = Beginnings(training, alarms)
        self._ends = StepEnds(training, alarms, self._beginnings)
        self._steps = Steps(training, self._beginnings, Refusals(training, self._checks, alarms), self._ends)
        self._losses = Losses(training, self._checks, alarms, self._beginnings)
        self._clipping = Clipping(training, self._checks, alarms)
        self._scaling = Scaling(training, self._checks, alarms, self._ends)
        self._compiling = Compiling(training, alarms, self._beginnings, self._losses, self._ends)
        for attach in (self._attach_optimizers, self._attach_modules, self._attach_functions):
            training.capture.attempt(attach, training.torch)

    def forget(self) -> None:
        """In a forked child: drop what the parent held."""
        self._training.forget()
        self._beginnings.forget()

    def attach(self, name: str, module: Any) -> None:
        """Attach to a further module of PyTorch."""
        if name == "torch.utils.data.dataloader":
            self._replace(module.DataLoader, "__iter__", self._beginnings.make_iter)
            self._replace(module._BaseDataLoaderIter, "__next__", self._beginnings.make_next)
            self._replace(module._BaseDataLoaderIter, "_reset", make_reset)
            self._replace(module._BaseDataLoaderIter, "_next_index", make_next_index)
        elif name == "torch._dynamo.eval_frame":
            self._attach_dynamo(module)
        else:
            self._replace(module.GradScaler, "__init__", self._make_noting(self._watched.scalers))
            self._replace(module.GradScaler, "scale", self._scaling.make_scale)
            self._replace(module.GradScaler, "step", self._scaling.make_scaler_step)

    def _replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        replace(owner, name, make, self._training.mark)

    def _attach_optimizers(self, torch: Any) -> None:
        self._replace(sys.modules["torch.optim.optimizer"].Optimizer, "__init__", self._steps.make_initializer)
        module = torch.optim.lr_scheduler
        for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"):
            if hasattr(module, name):
                self._replace(getattr(module, name), "__init__", self._make_noting(self._watched.schedules))

    def _attach_modules(self, torch: Any) -> None:
        module, is_compiling = sys.modules["torch.nn.modules.module"], self._training.is_compiling
        registered = self._training.modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)
        if self._training.settings.conditions.activations:
            module.register_module_forward_hook(self._make_output_hook())

    def _attach_functions(self, torch: Any) -> None:
        module = sys.modules["torch.nn.utils.clip_grad"]
        self._replace(module, "clip_grad_norm_", self._clipping.make_clip)
        torch.nn.utils.clip_grad_norm_ = module.clip_grad_norm_
        self._replace(torch, "compile", self._compiling.make_compile)
        self._replace(torch.autograd, "backward", self._losses.make_backward)

    def _attach_dynamo(self, module: Any) -> None:
        """What dynamo runs of ours between its graphs must not be compiled in its turn."""
        from ..pytorch.compiling import own_code

        for code in own_code():
            module.skip_code(code)
        if hasattr(module, "OptimizedModule"):
            self._replace(module.OptimizedModule, "__call__", self._compiling.make_optimized_call)

    def _make_noting(self, found: weakref.WeakKeyDictionary[Any, bool]) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def initialize(owner: Any, *arguments: Any, **keywords: Any) -> None:
                original(owner, *arguments, **keywords)
                if self._watched.only is None:
                    found[owner] = True

            return initialize

        return make

    def _make_output_hook(self) -> Function:
        training, look = self._training, self._checks.of_output

        def hook(module: Any, _arguments: Any, output: Any) -> None:
            if not training.is_compiling() and training.torch.is_grad_enabled():
                training.capture.attempt(look, training.threads.held, module, output)

        return hook

    def take(self, model: Any, optimizers: list[Any]) -> None:
        """Watch these optimizers, and none that was not given."""
        self._watched.only = (self._watched.only or set()) | set(map(id, optimizers))
        self._training.modules.registered(model, "", None)
        for optimizer in optimizers:
            self._steps.watch(optimizer)
            if "step" in vars(optimizer):  # a schedule has put its own in front
                optimizer.step = self._steps.make_own_step(optimizer, optimizer.step)

    def release(self, optimizers: Iterable[Any]) -> None:
        """Watch these no longer."""
        for optimizer in optimizers:
            if self._watched.only is not None:
                self._watched.only.discard(id(optimizer))
            self._watched.records.pop(id(optimizer), None)
        if not self._watched.records:
            held = self._training.threads.held
            self._beginnings.disarm(held)
            held.end(None)


class Guard:
    """Watches a script's own optimizers until it is closed; also as a context."""

    def __init__(self, watch: TorchWatch | None, optimizers: list[Any]) -> None:
        self._watch = watch
        self._optimizers = optimizers

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.release(self._optimizers)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
