"""Checks the losses, modules' outputs and gradients of a PyTorch step, before an optimizer applies them."""

from __future__ import annotations

import functools
import math

from ..pytorch import private_api
from ..pytorch.tensor_names import TensorNames, module_name
from ..pytorch.tensors import is_tensor
from . import checks
from .header import ACTIVATION, GRADIENT, Trigger
from .header import LOSS as OF_LOSS
from .random_states import RandomStates
from .settings import ASKED
from .torch_copies import UpdateBackup
from .torch_finite import FiniteTests
from .torch_ranks import RankCoordinator
from .torch_steps import ThreadSteps, TrainingStep, UsualSteps, WatchedObjects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..pytorch.state import Modules
    from . import CaptureSession
    from .header import SnapshotHeader
    from .torch_steps import OptimizerSteps, StepFindings

MAX_TRIGGERS = 1000


def gradients_of(records: list[OptimizerSteps]) -> list[Any]:
    """Return the gradients that these optimizers would apply."""
    return [gradient for record in records for gradient in record.gradients()]


class CaptureContext:
    """What the parts of a capture share: the watched objects, and each thread's step."""

    def __init__(self, capture: CaptureSession, torch: Any, modules: Modules) -> None:
        self.capture = capture
        self.torch = torch
        self.modules = modules
        self.watched = WatchedObjects()
        path = capture.settings.library
        compiled = capture.attempt(private_api.compiled, torch, path) if path else None
        self.tests = FiniteTests(torch, compiled)
        self.ranks = RankCoordinator(torch)
        self._make_random = functools.partial(RandomStates, torch, compiled)
        self.threads = ThreadSteps(self._new_steps)
        self.header_listeners: list[Callable[[SnapshotHeader], None]] = []  # called with each snapshot that is saved
        self.take = capture.settings.take  # the one step that is captured, if a replay is asked for it
        self.is_taken = self.is_over = False  # whether it was saved, and whether something was wrong in it
        self.is_testing = not self.take  # whether steps are tested: a replay for one step's snapshot tests that step

    def _new_steps(self) -> UsualSteps:
        """Return the first step of a thread, whose optimizers another thread may have created."""
        step = TrainingStep(self.torch, self._make_random)
        step.armed = bool(self.watched.alive())
        return UsualSteps(step, self.watched, self.ranks.forget)

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self.threads = ThreadSteps(self._new_steps)

    def is_recorded(self) -> bool:
        """Return whether a CUDA graph is being captured; no operator of reprokit's may get into it."""
        return bool(private_api.uses_cuda(self.torch) and self.torch.cuda.is_current_stream_capturing())

    def backs_up(self, step: TrainingStep, record: OptimizerSteps) -> bool:
        """Back up the state before an update if it is due; return whether to test the parameters after it."""
        if self.take is not None and not (self.is_testing and self.is_taken and record.steps == self.take):
            return False
        backup, recent = record.backup, step.losses.recent
        if backup is None:
            backup = record.backup = UpdateBackup(self.torch, self.tests, record.reference())
        loss = recent[-1] if recent else 0.0
        if record.steps in backup.without and type(loss) is float and -backup.limit <= loss <= backup.limit:
            return False  # the usual step: keep() would say so too
        return backup.keep(record.steps, loss)

    def names(self) -> TensorNames:
        """Return the names of this thread's parameters."""
        return TensorNames(self.models(), [record.reference() for record in self.watched.alive()])

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of all optimizers by name."""
        return self.names().parameters

    def models(self) -> list[Any]:
        """Return the models that own parameters of any optimizer."""
        return self.modules.owners(self.watched.parameters(), self.torch.nn.Module)

    def note_step(self) -> None:
        """Test what comes if it is of the step that is asked for, to which no optimizer is an update behind."""
        if self.take is not None:
            steps = [record.steps for record in self.watched.alive()]
            self.is_testing = self.take in steps and self.take - 1 not in steps and not self.is_over
            if max(steps, default=0) <= self.capture.settings.take_from:
                self.threads.step.losses.recent.clear()  # nobody computed it in this replay

    def note_taken(self, trigger: Trigger) -> None:
        """Test nothing further if something was wrong in the step that was asked for; else the rest of the step."""
        self.is_taken, self.is_over = True, trigger.condition != ASKED
        self.is_testing = not self.is_over

    def triggers(self, kind: str, records: list[OptimizerSteps]) -> list[Trigger]:
        """Return a trigger for each gradient, or parameter, of these optimizers that is not finite."""
        parameters = {id(parameter): parameter for record in records for parameter in record.parameters()}
        triggers: list[Trigger] = []
        names = self.names()
        for parameter in parameters.values():
            tensor = parameter.grad if kind == GRADIENT else parameter.data
            if tensor is not None and len(triggers) < MAX_TRIGGERS:
                trigger = checks.elements(kind, names.of(parameter), *self.tests.count(tensor))
                triggers += [] if trigger is None else [trigger]
        return triggers


class StepChecks:
    """Checks losses, modules' outputs and gradients, and makes triggers of what is wrong."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._torch = training.torch
        self._tests = training.tests
        self._conditions = training.capture.settings.conditions

    # Gradients

    def update_triggers(self, step: TrainingStep, records: list[OptimizerSteps], is_scaled: bool) -> list[Trigger]:
        """Return triggers for gradients about to be applied, and for losses and outputs on GPUs."""
        findings, training, is_fine = step.findings, self._training, True
        triggers: list[Trigger] = []
        if not training.is_testing:
            return triggers
        signals = self.signals(findings) if findings.device_losses or findings.device_counts else []
        if is_scaled:
            is_fine = not signals
        else:
            gradients = records[0].gradients() if len(records) == 1 else gradients_of(records)
            if signals or not (findings.finite_gradients and findings.are_known_finite(gradients)):
                is_fine = self._tests.are_finite([*gradients, *signals] if signals else gradients)
                if is_fine and len(records) > 1:
                    findings.note_finite(gradients, set(map(id, records)))
        if not is_fine:
            triggers += self.device_triggers(findings)
            triggers += [] if is_scaled else training.triggers(GRADIENT, records)
        if self._conditions.gradient_jump is not None and not is_scaled:
            for record in records:
                triggers += self._norm_trigger(record)
        if signals and not triggers and self._conditions.loss_above is not None:
            triggers += self.device_triggers(findings)
        is_asked = training.take is not None and not training.is_taken
        if is_asked and not (triggers or findings.triggers):
            triggers.append(checks.asked())
        return triggers

    def _norm_trigger(self, record: OptimizerSteps) -> list[Trigger]:
        """Return a trigger if the norm of an optimizer's gradients is far above its running mean."""
        factor, norms, gradients = self._conditions.gradient_jump or 0.0, record.norms, record.gradients()
        norm = self._tests.norm(gradients) if gradients else math.nan
        if norm - norm != 0:
            return []
        trigger = checks.jump(norm, factor, norms.mean) if norms.count >= checks.WARM else None
        if trigger is None:
            norms.add(norm)
        return [] if trigger is None else [trigger]

    # On devices

    def signals(self, findings: StepFindings, with_limit: bool = False) -> list[Any]:
        """Return scalars on GPUs, one of which is not finite if a loss or a module's output there is not.

        ``with_limit``: also if a loss there is above its limit.
        """
        above = self._conditions.loss_above if with_limit else None
        counts = [(-self._device_counts(findings).sum()).sqrt()] if findings.device_counts else []
        return [
            *findings.device_losses,
            *counts,
            *[(above - loss).sqrt() for loss in findings.device_losses if above is not None],
        ]

    def _device_counts(self, findings: StepFindings) -> Any:
        """Return for each module's output on a GPU how many of its elements are not finite."""
        counts = [count for _, count, _ in findings.device_counts]
        return self._torch.stack([count.to(counts[0].device) for count in counts])

    def device_triggers(self, findings: StepFindings) -> list[Trigger]:
        """Return triggers for modules' outputs and losses that lie on a GPU; waits for it."""
        counts = self._device_counts(findings).cpu().tolist() if findings.device_counts else []
        bad = [(module, count, of) for count, (module, _, of) in zip(counts, findings.device_counts) if count]
        losses = [checks.loss(float(loss.item()), self._conditions.loss_above) for loss in findings.device_losses]
        activations = [self._activation(*output) for output in bad[:1]]
        return activations + [trigger for trigger in losses if trigger is not None]

    # Losses and outputs

    def check_loss(self, step: TrainingStep, loss: Any, number: tuple[str, float] | None = None) -> None:
        """Check a loss, or keep it for later if it lies on a GPU."""
        triggers = step.findings.triggers
        if number is not None:
            value = number[1]
            if value - value == 0 and self._conditions.loss_above is None:
                step.losses.recent.append(value)  # the usual step, without further calls
            else:
                self._check_value(step, value)
        elif loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                self._check_value(step, float(loss.item()))
                return
            value = loss.detach()
            step.losses.recent.append(value)
            step.findings.device_losses.append(value)
        elif loss.is_cpu and self._training.is_testing and not bool(self._torch.isfinite(loss.detach()).all()):
            triggers.append(Trigger(OF_LOSS, "not finite"))

    def _check_value(self, step: TrainingStep, value: float) -> None:
        step.losses.recent.append(value)
        trigger = checks.loss(value, self._conditions.loss_above) if self._training.is_testing else None
        step.findings.triggers += [] if trigger is None else [trigger]

    def check_output(self, findings: StepFindings, module: Any, output: Any) -> None:
        """Check a module's output; on a GPU, only start counting its non-finite elements."""
        if not self._training.is_testing or any(trigger.kind == ACTIVATION for trigger in findings.triggers):
            return
        for tensor in output if isinstance(output, (list, tuple)) else [output]:
            if not is_tensor(tensor) or not tensor.is_floating_point():
                continue
            if not tensor.is_cpu:
                if not self._training.is_recorded():
                    findings.device_counts.append(
                        (module, self._tests.not_finite(tensor.detach()), int(tensor.numel()))
                    )
                continue
            count, of = self._tests.count(tensor.detach())
            if count:
                findings.triggers.append(self._activation(module, count, of))
                return

    def _activation(self, module: Any, count: int, of: int) -> Trigger:
        name = module_name(self._training.models(), module)
        return Trigger(ACTIVATION, "not finite", name=name, count=count, of=of)
