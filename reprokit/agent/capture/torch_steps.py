"""The step of a thread as a state machine, and how it begins: with batches of loaders and calls of modules."""

from __future__ import annotations

import enum
from _thread import _local
from collections import deque

from ..pytorch.private_api import changes
from .torch_batches import Batches
from .torch_copies import BufferCopies, StateCopy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import BatchFetched, ForwardBegan, LoaderBegan, LoaderExhausted
    from .header import Trigger
    from .random_states import RandomReader, RandomStates
    from .torch_capture import Epoch, Training

LOSSES = 100
MAX_ENTRIES = 64


class StepState(enum.Enum):
    """How far a thread's step has come."""

    BETWEEN = 0  # nothing was computed since the last update
    LOOKED = 1  # a forward pass without gradients, as of an evaluation
    BEGUN = 2  # a forward pass of the step


BETWEEN, LOOKED, BEGUN = StepState


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
        self.begun_with: RandomReader | None = None  # when a loader handed a batch over last, before the forward pass
        self.updated: RandomReader | None = None  # after the last update, where several optimizers take turns
        self.saw_forward = False  # of a module, in the step before
        # After how many backward passes, by which module, and whether that was training.
        self.began_at: tuple[int, Any, bool] = (0, None, True)
        self.epoch: Epoch | None = None
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
        self.root = self.begun_with = None
        self.began_at = (0, None, True)


class StepFindings:
    """What is known of a step's gradients, losses and outputs before the optimizer's turn."""

    def __init__(self) -> None:
        self.triggers: list[Trigger] = []
        self.far: list[Any] = []  # losses that lie on a GPU
        self.counts: list[tuple[Any, Any, int]] = []  # modules, and how much of their outputs there is not finite
        self.reached: set[int] = set()  # parameters, from the loss that is not as it should be
        self.skipped: set[int] = set()  # optimizers whose next step is not applied
        self.clean: dict[int, tuple[Any, int]] = {}  # gradients that were tested, and their versions
        self.clean_for: set[int] = set()  # optimizers whose turn with these comes yet

    def note_clean(self, gradients: list[Any], owners: set[int]) -> None:
        """These were tested, and are finite: no GPU is waited for again."""
        self.clean = {id(gradient): (gradient, changes(gradient)) for gradient in gradients}
        self.clean_for = owners

    def are_clean(self, gradients: list[Any]) -> bool:
        """Return whether these were all tested, and are what they were then."""
        known = [self.clean.get(id(gradient)) for gradient in gradients]
        return all(one is not None and one[1] == changes(each) for one, each in zip(known, gradients))

    def end(self, owner: object) -> None:
        """A step of this optimizer is over."""
        self.triggers, self.far, self.counts, self.reached, self.skipped = [], [], [], set(), set()
        self.clean_for.discard(id(owner))
        if not self.clean_for:
            self.clean = {}


class Phase:
    """The step of several parts that a thread is in the middle of."""

    def __init__(self, first: str, copy: StateCopy | None) -> None:
        self.first = first  # the part that it began with
        self.copy = copy  # of what that has moved; None where it was refused


class UpdateCalls:
    """How a thread's optimizer is called."""

    def __init__(self) -> None:
        self.phase: Phase | None = None
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
        self.of_step: Any = None  # the last that backward() was called of, or its number and shape
        self.is_scaled = False  # by a GradScaler, which saw to it that overflows are skipped

    def note(self, loss: Any, number: tuple[str, float] | None) -> None:
        """Hold the loss of the step, which the script may change before the update."""
        if number is not None:
            self.of_step = number, loss.shape
            return
        value = loss.detach()
        self.of_step = value.clone() if value.is_cpu and value.numel() == 1 else value

    def tensor(self, torch: Any) -> Any:
        """Return the loss of the step; None where there is none."""
        if type(self.of_step) is not tuple:
            return self.of_step
        (dtype, value), shape = self.of_step
        return torch.full(shape, value, dtype=getattr(torch, dtype))


class TrainingStep:
    """The step of a thread: how far it has come, what it was begun with, and what was found."""

    def __init__(self, torch: Any, make_random: Callable[[], RandomStates]) -> None:
        self.thread = THIS_THREAD.key
        self.state = BETWEEN
        self.armed = False  # the next module's call is looked at
        self.round = 0  # calls of backward()
        self.batches = Batches(torch)
        self.buffers = BufferCopies(torch)
        self.start = StepStart(make_random)
        self.findings = StepFindings()
        self.losses = StepLosses()
        self.update = UpdateCalls()
        self.earlier: StateCopy | None = None  # the state to roll back to
        self.earlier_at = 0  # updates that were made before

    def end(self, owner: object) -> None:
        """A step of this optimizer is over, and the next module's call may begin another."""
        self.batches.end(owner)
        self.start.saw_forward = self.state is BEGUN
        self.state = BETWEEN
        self.start.forget()
        self.buffers.is_kept = False
        self.findings.end(owner)
        self.update.phase = self.losses.of_step = None
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

    def exhaust(self, epoch: Epoch | None) -> None:
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
        before, _, training = self.start.began_at
        return self.round != before or (self.batches.are_loaded and training)


class Threads(_local):
    """The step of this thread."""

    def __init__(self, make: Callable[[], TrainingStep]) -> None:
        self.held = make()


class StepStarts:
    """Notes when a step begins, and what it is given."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled

    def forward_began(self, event: ForwardBegan) -> None:
        """A module is called, or a compiled function, which may be none."""
        held, module = self._training.threads.held, event.module
        if not held.armed:
            return
        if self._is_grad_enabled():
            if held.start.root is None or held.start.root is module:
                self._begin_or_go_on(held, module, [event.arguments, dict(event.keywords)])
            return
        if held.state is BETWEEN:
            held.state = LOOKED
        if module is not None and module.training:
            self._keep_buffers(held, module)

    def _begin_or_go_on(self, held: TrainingStep, module: Any, given: Any) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        if held.state is not BEGUN:
            self._begin(held, module)
        source = "" if module is None else module
        if not held.batches.are_loaded:
            held.batches.add("forward", given, source)
            held.armed = not held.update.in_closure
            held.start.root = module
            return
        held.armed = False
        if len(held.start.entry) < MAX_ENTRIES:
            held.start.entry.append((source, given))

    def _begin(self, held: TrainingStep, module: Any) -> None:
        held.state = BEGUN
        self._training.ranks.forget()
        held.start.began_at = held.round, module, module is None or bool(module.training)
        self._training.policy.keep_copy(held)
        held.start.keep_random()
        self._keep_buffers(held, module)

    def _keep_buffers(self, held: TrainingStep, module: Any) -> None:
        if not held.buffers.is_kept:
            held.buffers.keep(lambda: self._training.models() or ([] if module is None else [module]))

    def loader_began(self, event: LoaderBegan) -> None:
        """Count the epochs of a DataLoader."""
        event.epoch = self._watched.next_epoch(event.loader)

    def loader_exhausted(self, event: LoaderExhausted) -> None:
        """A DataLoader has no more."""
        self._training.threads.held.exhaust(_epoch(event))

    def batch_fetched(self, event: BatchFetched) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        held, epoch = self._training.threads.held, _epoch(event)
        batches, start = held.batches, held.start
        is_begun = held.state is BEGUN
        if is_begun and not held.is_trained():
            held.state, start.has_random, is_begun = LOOKED, False, False  # an evaluation with gradients, or a trial
        if not is_begun:
            if held.state is LOOKED or not batches.are_loaded:
                batches.restart()
                held.state = BETWEEN
            start.entry, start.root = [], None
            held.buffers.is_kept = False
            if not start.saw_forward:
                start.keep_random()
            held.armed = True
        if batches.are_loaded and not is_begun and epoch is start.epoch:
            batches.is_ahead = True
        batches.are_loaded = True
        start.epoch = epoch
        record = batches.add("loader", event.batch, epoch)
        if record is not None:
            start.handed.keep()
            record.random = start.handed.taken()
            if not is_begun:
                start.begun_with = record.random
            record.indices = event.indices


def _epoch(event: BatchFetched | LoaderExhausted) -> Epoch | None:
    return None if event.began is None else event.began.epoch
