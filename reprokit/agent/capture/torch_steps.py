"""The step of a thread as a state machine, and how it begins: with batches of loaders and calls of modules."""

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

    from ..events import BatchFetched, ForwardBegan, LoaderBegan, LoaderExhausted
    from .header import Trigger
    from .random_states import RandomReader, RandomStates
    from .torch_capture import CaptureContext, LoaderPass

LOSSES = 100
MAX_ENTRIES = 64


class StepState(enum.Enum):
    """How far a thread's step has come."""

    BETWEEN = 0  # nothing was computed since the last update
    EVALUATED = 1  # a forward pass without gradients, as of an evaluation
    BEGUN = 2  # a forward pass of the step


BETWEEN, EVALUATED, BEGUN = StepState


class ThreadKey(_local):
    """Tells threads apart. Not by their number, which a new thread may have from one that ended."""

    def __init__(self) -> None:
        self.key = object()


THIS_THREAD = ThreadKey()


class StepStart:
    """What a step was begun with, beside batches and buffers."""

    def __init__(self, make_random: Callable[[], RandomStates]) -> None:
        self.random = make_random()  # at the first forward pass
        self.has_random = False
        self.handed = make_random()  # when a loader handed a batch over
        self.fetch_random: RandomReader | None = None  # when a loader handed a batch over last, before the forward pass
        self.updated: RandomReader | None = None  # after the last update, where several optimizers take turns
        self.had_forward = False  # of a module, in the step before
        # After how many backward passes, by which module, and whether that was training.
        self.origin: tuple[int, Any, bool] = (0, None, True)
        self.epoch: LoaderPass | None = None
        self.entry: list[Any] = []  # what the root model was called with, where a loader gives batches
        self.root: Any = None

    def keep_random(self) -> None:
        """Hold the generators as they are now."""
        self.random.keep()
        self.has_random = True

    def note_update(self) -> None:
        """An optimizer has updated, and another's step begins with the generators as they are now."""
        self.handed.keep()
        self.updated = self.handed.taken()

    def forget(self) -> None:
        """The step is over."""
        self.has_random = False
        self.entry = []
        self.root = self.fetch_random = None
        self.origin = (0, None, True)


class StepFindings:
    """What is known of a step's gradients, losses and outputs before the optimizer's turn."""

    def __init__(self) -> None:
        self.triggers: list[Trigger] = []
        self.device_losses: list[Any] = []  # losses that lie on a GPU
        self.device_counts: list[
            tuple[Any, Any, int]
        ] = []  # modules, and how much of their outputs there is not finite
        self.loss_parameters: set[int] = set()  # parameters, from the loss that is not as it should be
        self.skipped: set[int] = set()  # optimizers whose next step is not applied
        self.finite_gradients: dict[int, tuple[Any, int]] = {}  # gradients that were tested, and their versions
        self.finite_for: set[int] = set()  # optimizers whose turn with these comes yet

    def note_finite(self, gradients: list[Any], owners: set[int]) -> None:
        """These were tested, and are finite: no GPU is waited for again."""
        self.finite_gradients = {id(gradient): (gradient, changes(gradient)) for gradient in gradients}
        self.finite_for = owners

    def are_known_finite(self, gradients: list[Any]) -> bool:
        """Return whether these were all tested, and are what they were then."""
        known = [self.finite_gradients.get(id(gradient)) for gradient in gradients]
        return all(one is not None and one[1] == changes(each) for one, each in zip(known, gradients))

    def end(self, owner: object) -> None:
        """A step of this optimizer is over."""
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
    """The step of several parts that a thread is in the middle of."""

    def __init__(self, first: str, copy: StateCopy | None) -> None:
        self.first = first  # the part that it began with
        self.copy = copy  # of what that has moved; None where it was refused


class UpdateCalls:
    """How a thread's optimizer is called."""

    def __init__(self) -> None:
        self.phase: PartialUpdate | None = None
        self.in_closure = False  # an optimizer calls the closure that computes the loss
        self.is_compiled = False  # a compiled function is being called
        self.tested = -1  # after which backward pass compiled code was last looked at

    @property
    def is_refused(self) -> bool:
        """Whether an earlier part of the step was refused, and so are all others."""
        return self.phase is not None and self.phase.copy is None


class StepLosses:
    """The losses of a thread."""

    def __init__(self) -> None:
        self.last: deque[Any] = deque(maxlen=LOSSES)
        self.current: Any = None  # the last that backward() was called of, or its number and shape
        self.is_scaled = False  # by a GradScaler, which saw to it that overflows are skipped

    def note(self, loss: Any, number: tuple[str, float] | None) -> None:
        """Hold the loss of the step, which the script may change before the update."""
        if number is not None:
            self.current = number, loss.shape
            return
        value = loss.detach()
        self.current = value.clone() if value.is_cpu and value.numel() == 1 else value

    def tensor(self, torch: Any) -> Any:
        """Return the loss of the step; None where there is none."""
        if type(self.current) is not tuple:
            return self.current
        (dtype, value), shape = self.current
        return torch.full(shape, value, dtype=getattr(torch, dtype))


class TrainingStep:
    """The step of a thread: how far it has come, what it was begun with, and what was found."""

    def __init__(self, torch: Any, make_random: Callable[[], RandomStates]) -> None:
        self.thread = THIS_THREAD.key
        self.state = BETWEEN
        self.armed = False  # the next module's call is looked at
        self.round = 0  # calls of backward()
        self.batches = StepBatches(torch)
        self.buffers = BufferCopies(torch)
        self.start = StepStart(make_random)
        self.findings = StepFindings()
        self.losses = StepLosses()
        self.update = UpdateCalls()
        self.earlier: StateCopy | None = None  # the state to roll back to
        self.rollback_step = 0  # updates that were made before

    def end(self, owner: object) -> None:
        """A step of this optimizer is over, and the next module's call may begin another."""
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
        """An older state took the place of the step's start, whose batches and random states are not known."""
        self.batches.restart()
        self.batches.are_loaded = False
        self.buffers.is_kept = False
        self.start.forget()
        self.start.updated = None

    @property
    def is_begun(self) -> bool:
        """Whether a forward pass of the step was made."""
        return self.state is BEGUN

    def rearm(self) -> None:
        """The step may go on with another batch."""
        self.armed = self.armed or (self.state is BEGUN and not self.update.in_closure)

    def exhaust(self, epoch: LoaderPass | None) -> None:
        """A loader has no more; what it gave without a forward pass since was not for the step that comes."""
        if self.is_begun:
            return
        batches, start = self.batches, self.start
        batches.forget(epoch)
        batches.are_loaded = batches.are_loaded and bool(batches.held)
        if start.epoch is epoch and not batches.is_ahead:
            start.epoch = None

    def is_trained(self) -> bool:
        """Return whether what began is a step, and no evaluation that left gradients on."""
        before, _, training = self.start.origin
        return self.round != before or (self.batches.are_loaded and training)


class ThreadSteps(_local):
    """The step of this thread."""

    def __init__(self, make: Callable[[], TrainingStep]) -> None:
        self.step = make()


class StepStartListener:
    """Notes when a step begins, and what it is given."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled

    def forward_began(self, event: ForwardBegan) -> None:
        """A module is called, or a compiled function, which may be none."""
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

    def _begin_or_go_on(self, step: TrainingStep, module: Any, given: Any) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        if step.state is not BEGUN:
            self._begin(step, module)
        source = "" if module is None else module
        if not step.batches.are_loaded:
            step.batches.add("forward", given, source)
            step.armed = not step.update.in_closure
            step.start.root = module
            return
        step.armed = False
        if len(step.start.entry) < MAX_ENTRIES:
            step.start.entry.append((source, given))

    def _begin(self, step: TrainingStep, module: Any) -> None:
        step.state = BEGUN
        self._training.ranks.forget()
        step.start.origin = step.round, module, module is None or bool(module.training)
        self._training.policy.keep_copy(step)
        step.start.keep_random()
        self._keep_buffers(step, module)

    def _keep_buffers(self, step: TrainingStep, module: Any) -> None:
        if not step.buffers.is_kept:
            step.buffers.keep(lambda: self._training.models() or ([] if module is None else [module]))

    def loader_began(self, event: LoaderBegan) -> None:
        """Count the epochs of a DataLoader."""
        event.epoch = self._watched.next_epoch(event.loader)

    def loader_exhausted(self, event: LoaderExhausted) -> None:
        """A DataLoader has no more."""
        self._training.threads.step.exhaust(_epoch(event))

    def batch_fetched(self, event: BatchFetched) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        step, epoch = self._training.threads.step, _epoch(event)
        batches, start = step.batches, step.start
        is_begun = step.state is BEGUN
        if is_begun and not step.is_trained():
            step.state, start.has_random, is_begun = EVALUATED, False, False  # an evaluation with gradients, or a trial
        if not is_begun:
            if step.state is EVALUATED or not batches.are_loaded:
                batches.restart()
                step.state = BETWEEN
            start.entry, start.root = [], None
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
            start.handed.keep()
            record.random = start.handed.taken()
            if not is_begun:
                start.fetch_random = record.random
            record.indices = event.indices


def _epoch(event: BatchFetched | LoaderExhausted) -> LoaderPass | None:
    return None if event.began is None else event.began.epoch
