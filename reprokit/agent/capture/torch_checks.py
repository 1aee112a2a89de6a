"""Judges the losses, modules' outputs and gradients of a step of PyTorch, wherever they lie."""

from __future__ import annotations

from ..pytorch.state import module_name
from ..pytorch.tensors import is_tensor
from . import checks
from .trigger import ACTIVATION, Trigger
from .trigger import LOSS as OF_LOSS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import OutputComputed
    from .torch_held import TrainingStep
    from .torch_training import OptimizerSteps, Training


class StepChecks:
    """Judges losses, modules' outputs and gradients."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._torch = training.torch
        self._gradients = training.gradients
        self._conditions = training.settings.conditions

    def of_update(self, held: TrainingStep, records: list[OptimizerSteps], is_scaled: bool) -> list[Trigger]:
        """What is wrong with the gradients that are about to be applied, or with what lies on a GPU."""
        found, is_tested, seen = [], False, held.findings
        is_far = bool(seen.far or seen.counts)
        all_gradients = [] if is_scaled else [one.gradients() for one in records]
        gradients = [gradient for some in all_gradients for gradient in some]
        if gradients and (is_far or not seen.are_clean(gradients)):
            is_tested = True
            table = records[0].table if len(records) == 1 else self._training.watched.together
            if self._gradients.are_finite(table, gradients, self.signals(held)):  # reads a GPU once for all
                if len(records) > 1:
                    seen.note_clean(gradients, set(map(id, records)))
            else:
                found += self.on_devices(held)
                found += self._training.gradient_triggers(records)
        if self._conditions.gradient_jump is not None:
            for some in filter(None, all_gradients):
                found += self._jump(held, some)
        if is_far and not found and (not is_tested or self._conditions.loss_above is not None):
            found += self.on_devices(held)
        return found

    def is_fine(self, held: TrainingStep, record: OptimizerSteps, optimizer: Any) -> bool:
        """Whether the gradients of the only optimizer lie here and are finite, as in most steps."""
        if held.findings.are_any() or self._conditions.gradient_jump is not None:
            return False
        if len(self._training.watched.records) > 1:
            return False
        try:
            found = self._gradients.of_groups(optimizer.param_groups)
            return self._gradients.are_finite_here(record.table, record.gradients()) if found is None else found
        except Exception:  # whatever it is, the slower way knows it, or says so
            return False

    def _jump(self, held: TrainingStep, gradients: list[Any]) -> list[Trigger]:
        """Whether the norm of the gradients is far above its mean so far."""
        factor, norm = self._conditions.gradient_jump or 0.0, self._gradients.norm(gradients)
        if norm - norm != 0:
            return []
        norms = held.findings.norms
        found = checks.jump(norm, factor, norms.mean) if norms.count >= checks.WARM else None
        if found is None:
            norms.add(norm)
        return [] if found is None else [found]

    # On devices

    def signals(self, held: TrainingStep) -> list[Any]:
        """Numbers on GPUs, one of which is not finite where a loss or a module's output there is not."""
        seen = held.findings
        return [*seen.far, (-self._counted(held).sum()).sqrt()] if seen.counts else seen.far

    def signals_with_limit(self, held: TrainingStep) -> list[Any]:
        """The same, and where a loss there is beyond its limit."""
        above = self._conditions.loss_above
        return [*self.signals(held), *[(above - loss).sqrt() for loss in held.findings.far if above is not None]]

    def _counted(self, held: TrainingStep) -> Any:
        """How many elements of modules' outputs on GPUs are not finite, one number for each."""
        counts = [count for _, count, _ in held.findings.counts]
        return self._torch.stack([count.to(counts[0].device) for count in counts])

    def on_devices(self, held: TrainingStep) -> list[Trigger]:
        """What is wrong with modules' outputs and losses that lie on a GPU."""
        seen = held.findings
        counts = self._counted(held).cpu().tolist() if seen.counts else []
        bad = [(module, count, of) for count, (module, _, of) in zip(counts, seen.counts) if count]
        losses = [checks.loss(float(loss.item()), self._conditions.loss_above) for loss in seen.far]
        found = [self._activation(*one) for one in bad[:1]]
        return found + [trigger for trigger in losses if trigger is not None]

    # Losses

    def of_loss(self, held: TrainingStep, loss: Any) -> None:
        """Judge a loss, or keep it for later where it lies on a GPU."""
        if loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                value = float(loss.item())
                held.losses.last.append(value)
                trigger = checks.loss(value, self._conditions.loss_above)
                held.findings.triggers += [] if trigger is None else [trigger]
                return
            far = loss.detach()
            held.losses.last.append(far)
            held.findings.far.append(far)
        elif loss.is_cpu and not bool(self._torch.isfinite(loss.detach()).all()):
            held.findings.triggers.append(Trigger(OF_LOSS, "not finite"))

    def is_plain_loss(self, held: TrainingStep, loss: Any) -> bool:
        """Whether it is a finite number on the CPU, as in most steps; then it is kept as such."""
        if held.losses.is_scaled or self._conditions.loss_above is not None:
            return False
        if type(loss) is not self._torch.Tensor or not loss.is_cpu:
            return False
        value = loss.item() if loss.numel() == 1 else None
        if type(value) is not float or value - value != 0:
            return False
        held.losses.last.append(value)
        held.losses.of_step = value, loss.dtype, loss.shape
        return True

    # Modules' outputs

    def output_computed(self, event: OutputComputed) -> None:
        """Judge what a module gave, or count what of it is not finite where it lies on a GPU."""
        held, module, output = self._training.threads.held, event.module, event.output
        triggers = held.findings.triggers
        if not (held.is_begun and self._torch.is_grad_enabled()) or any(one.kind == ACTIVATION for one in triggers):
            return
        outputs = output if isinstance(output, (list, tuple)) else [output]
        for tensor in outputs:
            if not is_tensor(tensor) or not tensor.is_floating_point():
                continue
            if not tensor.is_cpu:
                if not self._training.is_recorded():
                    count = self._gradients.not_finite(tensor.detach())
                    held.findings.counts.append((module, count, int(tensor.numel())))
                continue
            count, of = self._gradients.count(tensor.detach())
            if count:
                triggers.append(self._activation(module, count, of))
                return

    def _activation(self, module: Any, count: int, of: int) -> Trigger:
        name = module_name(self._training.models(), module)
        return Trigger(ACTIVATION, "not finite", name=name, count=count, of=of)
