"""Checks the losses, modules' outputs and gradients of a PyTorch step, before an optimizer applies them.

On the CPU compiled code reads them in place. On any other device all of them set one flag, which is read once.
"""

from __future__ import annotations

import functools
import math

from ..core.signal_errors import pass_on
from ..core.trail_library import FORMATS
from ..pytorch import private_api
from ..pytorch.state import module_name
from ..pytorch.tensors import dtype_name, is_tensor, numbers
from . import checks
from .header import ACTIVATION, GRADIENT, Trigger
from .header import LOSS as OF_LOSS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from .torch_capture import CaptureContext, OptimizerSteps
    from .torch_steps import StepFindings, TrainingStep


class FiniteTests:
    """Tests whether tensors are finite, on any device."""

    def __init__(self, torch: Any, compiled: Any = None) -> None:
        self._torch = torch
        # Returns whether all tensors of a list are finite, or None if it cannot tell.
        self.at_once: Callable[[list[Any]], bool | None] = lambda _tensors: None
        if compiled is not None and hasattr(torch.Tensor, "nbytes"):  # PyTorch 2.1
            formats = {getattr(torch, name): FORMATS[name] for name in FORMATS if hasattr(torch, name)}
            self.at_once = functools.partial(compiled.finite, torch.Tensor, formats)
        self._unit_scales: dict[Any, Any] = {}

    def are_finite(self, tensors: list[Any]) -> bool:
        """Return whether all of these tensors are finite; waits for each GPU only once."""
        try:
            answer = self.at_once(tensors)
        except Exception as error:  # the slower test below handles it, or raises its own error
            pass_on(error)
            answer = None
        if answer is not None:
            return answer
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return self._are_finite(tensors)

    def _are_finite(self, tensors: Iterable[Any]) -> bool:
        by_device: dict[tuple[Any, Any], list[Any]] = {}
        for tensor in map(values_of, tensors):
            if tensor.is_cpu:
                if not bool(self._torch.isfinite(tensor).all()):
                    return False
            elif tensor.is_floating_point() or tensor.is_complex():
                by_device.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        return not any(flag.item() for flag in self._flags(by_device))

    def _flags(self, by_device: dict[tuple[Any, Any], list[Any]]) -> list[Any]:
        """Return one flag for each device, which is not 0 if any tensor there is not finite; tensors stay unchanged."""
        torch, flags = self._torch, {}
        for (device, _), tensors in by_device.items():
            if device not in flags:
                flags[device] = torch.zeros(1, device=device)
            if device not in self._unit_scales:
                self._unit_scales[device] = torch.ones(1, device=device)
            try:
                private_api.flag_not_finite(torch, tensors, flags[device], self._unit_scales[device])
            except RuntimeError:  # not implemented for this device or dtype
                flags[device] += ~torch.stack([torch.isfinite(tensor).all() for tensor in tensors]).all()
        return list(flags.values())

    def count(self, tensor: Any) -> tuple[int, int]:
        """Return how many elements are not finite, and how many there are."""
        return int(self.not_finite(tensor)), int(tensor.numel())

    def not_finite(self, tensor: Any) -> Any:
        """Return how many elements are not finite, as a scalar tensor on the tensor's device."""
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return (~self._torch.isfinite(values_of(tensor))).sum()

    def norm(self, gradients: Sequence[Any]) -> float:
        """Return the L2 norm of all gradients together."""
        torch = self._torch
        with torch.no_grad(), private_api.without_overrides(torch):
            norms = [torch.linalg.vector_norm(numbers(values_of(gradient)).float()) for gradient in gradients]
            device = norms[0].device
            return float(torch.linalg.vector_norm(torch.stack([norm.to(device) for norm in norms])))


def gradients_of(records: list[OptimizerSteps]) -> list[Any]:
    """Return the gradients that these optimizers would apply."""
    return [gradient for record in records for gradient in record.gradients()]


def values_of(tensor: Any) -> Any:
    """Return the plain tensor with all stored numbers of a sparse or distributed tensor (then, of its local shard)."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    tensor = private_api.stored_values(tensor)
    return tensor.float() if dtype_name(tensor).startswith("float8") else tensor


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
        findings, triggers, is_fine = step.findings, [], True
        signals = self.signals(findings) if findings.device_losses or findings.device_counts else []
        if is_scaled:
            is_fine = not signals
        elif signals or not (findings.finite_gradients and findings.are_known_finite(gradients_of(records))):
            is_fine = self._tests.are_finite([*gradients_of(records), *signals])
            if is_fine and len(records) > 1:
                findings.note_finite(gradients_of(records), set(map(id, records)))
        if not is_fine:
            triggers += self.device_triggers(findings)
            triggers += [] if is_scaled else self._training.triggers(GRADIENT, records)
        if self._conditions.gradient_jump is not None and not is_scaled:
            for record in records:
                triggers += self._norm_trigger(record)
        if signals and not triggers and self._conditions.loss_above is not None:
            triggers += self.device_triggers(findings)
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
            self._check_value(step, number[1])
        elif loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                self._check_value(step, float(loss.item()))
                return
            value = loss.detach()
            step.losses.recent.append(value)
            step.findings.device_losses.append(value)
        elif loss.is_cpu and not bool(self._torch.isfinite(loss.detach()).all()):
            triggers.append(Trigger(OF_LOSS, "not finite"))

    def _check_value(self, step: TrainingStep, value: float) -> None:
        step.losses.recent.append(value)
        trigger = checks.loss(value, self._conditions.loss_above)
        step.findings.triggers += [] if trigger is None else [trigger]

    def check_output(self, findings: StepFindings, module: Any, output: Any) -> None:
        """Check a module's output; on a GPU, only start counting its non-finite elements."""
        if any(trigger.kind == ACTIVATION for trigger in findings.triggers):
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
