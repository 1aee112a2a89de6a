"""The training step of each thread as a state machine, and its start: fetched batches and module calls."""

from __future__ import annotations

import enum
from _thread import _local
from collections import deque

from ..pytorch.private_api import changes
from .torch_batches import StepBatches
from .torch_copies import BufferCopies, StateCopy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events.steps import BatchFetched, ForwardBegan, LoaderBegan, LoaderExhausted
    from .header import Trigger
    from .random_states import RandomReader, RandomStates
    from .torch_capture import CaptureContext, LoaderPass

LOSSES = 100
MAX_ENTRIES = 64


class StepState(enum.Enum):
    """The progress of a thread's step."""

    BETWEEN = 0  # no forward pass since the last update
    EVALUATED = 1  # only forward passes without gradients, as in an evaluation
    BEGUN = 2  # the step's first forward pass was seen


BETWEEN, EVALUATED, BEGUN = StepState


class ThreadKey(_local):
    """Identifies a thread. Its number would not do: a new thread may get the number of one that ended."""

    def __init__(self) -> None:
        self.key = object()


THIS_THREAD = ThreadKey()


class StepStart:
    """The random states, epoch and module call with which a step started."""

    def __init__(self, make_random: Callable[[], RandomStates]) -> None:
        self.random = make_random()  # generators' states at the first forward pass
        self.has_random = False
        self.handover_random = make_random()  # when a loader returned a batch, or after an update
        self.fetch_random: RandomReader | None = None  # of the last batch that was fetched before the forward pass
        self.update_random: RandomReader | None = None  # after the last update, where several optimizers take turns
        self.had_forward = False  # the step before called a module
        # Number of backward passes before the step, the module that began it, and whether that was in training mode.
        self.origin: tuple[int, Any, bool] = (0, None, True)
        self.epoch: LoaderPass | None = None
        self.root_calls: list[Any] = []  # arguments of the root model's calls, where a loader gives the batches
        self.root: Any = None

    def keep_random(self) -> None:
        """Save the generators' states as the step's own."""
        self.random.keep()
        self.has_random = True

    def note_update(self) -> None:
        """Save the generators' states after an update: another optimizer's step begins with these."""
        self.handover_random.keep()
        self.update_random = self.handover_random.taken()

    def forget(self) -> None:
        """Drop what belongs to the step that ended."""
        self.has_random = False
        self.root_calls = []
        self.root = self.fetch_random = None
        self.origin = (0, None, True)


class StepFindings:
    """Results of the checks of a step's gradients, losses and outputs, before the optimizer updates."""

    def __init__(self) -> None:
        self.triggers: list[Trigger] = []
        self.device_losses: list[Any] = []  # losses that lie on a GPU
        self.device_counts: list[tuple[Any, Any, int]] = []  # modules, counts of non-finite elements, sizes
        self.loss_parameters: set[int] = set()  # ids of the parameters that the triggering loss depends on
        self.skipped: set[int] = set()  # ids of the optimizers whose next update is not applied
        self.finite_gradients: dict[int, tuple[Any, int]] = {}  # tested gradients and their versions, by id
        self.finite_for: set[int] = set()  # ids of the optimizers that have yet to apply these

    def note_finite(self, gradients: list[Any], owners: set[int]) -> None:
        """Remember gradients that were tested and are finite, so that no GPU must be waited for again."""
        self.finite_gradients = {id(gradient): (gradient, changes(gradient)) for gradient in gradients}
        self.finite_for = owners

    def are_known_finite(self, gradients: list[Any]) -> bool:
        """Return whether all these gradients were found finite and have not changed since."""
        entries = [self.finite_gradients.get(id(gradient)) for gradient in gradients]
        return all(entry is not None and entry[1] == changes(each) for entry, each in zip(entries, gradients))

    def end(self, owner: object) -> None:
        """Drop the findings of the step that this optimizer has ended."""
        self.triggers, self.device_losses, self.device_counts, self.loss_parameters, self.skipped = (
            [],
            [],
            [],
            set(),
            set(),
        )
        self.finite_for.discard(id(owner))
        if not self.finite_for:
            self.finite_gradients = {}


class PartialUpdate:
    """The optimizer step of several parts that a thread is executing."""

    def __init__(self, first: str, copy: StateCopy | None) -> None:
        self.first = first  # name of the part that it began with
        self.copy = copy  # of the state before that part; None if the part was refused


class UpdateCalls:
    """How a thread is calling its optimizer: in parts, with a closure, or from compiled code."""

    def __init__(self) -> None:
        self.phase: PartialUpdate | None = None
        self.in_closure = False  # an optimizer is calling the closure that computes the loss
        self.is_compiled = False  # a compiled function is being called
        self.tested_after = -1  # the backward pass after which compiled code's gradients were tested last

    @property
    def is_refused(self) -> bool:
        """Whether an earlier part of the step was refused, so that the others are refused too."""
        return self.phase is not None and self.phase.copy is None


class StepLosses:
    """The recent losses of a thread, and the loss of its current step."""

    def __init__(self) -> None:
        self.recent: deque[Any] = deque(maxlen=LOSSES)
        self.current: Any = None  # the last loss that backward() was called on, or its number and shape
        self.is_scaled = False  # by a GradScaler, which skips overflows itself

    def note(self, loss: Any, number: tuple[str, float] | None) -> None:
        """Copy the loss of the step, as the script may change it before the update."""
        if number is not None:
            self.current = number, loss.shape
            return
        value = loss.detach()
        self.current = value.clone() if value.is_cpu and value.numel() == 1 else value

    def tensor(self, torch: Any) -> Any:
        """Return the loss of the step as a tensor, or None."""
        if type(self.current) is not tuple:
            return self.current
        (dtype, value), shape = self.current
        return torch.full(shape, value, dtype=getattr(torch, dtype))


class TrainingStep:
    """The training step of a thread: its state, its inputs, and the results of the checks."""

    def __init__(self, torch: Any, make_random: Callable[[], RandomStates]) -> None:
        self.thread = THIS_THREAD.key
        self.state = BETWEEN
        self.armed = False  # the next module call is recorded
        self.backward_count = 0  # calls of backward()
        self.batches = StepBatches(torch)
        self.buffers = BufferCopies(torch)
        self.start = StepStart(make_random)
        self.findings = StepFindings()
        self.losses = StepLosses()
        self.update = UpdateCalls()
        self.rollback_state: StateCopy | None = None  # the state to roll back to
        self.rollback_step = 0  # number of updates before that state

    def end(self, owner: object) -> None:
        """End the step of an optimizer; the next module call may begin another."""
        self.batches.end(owner)
        self.start.had_forward = self.state is BEGUN
        self.state = BETWEEN
        self.start.forget()
        self.buffers.is_kept = False
        self.findings.end(owner)
        self.update.phase = self.losses.current = None
        self.losses.is_scaled = False
        self.armed = True

    def restart(self) -> None:
        """Forget batches and random states: an older state, restored, replaces the start of the step."""
        self.batches.restart()
        self.batches.are_loaded = False
        self.buffers.is_kept = False
        self.start.forget()
        self.start.update_random = None

    @property
    def is_begun(self) -> bool:
        """Whether the step's first forward pass was seen."""
        return self.state is BEGUN

    def rearm(self) -> None:
        """Record the next module call too, as the step may go on with another batch."""
        self.armed = self.armed or (self.state is BEGUN and not self.update.in_closure)

    def exhaust(self, epoch: LoaderPass | None) -> None:
        """Drop batches of an exhausted loader that no forward pass used: the next step does not use them either."""
        if self.is_begun:
            return
        batches, start = self.batches, self.start
        batches.forget(epoch)
        batches.are_loaded = batches.are_loaded and bool(batches.current)
        if start.epoch is epoch and not batches.is_ahead:
            start.epoch = None

    def is_trained(self) -> bool:
        """Return whether this is a training step, not an evaluation with gradients enabled."""
        before, _, training = self.start.origin
        return self.backward_count != before or (self.batches.are_loaded and training)


class ThreadSteps(_local):
    """The current step of each thread (a thread-local)."""

    def __init__(self, new_step: Callable[[], TrainingStep]) -> None:
        self.step = new_step()


class StepStartListener:
    """Detects the start of each step and records its inputs."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled

    def forward_began(self, event: ForwardBegan) -> None:
        """Handle the call of a module or of a compiled function (then the module may be None)."""
        step, module = self._training.threads.step, event.module
        if not step.armed:
            return
        if self._is_grad_enabled():
            if step.start.root is None or step.start.root is module:
                self._begin_or_go_on(step, module, [event.arguments, dict(event.keywords)])
            return
        if step.state is BETWEEN:
            step.state = EVALUATED
        if module is not None and module.training:
            self._keep_buffers(step, module)

    def _begin_or_go_on(self, step: TrainingStep, module: Any, inputs: Any) -> None:
        """Begin the step at the root model's call, or continue it with its next batch."""
        if step.state is not BEGUN:
            self._begin(step, module)
        source = "" if module is None else module
        if not step.batches.are_loaded:
            step.batches.add("forward", inputs, source)
            step.armed = not step.update.in_closure
            step.start.root = module
            return
        step.armed = False
        if len(step.start.root_calls) < MAX_ENTRIES:
            step.start.root_calls.append((source, inputs))

    def _begin(self, step: TrainingStep, module: Any) -> None:
        step.state = BEGUN
        self._training.ranks.forget()
        step.start.origin = step.backward_count, module, module is None or bool(module.training)
        self._training.policy.keep_rollback_state(step)
        step.start.keep_random()
        self._keep_buffers(step, module)

    def _keep_buffers(self, step: TrainingStep, module: Any) -> None:
        if not step.buffers.is_kept:
            step.buffers.keep(lambda: self._training.models() or ([] if module is None else [module]))

    def loader_began(self, event: LoaderBegan) -> None:
        """Count the epochs of a DataLoader."""
        event.epoch = self._watched.next_epoch(event.loader)

    def loader_exhausted(self, event: LoaderExhausted) -> None:
        """Drop what an exhausted DataLoader fetched for no step."""
        self._training.threads.step.exhaust(_epoch(event))

    def batch_fetched(self, event: BatchFetched) -> None:
        """Record a batch that a DataLoader returned, unless it is fetched without gradients or never trained on."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        step, epoch = self._training.threads.step, _epoch(event)
        batches, start = step.batches, step.start
        is_begun = step.state is BEGUN
        if is_begun and not step.is_trained():
            step.state, start.has_random, is_begun = EVALUATED, False, False  # an evaluation with gradients
        if not is_begun:
            if step.state is EVALUATED or not batches.are_loaded:
                batches.restart()
                step.state = BETWEEN
            start.root_calls, start.root = [], None
            step.buffers.is_kept = False
            if not start.had_forward:
                start.keep_random()
            step.armed = True
        if batches.are_loaded and not is_begun and epoch is start.epoch:
            batches.is_ahead = True
        batches.are_loaded = True
        start.epoch = epoch
        record = batches.add("loader", event.batch, epoch)
        if record is not None:
            start.handover_random.keep()
            record.random = start.handover_random.taken()
            if not is_begun:
                start.fetch_random = record.random
            record.indices = event.indices


def _epoch(event: BatchFetched | LoaderExhausted) -> LoaderPass | None:
    return None if event.began is None else event.began.epoch
