"""Finds what is not as it should be in gradients and losses, and saves the state of the step's start."""

from __future__ import annotations

import sys

from ..pytorch.state import named_tensors, parts_of
from . import checks
from .settings import ROLLBACK, STOP
from .torch_held import Held
from .torch_snapshot import left_out_of
from .torch_state import Copy
from .torch_training import Training
from .torch_watched import Record, user_frames
from .trigger import ACTIVATION, PARAMETER, Trigger, in_words
from .trigger import LOSS as OF_LOSS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Alarms(Training):
    """Judges gradients and losses."""

    def _triggers(self, held: Held, records: list[Record], is_scaled: bool) -> list[Trigger]:
        """What is wrong with the gradients that are about to be applied, or with what lies on a GPU."""
        found, is_tested = [], False
        is_far = bool(held.far or held.counts)
        all_gradients = [] if is_scaled else [one.gradients() for one in records]
        gradients = [gradient for some in all_gradients for gradient in some]
        if gradients and (is_far or not held.are_clean(gradients)):
            is_tested = True
            table = records[0].table if len(records) == 1 else self._watched.together
            if self._gradients.are_finite(table, gradients, self._signals(held)):  # reads a GPU once for all
                if len(records) > 1:
                    held.note_clean(gradients, set(map(id, records)))
            else:
                found += self._far_triggers(held)
                found += self._snapshooter.gradient_triggers(self._models(), records)
        if self._settings.conditions.gradient_jump is not None:
            for some in filter(None, all_gradients):
                found += self._jump(held, some)
        if is_far and not found and (not is_tested or self._settings.conditions.loss_above is not None):
            found += self._far_triggers(held)
        return found

    def _signals(self, held: Held) -> list[Any]:
        """Numbers on GPUs, one of which is not finite where a loss or a module's output there is not."""
        return [*held.far, (-self._counted(held).sum()).sqrt()] if held.counts else held.far

    def _counted(self, held: Held) -> Any:
        """How many elements of modules' outputs on GPUs are not finite, one number for each."""
        counts = [count for _, count, _ in held.counts]
        return self._torch.stack([count.to(counts[0].device) for count in counts])

    def _far_triggers(self, held: Held) -> list[Trigger]:
        """What is wrong with modules' outputs and losses that lie on a GPU."""
        counts = self._counted(held).cpu().tolist() if held.counts else []
        bad = [(module, count, of) for count, (module, _, of) in zip(counts, held.counts) if count]  # noqa: B905
        losses = [checks.loss(float(loss.item()), self._settings.conditions.loss_above) for loss in held.far]
        found = [self._activation_trigger(*one) for one in bad[:1]]
        return found + [trigger for trigger in losses if trigger is not None]

    def _activation_trigger(self, module: Any, count: int, of: int) -> Trigger:
        name = self._snapshooter.module_name(self._models(), module)
        return Trigger(ACTIVATION, "not finite", name=name, count=count, of=of)

    def _jump(self, held: Held, gradients: list[Any]) -> list[Trigger]:
        """Whether the norm of the gradients is far above its mean so far."""
        factor, norm = self._settings.conditions.gradient_jump or 0.0, self._gradients.norm(gradients)
        if norm - norm != 0:
            return []
        found = checks.jump(norm, factor, held.norms.mean) if held.norms.count >= checks.WARM else None
        if found is None:
            held.norms.add(norm)
        return [] if found is None else [found]

    def _judge(self, held: Held, loss: Any) -> None:
        if loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                value = float(loss.item())
                held.losses.append(value)
                if value - value != 0 or self._settings.conditions.loss_above is not None:
                    trigger = checks.loss(value, self._settings.conditions.loss_above)
                    held.triggers += [] if trigger is None else [trigger]
                return
            far = loss.detach()
            held.losses.append(far)
            held.far.append(far)
        elif loss.is_cpu and not bool(self._torch.isfinite(loss.detach()).all()):
            held.triggers.append(Trigger(OF_LOSS, "not finite"))

    def _due(self, held: Held) -> list[Record]:
        """The optimizers whose turn comes after this backward pass: one, and those that step together with it."""
        records = self._with_gradients()
        records = [one for one in records if any(id(p) in held.reached for p in one.parameters())] or records
        first = min(records, key=lambda record: record.turn(held.round), default=None)
        return (
            []
            if first is None
            else [first, *[one for one in records if one in self._watched.following(first, held.round)]]
        )

    def _with_gradients(self) -> list[Record]:
        records = self._watched.alive()
        return [record for record in records if record.gradients()] or records

    def _alarm(self, held: Held, records: list[Record], triggers: list[Trigger]) -> None:
        """Save the state of the step's start, and see that its gradients are not applied."""
        step = records[0].steps
        ruined = [one for one in records if triggers[0].kind != PARAMETER and self._updates.is_ruined(one)]
        if ruined:
            step, triggers = self._before_ruin(held, ruined, triggers)
        if held.phase is not None and held.phase.copy is not None:
            self._capture.attempt(held.phase.copy.put_back)
            held.phase.copy = None
        triggers = self._capture.attempt(self._ranks.heard, triggers, self._parameters) or triggers
        began_here = self._capture.attempt(self._ranks.began_here, triggers)
        where, optimizers = tuple(user_frames(sys._getframe(1))), tuple(self._watched.names(records))
        first = triggers[0].with_(began_here=began_here, where=where, optimizers=optimizers)
        path = self._capture.attempt(self._save, held, step, [first, *triggers[1:]])
        held.triggers = []
        held.skipped = set(map(id, records))
        if self._settings.action == STOP:
            self._capture.attempt(self._ranks.wait)
        self._capture.captured(step, in_words(first), path)
        if self._settings.action == ROLLBACK and self._copy is not None:
            self._capture.attempt(self._copy.put_back)

    def _before_ruin(self, held: Held, records: list[Record], triggers: list[Trigger]) -> tuple[int, list[Trigger]]:
        """Go back to the last state whose parameters were finite; its batch is not there any more."""
        found = self._snapshooter.parameter_triggers(self._models(), records)
        steps = [self._updates.put_back(record) for record in records]
        found[0] = found[0].with_(updates=records[0].steps - steps[0])
        held.batches.restart()
        held.has_random = held.has_buffers = held.saw_loader = False
        held.entry, held.updated = [], None
        return steps[0], [*found, *triggers]

    def _save(self, held: Held, step: int, triggers: list[Trigger]) -> str | None:
        torch = self._torch
        with torch.no_grad(), torch._C.DisableTorchFunction():
            contents = self._snapshooter.contents(held, self._models(), step, triggers)
            header, parts = self._ranks.complete(*contents)
        for note in left_out_of(header["batches"]):
            self._capture.say_once(note)
        return self._capture.save(header, parts)

    def _keep_copy(self) -> None:
        """Where training is to be rolled back: the state to go back to, now and then."""
        if self._copy is not None and self._since_copy < self._settings.rollback_every:
            return
        tensors = {id(t): t for model in self._models() for _, t in named_tensors(parts_of(model))}
        optimizers = [record.reference() for record in self._watched.alive()]
        for record in self._watched.alive():
            tensors.update({id(parameter): parameter for parameter in record.parameters()})
        others = [*self._watched.scalers, *self._watched.schedules]
        self._copy, self._since_copy = Copy(self._torch, tensors.values(), optimizers, others), 0
