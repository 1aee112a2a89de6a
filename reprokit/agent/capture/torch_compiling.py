"""Compiled models and functions, in which no hook sees a step begin or an optimizer apply it."""

from __future__ import annotations

from .torch_training import drop_gradients

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..events import ForwardBegan, ForwardEnded
    from .torch_alarms import Alarms
    from .torch_beginnings import Beginnings
    from .torch_held import TrainingStep
    from .torch_losses import Losses
    from .torch_steps import Refusals, StepEnds
    from .torch_training import Training


class Compiling:
    """Looks at steps from outside of compiled code."""

    def __init__(
        self,
        training: Training,
        alarms: Alarms,
        beginnings: Beginnings,
        losses: Losses,
        refusals: Refusals,
        ends: StepEnds,
    ) -> None:
        self._training = training
        self._watched = training.watched
        self._alarms = alarms
        self._beginnings = beginnings
        self._losses = losses
        self._refusals = refusals
        self._ends = ends

    def forward_began(self, event: ForwardBegan) -> None:
        """A compiled function is called: an optimizer's step may be in it, which no hook sees."""
        held, watched = self._training.threads.held, self._watched
        held.update.is_compiled = True
        if held.armed:
            self._begin(held, event)
        if event.module is not None:
            return
        if held.round != held.update.tested and not held.findings.skipped:
            self._losses.test_compiled(held)
            if held.findings.triggers:
                self._alarms.alarm(held, self._alarms.due(held), held.findings.triggers)
        if held.findings.skipped:
            drop_gradients(watched.alive())
        updates = self._training.updates
        tested = {id(record) for record in watched.alive() if updates.before(held, record, record.reference())}
        event.state = watched.steps, watched.versions(), tested

    def _begin(self, held: TrainingStep, event: ForwardBegan) -> None:
        if not self._training.torch.is_grad_enabled():
            held.look()
            return
        held.armed = False
        self._beginnings.begin(held, event.module)
        name, given = "" if event.module is None else event.module, [event.arguments, dict(event.keywords)]
        if not held.batches.are_loaded:
            held.batches.add("forward", given, name)
        elif held.batches.is_ahead:
            held.start.enter(name, given)

    def forward_ended(self, event: ForwardEnded) -> None:
        """It has returned, or failed."""
        if not event.began.is_compiled:
            return
        held, seen = self._training.threads.held, event.began.state
        held.update.is_compiled = False
        if seen is None or seen[0] != self._watched.steps:
            return
        if held.findings.skipped:
            for record in self._watched.alive():
                self._ends.skipped(held, record)
        elif seen[1] != self._watched.versions():
            for record in self._watched.alive():  # its step was compiled
                if id(record) in seen[2] and self._refusals.is_ruinous(held, record):
                    self._ends.skipped(held, record)
                else:
                    self._ends.applied(held, record)
