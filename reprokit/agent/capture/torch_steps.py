"""The training step of each thread as a state machine, and the optimizers, schedules and loaders of the process."""

from __future__ import annotations

import enum
import sys
import weakref
from _thread import _local
from collections import deque

from ..pytorch.private_api import changes, changes_of
from ..pytorch.tensor_names import parameters_of
from .checks import NormMean
from .torch_batches import StepBatches
from .torch_copies import BufferCopies, StateCopy, UpdateBackup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events import steps as events
    from .header import Trigger
    from .random_states import RandomReader, RandomStates, Saved

LOSSES = 100
# What is expected next. FOLLOWED: nothing, as each event is written down when it comes.
FOLLOWED, BATCH, CALL, LOSS, BACKWARD, UPDATE, DONE = range(7)
PATIENCE = 16  # steps that are followed after one that turned out to be of another kind


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
        self.update_random = self.handover_random.keep()

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

    def begin(self, module: Any, training: bool) -> None:
        """Begin the step with the first call of a module, which is in training mode or not."""
        self.state = BEGUN
        self.start.origin = self.backward_count, module, training

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


class UsualSteps:
    """The steps of a thread that are of the one kind, and how far the current one is."""

    __slots__ = (
        "_forget_sums", "_watched", "began", "call", "count", "epoch", "expected", "loss", "number",
        "patience", "random", "record", "room", "shape", "state", "step",
        "training_mode",
    )  # fmt: skip

    def __init__(self, step: TrainingStep, watched: WatchedObjects, forget_sums: Callable[[], None]) -> None:
        self.step, self._watched, self._forget_sums = step, watched, forget_sums
        self.expected = FOLLOWED
        self.patience = 0  # steps that are followed in any case
        self.began: events.LoaderBegan | None = None  # the iteration of the batch that was fetched last
        self.count = 0  # steps that were not written down
        self.room = 0  # how many may be
        self.epoch: LoaderPass | None = None
        self.record: OptimizerSteps
        self.state: Any  # the UpdateState of all of their updates
        # Of the current step, as far as it is:
        self.call: events.ForwardBegan | None = None
        self.training_mode = True
        self.random: Saved
        self.number: tuple[str, float] | None = None
        self.loss = 0.0
        self.shape: Any = None

    def write_down(self) -> None:
        """Bring the thread's step to where the training is, and follow each event from now on."""
        reached, self.expected = self.expected, FOLLOWED
        step, count, self.count = self.step, self.count, 0
        if count:
            step.backward_count += count
            self.record.last_backward, self.record.backward_gap = step.backward_count, 1
            self._watched.steps += count
            if self.epoch is not None:
                self.epoch.steps += count
        if reached == BATCH:
            return
        self.patience, start, batches = PATIENCE, step.start, step.batches
        batches.earlier, batches.are_loaded = [], True
        start.fetch_random = batches.current[0].random
        if reached > CALL and self.call is not None:
            step.begin(self.call.module, self.training_mode)
            self._forget_sums()
            start.random.hold(self.random)
            start.has_random = True
            step.buffers.is_kept, step.armed = True, False
            start.root_calls.append((self.call.module, [self.call.arguments, dict(self.call.keywords)]))
        if reached > LOSS:
            step.losses.current = self.number, self.shape
            step.losses.recent.append(self.loss)
        if reached > BACKWARD:
            step.backward_count += 1
            step.armed = True
        self.call = None


class ThreadSteps(_local):
    """The current step of each thread (a thread-local)."""

    def __init__(self, make: Callable[[], UsualSteps]) -> None:
        self.usual = make()

    @property
    def step(self) -> TrainingStep:
        """The step, with all that has happened so far written down in it."""
        if self.usual.expected:
            self.usual.write_down()
        return self.usual.step


class LoaderPass:
    """One pass (epoch) over a DataLoader."""

    def __init__(self, loader: Any, number: int) -> None:
        self.loader = weakref.ref(loader)
        is_part = type(loader.dataset) is sys.modules["torch.utils.data"].Subset
        self.subset = weakref.ref(loader.dataset) if is_part else None
        collating = str(getattr(loader.collate_fn, "__module__", ""))
        self.may_be_sorted = not collating.startswith("torch.utils.data.")  # by the script's function
        self.number = number
        self.steps = 0


class OptimizerSteps:
    """An optimizer, the count of its steps, and its state before recent updates."""

    def __init__(self, optimizer: Any) -> None:
        self.reference = weakref.ref(optimizer)
        self.thread = THIS_THREAD.key  # that created it; from its first step on, the one that it steps in
        self.steps = 0
        self.last_backward = -1  # number of backward passes at its last step
        self.backward_gap = 0  # backward passes between its last two steps; 0: unknown
        self.overflows = 0  # of a GradScaler, in a row
        self.norms = NormMean()  # of its gradients
        self.repeats = True  # its closure is called more than once in a step
        self.backup: UpdateBackup | None = None  # set at its first update

    def stepped(self, backward: int) -> None:
        """Count a step, applied or skipped, after this backward pass."""
        self.steps += 1
        if 0 <= self.last_backward < backward:
            self.backward_gap = backward - self.last_backward
        self.last_backward = backward

    def turn_order(self, backward: int) -> tuple[float, int]:
        """Return a sort key: the optimizer whose previous interval fits this backward pass best sorts first."""
        if self.last_backward < 0:
            return 0.5, self.last_backward
        return (
            abs(backward - self.last_backward - self.backward_gap) if self.backward_gap else 1.0
        ), self.last_backward

    def parameters(self) -> list[Any]:
        """Return the optimizer's parameters, group by group; none if the optimizer was deleted."""
        optimizer = self.reference()
        return [] if optimizer is None else parameters_of(optimizer)

    def gradients(self) -> list[Any]:
        """Return the gradients of its parameters that have one."""
        optimizer, gradients = self.reference(), []
        for group in () if optimizer is None else optimizer.param_groups:  # no comprehension: it is a call
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None:
                    gradients.append(gradient)
        return gradients

    def drop_gradients(self) -> None:
        """Set to None the gradients that this optimizer would apply."""
        for parameter in self.parameters():
            parameter.grad = None

    def is_ruined(self) -> bool:
        """Return whether parameters that were finite before an update are no longer finite."""
        return self.backup is not None and self.backup.is_ruined()


class WatchedObjects:
    """The optimizers, schedules and GradScalers of this process."""

    def __init__(self) -> None:
        self.records: dict[int, OptimizerSteps] = {}  # by id of the optimizer, while it lives
        self.schedules: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # in the order of making
        self.scalers: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.only: set[int] | None = None  # optimizers that the script guards by itself
        self.steps = 0  # of all optimizers
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> OptimizerSteps:
        """Register a new optimizer and return its record."""
        records, key = self.records, id(optimizer)
        record = records[key] = OptimizerSteps(optimizer)

        def end() -> None:
            if records.get(key) is record:
                del records[key]

        weakref.finalize(optimizer, end).atexit = False
        return record

    def register(self, kind: weakref.WeakKeyDictionary[Any, bool], value: Any) -> None:
        """Register a new schedule or GradScaler."""
        if self.only is None:
            kind[value] = True

    def next_epoch(self, loader: Any) -> LoaderPass:
        """Begin a new pass over a DataLoader."""
        self._epochs[loader] = self._epochs.get(loader, -1) + 1
        return LoaderPass(loader, self._epochs[loader])

    def alive(self) -> list[OptimizerSteps]:
        """Return this thread's optimizers in the order of creation; if it has none, those that never stepped."""
        alive = [entry for entry in list(self.records.values()) if entry.reference() is not None]
        own = [record for record in alive if record.thread is THIS_THREAD.key]
        return own or [record for record in alive if not record.steps]

    def names(self, records: list[OptimizerSteps]) -> list[str]:
        """Return the names of these optimizers in a snapshot."""
        alive = self.alive()
        return [f"optimizer#{alive.index(record)}" for record in records if record in alive]

    def sharing_backward(self, record: OptimizerSteps, backward: int) -> list[OptimizerSteps]:
        """Return the other optimizers that will apply gradients of the same backward pass, as they did the last time.

        A GAN's two optimizers never do, those of an encoder and its decoder always.
        """
        others = [other for other in self.alive() if other is not record]
        return [
            other for other in others if other.last_backward == record.last_backward and other.last_backward != backward
        ]

    def with_gradients(self) -> list[OptimizerSteps]:
        """Return the optimizers that have any gradient; if none has, all of them."""
        records = self.alive()
        return [record for record in records if record.gradients()] or records

    def due(self, reached: set[int], backward: int) -> list[OptimizerSteps]:
        """Return the optimizers that will step after this backward pass: one, and those that step together with it.

        ``reached`` has the ids of the parameters that the loss was computed from, if known.
        """
        records = self.with_gradients()
        records = [other for other in records if any(id(p) in reached for p in other.parameters())] or records
        if not records:
            return []
        first = min(records, key=lambda record: record.turn_order(backward))
        following = self.sharing_backward(first, backward)
        return [first, *[other for other in records if other in following]]

    def versions(self) -> int:
        """Return the sum of the parameters' version counters, which every in-place change raises."""
        return changes_of(self.parameters())

    def parameters(self) -> list[Any]:
        """Return the parameters of all optimizers."""
        return [parameter for record in self.alive() for parameter in record.parameters()]
