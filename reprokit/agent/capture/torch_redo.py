"""Does a captured step of PyTorch again, at the first step of the user's own script, and again on parts of its batch.

The script builds its model and optimizers and asks its DataLoader for a batch: it is given the snapshot's. Before the
first forward pass the snapshot's state is put into what the script built. Where the optimizer would update, the
gradients are compared, and the update is left out. The next turn of the user's loop is the next trial; a script that
ends before the search does is started again.
"""

from __future__ import annotations

import atexit
import os
import sys

from ..observing.torch_inputs import tensors as tensors_in
from ..pytorch.decisions import own_step
from ..pytorch.state import Modules
from . import torch_hooks
from .reading import SnapshotError
from .redo import EXPLAIN, RedoDriver
from .torch_fit import Built
from .torch_inputs import RedoInputs
from .torch_outcome import judged
from .torch_trials import CapturedStep, RedoThread, StepTrials
from .trigger import ACTIVATION, CONDITION, PARAMETER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import CaptureSession

    Function = Callable[..., Any]


class TorchRedo:
    """Waits for PyTorch."""

    def __init__(self, capture: CaptureSession) -> None:
        self._driver = RedoDriver(capture)
        self._watch: RedoWatch | None = None

    def begin(self, name: str, module: Any) -> None:
        """Attach to PyTorch, or to a module of it."""
        if name == "torch":
            self._watch = self._begin(module)
        elif self._watch is not None and self._watch.trials.is_active:
            self._watch.hooks.watch(name, module)

    def _begin(self, torch: Any) -> RedoWatch:
        driver = self._driver
        if driver.mode == EXPLAIN:
            os.environ["TORCH_COMPILE_DISABLE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
        try:
            return RedoWatch(torch, driver)
        except SnapshotError as error:
            driver.trouble(str(error))
        except (KeyError, TypeError, ValueError) as error:
            driver.trouble(f"{driver.path} cannot be used: {error!r}")

    def forget(self) -> None:
        """A forked child works for the loader."""
        if self._watch is not None:
            self._watch.trials.is_attached = self._driver.is_done = False


class RedoWatch:
    """Is told of batches, calls, backward passes and updates, and drives the trials by them."""

    def __init__(self, torch: Any, driver: RedoDriver) -> None:
        self._torch = torch
        self._driver = driver
        modules = Modules()
        self.hooks = torch_hooks.RedoHooks(torch, self)
        built = Built(torch, driver.file, self.hooks, modules, driver.problem)
        captured = CapturedStep(driver.file, built, driver.header.trigger)
        self._trigger = captured.trigger
        self.trials = StepTrials(torch, driver, built, captured)
        self._thread = RedoThread()
        self._inputs = RedoInputs(self.trials, self._thread)
        for part, found in torch_hooks.loaded_with(torch):
            self.hooks.watch(part, found)
        self._watch_modules(modules)
        if any(turn.targets for turn in captured.turns):
            try:
                self.hooks.watch_losses(torch)
            except (AttributeError, TypeError):  # PyTorch before 2.0
                driver.problem("targets of losses are the script's own")
        atexit.register(self.trials.ended)

    def _watch_modules(self, modules: Modules) -> None:
        module: Any = sys.modules["torch.nn.modules.module"]
        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(modules.registered)
        if self._trigger.kind == ACTIVATION:
            module.register_module_forward_hook(self._look_at_output)

    def _look_at_output(self, module: Any, _inputs: Any, output: Any) -> None:
        trials = self.trials
        if not trials.is_active or not trials.trial.is_begun:
            return
        for tensor in tensors_in(self._torch, output):
            found = judged(self._torch, ACTIVATION, trials.built.name_of(module), tensor)
            trials.trial.not_finite += [] if found is None else [found]

    # What the hooks tell

    def fetch(self, original: Callable[[], Any], iterator: Any) -> Any:
        """A loader's iterator is asked for its next batch."""
        self._driver.require_end()
        return self._inputs.fetch(original, iterator)

    def target(self, target: Any) -> Any:
        """A loss is computed against this."""
        return self._inputs.target(target)

    def call(self, original: Function, module: Any, arguments: Any, keywords: Any) -> Any:
        """A module is called, or a compiled function, which is none."""
        thread = self._thread
        depth = thread.depth
        thread.depth = depth + 1
        try:
            if self.trials.is_active and not depth and not (thread.fetching or thread.in_backward):
                arguments, keywords = self._inputs.called(module, arguments, keywords)
            return original(module, *arguments, **keywords)
        except Exception as error:
            if self.trials.is_active and not depth and self.trials.trial.is_begun:
                self.trials.failed(f"{type(error).__name__}: {str(error)[:200]}")
            raise
        finally:
            thread.depth = depth

    def backward(self, original: Callable[[], Any], tensors: Any) -> Any:
        """A backward pass is begun."""
        if not self.trials.is_active or self._thread.in_backward:
            return original()
        trial = self.trials.trial
        if trial.is_begun:
            losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
            trial.losses += [self._thread.unscaled(loss) for loss in losses]
        self._thread.in_backward = True
        try:
            result = original()
        finally:
            self._thread.in_backward = False
        trial.passes += trial.is_begun
        trial.root = None
        if trial.is_begun and self.trials.captured.is_about_loss and not self._thread.in_closure:
            self._conclude_early(all(loss.is_cpu for loss, _ in trial.losses))
        return result

    def scale(self, loss: Any, scaled: Any) -> None:
        """A GradScaler has multiplied a loss."""
        self._thread.scaled = (scaled, loss) if isinstance(loss, self._torch.Tensor) else (None, None)

    def clip(self, original: Callable[[], Any]) -> Any:
        """Gradients are to be clipped: captures look at them before."""
        if self.trials.is_active and self.trials.trial.is_begun and self._thread.scaled[0] is None:
            self._conclude_early(self._trigger.kind != CONDITION)
        return original()

    def _conclude_early(self, may: bool) -> None:
        """Before the update, where the capture was made so early: as soon as what it was made for is seen."""
        if may and self.trials.is_seen():
            self.trials.conclude()

    def step(self, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """An optimizer is to update."""
        self._driver.require_end()
        if not self.trials.is_active:
            return original(optimizer, *arguments, **keywords)
        if self._thread.in_step:
            return None  # of an optimizer within another's step
        self._thread.stepped = True
        closure = keywords.get("closure", arguments[0] if arguments else None)
        if callable(closure) and not (own_step(type(optimizer)) and self.trials.is_seen()):
            self._thread.in_step = True
            try:
                return self._step_by(original, optimizer, closure)
            finally:
                self._thread.in_step = False
        if self._trigger.kind == PARAMETER and self.trials.trial.is_begun and self.trials.built.is_held_back(optimizer):
            original(optimizer, *arguments, **keywords)
            self._look_at_parameters(optimizer)
        self.trials.arrived(optimizer)
        return None

    def _look_at_parameters(self, optimizer: Any) -> None:
        """What the captured update, made again, has made of the parameters."""
        for name, parameter in self.trials.built.parameters([optimizer]):
            found = judged(self._torch, PARAMETER, name, parameter)
            if found is not None:
                self.trials.trial.not_finite.append(found)
                self.trials.trial.updated.append(parameter)

    def part(self, original: Callable[[], Any], optimizer: Any, name: str) -> Any:
        """An optimizer is to make a part of a step: the first one, with gradients that are good, moves parameters."""
        self._driver.require_end()
        trial = self.trials.trial if self.trials.is_active else None
        if trial is None or self._thread.in_step:
            return original()
        if trial.is_begun and trial.part in (None, name) and not self.trials.is_seen():
            trial.part = name
            return original()
        if trial.is_begun:
            self.trials.arrived(optimizer)
        return None

    def _step_by(self, original: Function, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """The optimizer itself calls what computes loss and gradients, once or more often; it may go on in between."""
        loss = None

        def evaluate() -> Any:
            nonlocal loss
            self._thread.in_closure = True
            try:
                with self._torch.enable_grad():
                    loss = closure()
            finally:
                self._thread.in_closure = False
            if self.trials.is_seen():
                self.trials.arrived(optimizer)
                raise _Enough
            return loss

        try:
            original(optimizer, evaluate)
        except _Enough:
            return loss
        self.trials.arrived(optimizer)
        return loss

    def scaled_step(self, original: Function, optimizer: Any) -> Any:
        """A GradScaler is to call an optimizer, or to leave it where gradients overflowed."""
        self._thread.stepped = False
        result = original()
        if self.trials.is_active and not self._thread.stepped:
            self.trials.arrived(optimizer)
        return result


class _Enough(Exception):
    """An optimizer need not go on."""
