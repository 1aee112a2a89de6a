"""Holds what a step of PyTorch changes or lets go of: buffers, batches and random states, as they were at its start."""

from __future__ import annotations

import copy
import enum
from _thread import _local, get_ident
from collections import deque
from collections.abc import Mapping

from ..core.attributes import ObjectFields, class_name, own_attributes
from ..pytorch.private_api import changes, copy_each
from ..pytorch.state import parts_of
from ..pytorch.tensors import is_tensor
from .checks import NormMean
from .torch_state import has_memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .random_states import RandomReader, RandomStates
    from .trigger import Trigger

SMALL_BUFFER = 1 << 20
MAX_ARRAY = 1 << 24
MAX_BATCHES = 4096  # of one step
MAX_EARLIER = 64
MAX_DEPTH = 16
MAX_OBJECTS = 10_000  # of the user's classes, in one batch
LOSSES = 100
ALWAYS = 1 << 62
MAX_PAST = 2  # of each step: what was fetched ahead is the last of it
MAX_ENTRIES = 64
PROBATION = 16  # batches that are copied until it is known that the script leaves them alone


_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])


class BatchRecord:
    """A batch of the step, and what was known of it when it was handed over."""

    __slots__ = ("indices", "origin", "random", "source", "value")

    def __init__(self, origin: str, source: Any, value: Any) -> None:
        self.origin = origin  # loader, forward, loss
        self.source = source  # the epoch, the module, or a name
        self.value = value
        self.indices: Any = None  # of its samples in the data set, where a sampler chose them
        self.random: RandomReader | None = None  # when a loader handed it over


class _Walk:
    """How far a batch is held."""

    def __init__(self) -> None:
        self.leaves = 0  # tensors and arrays
        self.objects = 0
        self.open: set[int] = set()  # objects whose attributes are being held


class Batches:
    """What the steps of a thread are given. Once it is known that none changes, tensors are only watched.

    Plain loops: in the middle of a training iterators like map() are in no cache, and take longer than what they do.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._copies = PROBATION
        self._watched: list[tuple[Any, int]] = []
        self._walk = _Walk()
        self.held: list[BatchRecord] = []
        self.earlier: list[BatchRecord] = []  # of a step of another optimizer, as no batch was fetched since
        self._owner: object = None  # the optimizer of that step
        self.are_loaded = False  # a loader gave some in this step
        self.is_ahead = False  # a loader gave a batch before the one before it was used
        self.past: list[list[BatchRecord]] = []  # then: what loaders gave last in the two steps before

    def add(self, origin: str, value: Any, source: Any = "") -> BatchRecord | None:
        """Hold a batch; None where there are too many."""
        if len(self.held) >= MAX_BATCHES:
            return None
        self._copies -= 1
        self._walk = _Walk()
        record = BatchRecord(origin, source, self._hold(value, 0))
        self.held.append(record)
        return record

    def _hold(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is self._tensor:
            return self._tensor_held(value)
        if kind in _PLAIN or depth > MAX_DEPTH or is_tensor(value):
            return value
        if kind is list or kind is tuple:
            return kind([self._hold(part, depth + 1) for part in value])
        if isinstance(value, Mapping):
            return {key: self._hold(value[key], depth + 1) for key in value}
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return kind(*[self._hold(part, depth + 1) for part in value])
        if hasattr(kind, "__dataclass_fields__"):
            return self._fields_held(value, depth)
        if kind.__module__ == "numpy" and hasattr(kind, "__array_interface__"):
            self._walk.leaves += 1
            return value.copy() if value.nbytes <= MAX_ARRAY else value
        return self._object_held(value, depth)

    def _object_held(self, value: Any, depth: int) -> Any:
        """The attributes of an object that reaches tensors or arrays; any other object as it is."""
        attributes, key, walk = own_attributes(value), id(value), self._walk
        if not attributes or key in walk.open or walk.objects >= MAX_OBJECTS:
            return value
        walk.objects += 1
        walk.open.add(key)
        before = walk.leaves
        values = {name: self._hold(attributes[name], depth + 1) for name in attributes}
        walk.open.discard(key)
        return ObjectFields(class_name(value), values) if walk.leaves > before else value

    def _fields_held(self, value: Any, depth: int) -> Any:
        made = copy.copy(value)
        for name in type(value).__dataclass_fields__:
            if hasattr(value, name):
                object.__setattr__(made, name, self._hold(getattr(value, name), depth + 1))
        return made

    def _tensor_held(self, tensor: Any) -> Any:
        self._walk.leaves += 1
        self._watched.append((tensor, changes(tensor)))
        return tensor.detach().clone() if self._copies > 0 else tensor.detach()

    def restart(self) -> None:
        """What is held belongs to no step after all."""
        self.held, self.earlier, self._watched = [], [], []

    def forget(self, epoch: Any) -> None:
        """What a loader gave in this epoch belongs to no step that is to come."""
        self.earlier = [batch for batch in self.earlier if batch.source is not epoch]
        self.held = [batch for batch in self.held if batch.source is not epoch]
        if not self.held:
            self._watched = []

    def end(self, owner: object) -> None:
        """An optimizer's step is over; what was seen to change in place is copied from now on."""
        for tensor, version in self._watched:
            if changes(tensor) != version:
                self._copies = ALWAYS
        held = self.held
        if held and held[0].origin == "loader":
            others = len(held) > 1
            self.earlier = [batch for batch in held if batch.origin == "loader"][:MAX_EARLIER] if others else held
            self._owner = owner
            if self.is_ahead:
                self.past = [*self.past[-1:], self.earlier[-MAX_PAST:]]
        elif self._owner is owner:
            self.earlier, self.past = [], []
        self.held, self._watched = [], []
        self.are_loaded = False

    def look(self) -> bool:
        """Whether something that is held without a copy has changed since."""
        return self._copies <= 0 and any(changes(tensor) != version for tensor, version in self._watched)


class BuffersState(enum.Enum):
    """How much of the models' buffers is known."""

    UNKNOWN, WATCHED, KEPT = range(3)


UNKNOWN, WATCHED, KEPT = BuffersState


class BufferCopies:
    """Copies of models' buffers, made before the forward pass moves them.

    Batch normalisation raises no version counter. Large buffers are masks and tables as a rule; these are copied
    anew only where their counter tells of a change.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._containers: list[dict[str, Any]] = []
        self._tensors: list[Any] = []
        self._slots: list[tuple[dict[str, Any], str]] = []  # where each of these was
        self._there: list[bool] = []  # and whether it had memory
        self._small: list[Any] = []
        self._copies: list[Any] = []
        self._large: list[tuple[Any, int, Any]] = []
        self.state = BuffersState.UNKNOWN

    @property
    def is_empty(self) -> bool:
        """Whether there are known to be none."""
        return self.state is not UNKNOWN and not self._containers

    @property
    def is_known(self) -> bool:
        """Whether it is known which there are."""
        return self.state is not UNKNOWN

    @property
    def is_kept(self) -> bool:
        """Whether they are held as they were before the step."""
        return self.state is KEPT

    def forget(self) -> None:
        """There may be others."""
        self.state = UNKNOWN

    def end(self) -> None:
        """What is held is of a step that is over."""
        if self.state is KEPT:
            self.state = WATCHED

    def watch(self, modules: list[Any]) -> None:
        """From now on hold the buffers of these models."""
        self._containers = [buffers for module in modules for _, _, buffers in parts_of(module) if buffers]
        self._tensors, self._slots, self._there = [], [], []
        self._small, self._copies, self._large = [], [], []
        self.state = WATCHED

    def keep(self) -> None:
        """Copy the buffers as they are now."""
        self.state = KEPT
        if not self._containers:
            return
        tensors = [tensor for buffers in self._containers for tensor in buffers.values()]
        there = list(map(has_memory, tensors))
        with self._torch.no_grad():
            if there != self._there or any(a is not b for a, b in zip(tensors, self._tensors)):
                self._begin(tensors)
            self._copy()
            self._copy_large()

    def _begin(self, tensors: list[Any]) -> None:
        self._tensors, self._there = tensors, list(map(has_memory, tensors))
        self._slots = [(buffers, name) for buffers in self._containers for name in buffers]
        distinct = list({id(tensor): tensor for tensor in tensors if has_memory(tensor)}.values())
        self._small = [tensor for tensor in distinct if tensor.numel() * tensor.element_size() <= SMALL_BUFFER]
        self._copies = [tensor.detach().clone() for tensor in self._small]
        small = set(map(id, self._small))
        self._large = [(tensor, -1, None) for tensor in distinct if id(tensor) not in small]

    def _copy(self) -> None:
        try:
            copy_each(self._torch, self._copies, self._small)
        except RuntimeError:  # one has another size or device now
            self._begin(self._tensors)

    def _copy_large(self) -> None:
        for place, (tensor, version, _) in enumerate(self._large):
            if changes(tensor) != version:
                self._large[place] = tensor, changes(tensor), tensor.detach().clone()

    def kept(self) -> dict[int, Any]:
        """The copies by the id of what they are copies of, or of what has taken its place since."""
        found = {id(tensor): kept for tensor, kept in zip(self._small, self._copies)}
        found.update({id(tensor): kept for tensor, _, kept in self._large if kept is not None})
        for (buffers, name), tensor in zip(self._slots, self._tensors):
            if id(tensor) in found and buffers.get(name) is not None:
                found[id(buffers[name])] = found[id(tensor)]
        return found

    def put_back(self) -> None:
        """Make the buffers what they were, also where another tensor was assigned."""
        kept = self.kept()
        with self._torch.no_grad():
            for (buffers, name), tensor in zip(self._slots, self._tensors):
                if buffers.get(name) is not tensor:
                    buffers[name] = tensor
                if id(tensor) in kept:
                    tensor.copy_(kept[id(tensor)])


class StepState(enum.Enum):
    """How far a thread's step has come."""

    BETWEEN = 0  # nothing was computed since the last update
    LOOKED = 1  # a forward pass without gradients, as of an evaluation
    BEGUN = 2  # a forward pass of the step


BETWEEN, LOOKED, BEGUN = StepState


class Threads(_local):
    """The step of this thread."""

    def __init__(self, make: Callable[[], TrainingStep]) -> None:
        self.held = make()


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
        self.epoch: Any = None
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

    def enter(self, module: Any, given: Any) -> None:
        """The root model is called with this, where a loader gives batches."""
        if len(self.entry) < MAX_ENTRIES:
            self.entry.append((module, given))

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
        self.norms = NormMean()  # of gradients, over all steps

    def are_any(self) -> bool:
        """Whether there is anything to think of."""
        return bool(self.triggers or self.skipped or self.far or self.counts or self.clean)

    def note_clean(self, gradients: list[Any], owners: set[int]) -> None:
        """These were tested, and are finite."""
        self.clean = {id(gradient): (gradient, changes(gradient)) for gradient in gradients}
        self.clean_for = owners

    def are_clean(self, gradients: list[Any]) -> bool:
        """Whether these were all tested, and are what they were then."""
        if not self.clean:
            return False
        known = [self.clean.get(id(gradient)) for gradient in gradients]
        return all(one is not None and one[1] == changes(each) for one, each in zip(known, gradients))

    def end(self, owner: object) -> None:
        """A step of this optimizer is over."""
        if self.are_any() or self.reached:
            self.triggers, self.far, self.counts, self.reached, self.skipped = [], [], [], set(), set()
            self.clean_for.discard(id(owner))
            if not self.clean_for:
                self.clean = {}


class UpdateCalls:
    """How a thread's optimizer is called."""

    def __init__(self) -> None:
        self.closure: Any = None
        self.phase: Any = None  # of a step of several parts
        self.is_compiled = False  # a compiled function is being called
        self.tested = -1  # after which backward pass compiled code was last looked at


class StepLosses:
    """The losses of a thread."""

    def __init__(self) -> None:
        self.last: deque[Any] = deque(maxlen=LOSSES)
        self.of_step: Any = None  # the last that backward() was called of
        self.is_scaled = False  # by a GradScaler, which saw to it that overflows are skipped

    def finite(self) -> Iterator[float]:
        """The last losses as numbers."""
        for loss in self.last:
            yield loss if isinstance(loss, float) else float(loss.item())


class TrainingStep:
    """The step of a thread: how far it has come, what it was begun with, and what was found."""

    def __init__(self, torch: Any, make_random: Callable[[], RandomStates], buffers: BufferCopies) -> None:
        self.thread = get_ident()
        self.state = BETWEEN
        self.armed = False  # the next module's call is looked at
        self.round = 0  # calls of backward()
        self.batches = Batches(torch)
        self.buffers = buffers
        self.start = StepStart(make_random)
        self.findings = StepFindings()
        self.losses = StepLosses()
        self.update = UpdateCalls()

    def end(self, owner: object) -> None:
        """A step of this optimizer is over."""
        self.batches.end(owner)
        self.start.saw_forward = self.state is BEGUN
        self.state = BETWEEN
        self.start.forget()
        self.buffers.end()
        self.findings.end(owner)
        self.update.phase = self.losses.of_step = None
        self.losses.is_scaled = False

    @property
    def is_begun(self) -> bool:
        """Whether a forward pass of the step was made."""
        return self.state is BEGUN

    def rearm(self) -> None:
        """The step may go on with another batch."""
        self.armed = self.armed or (self.is_begun and self.update.closure is None)

    def look(self) -> None:
        """A forward pass without gradients."""
        if self.state is BETWEEN:
            self.state = LOOKED

    def exhaust(self, epoch: Any) -> None:
        """A loader has no more; what it gave without a forward pass since was not for the step that comes."""
        if self.state is BEGUN:
            return
        batches, start = self.batches, self.start
        batches.forget(epoch)
        batches.are_loaded = batches.are_loaded and bool(batches.held)
        if start.epoch is epoch and not batches.is_ahead:
            start.epoch = None

    def is_trained(self) -> bool:
        """Whether what began is a step, and no evaluation that left gradients on."""
        before, _, training = self.start.began_at
        return self.round != before or (self.batches.are_loaded and training)
