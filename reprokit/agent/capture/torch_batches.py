"""The batches of PyTorch's steps: held as a step is given them, and given again, whole or cut down, from a snapshot."""

from __future__ import annotations

import sys
from array import array

from ..pytorch.private_api import changes
from ..pytorch.tensors import is_nested, is_tensor
from .trees import below, pack, refers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .random_states import RandomReader
    from .torch_state import SnapshotReader
    from .trees import Node

MAX_ARRAY = 1 << 24
MAX_BATCHES = 4096  # of one step
MAX_EARLIER = 64
ALWAYS = 1 << 62
MAX_PAST = 2  # of each step: what was fetched ahead is the last of it
PROBATION = 16  # batches that are copied until it is known that the script leaves them alone
ARRAYS = frozenset(["array", "held", "sparse", "strings", "tensor"])  # kinds of nodes with a shape


# ---- held ------------------------------------------------------------------------------------------------------------


class BatchRecord:
    """A batch of the step, and what was known of it when it was handed over."""

    __slots__ = ("indices", "node", "origin", "random", "source")

    def __init__(self, origin: str, source: Any, node: Node) -> None:
        self.origin = origin  # loader, forward, loss, script
        self.source = source  # the epoch, the module, or a name
        self.node = node  # of trees, with tensors and arrays themselves
        self.indices: Any = None  # of its samples in the data set, where a sampler chose them
        self.random: RandomReader | None = None  # when a loader handed it over


def leaf(value: Any) -> Node | None:
    """Return the node of a tensor or an array, which it holds."""
    kind = type(value)
    is_array = isinstance(value, array) or (hasattr(kind, "__array_interface__") and hasattr(kind, "dtype"))
    return {"held": value} if is_array or is_tensor(value) else None


class StepBatches:
    """What the steps of a thread are given. Once it is known that none changes, tensors are only watched."""

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._copies = PROBATION
        self._watched: list[tuple[Any, int]] = []
        self.current: list[BatchRecord] = []
        self.earlier: list[BatchRecord] = []  # of a step of another optimizer, as no batch was fetched since
        self._owner: object = None  # the optimizer of that step
        self.are_loaded = False  # a loader gave some in this step
        self.is_ahead = False  # a loader gave a batch before the one before it was used
        self.past: list[list[BatchRecord]] = []  # then: what loaders gave last in the two steps before

    def add(self, origin: str, value: Any, source: Any = "") -> BatchRecord | None:
        """Hold a batch; None where there are too many."""
        if len(self.current) >= MAX_BATCHES:
            return None
        self._copies -= 1
        record = BatchRecord(origin, source, pack(value, self._leaf, has_objects=True))
        self.current.append(record)
        return record

    def _leaf(self, value: Any) -> Node | None:
        kind = type(value)
        if kind is self._tensor:
            self._watched.append((value, changes(value)))
            return {"held": value.detach().clone() if self._copies > 0 else value.detach()}
        if kind.__module__ == "numpy" and hasattr(kind, "__array_interface__") and value.nbytes <= MAX_ARRAY:
            return {"held": value.copy()}
        return leaf(value)

    def restart(self) -> None:
        """What is held belongs to no step after all."""
        self.current, self.earlier, self._watched = [], [], []

    def forget(self, epoch: Any) -> None:
        """What a loader gave in this epoch belongs to no step that is to come."""
        self.earlier = [batch for batch in self.earlier if batch.source is not epoch]
        self.current = [batch for batch in self.current if batch.source is not epoch]
        if not self.current:
            self._watched = []

    def end(self, owner: object) -> None:
        """An optimizer's step is over; what was seen to change in place is copied from now on."""
        for tensor, version in self._watched:
            if changes(tensor) != version:
                self._copies = ALWAYS
        held = self.current
        if held and held[0].origin == "loader":
            others = len(held) > 1
            self.earlier = [batch for batch in held if batch.origin == "loader"][:MAX_EARLIER] if others else held
            self._owner = owner
            if self.is_ahead:
                self.past = [*self.past[-1:], self.earlier[-MAX_PAST:]]
        elif self._owner is owner:
            self.earlier, self.past = [], []
        self.current, self._watched = [], []
        self.are_loaded = False

    def look(self) -> bool:
        """Return whether something that is held without a copy has changed since."""
        return self._copies <= 0 and any(changes(tensor) != version for tensor, version in self._watched)


# ---- from a snapshot -------------------------------------------------------------------------------------------------


class SavedBatch:
    """One batch: what it was, and how many samples it has."""

    def __init__(self, entry: Mapping[str, Any], reader: SnapshotReader) -> None:
        self.source = str(entry.get("from"))
        self.name = entry.get("name")  # of the module that was called with it
        loader = entry.get("loader")
        self.loader: int | None = loader if type(loader) is int else None  # which, where several gave batches
        self._node = entry["value"]
        self._reader = reader
        self.axis = int(entry.get("sample_axis") or 0)
        samples = entry.get("samples")
        self.samples: int | None = samples if type(samples) is int and samples > 0 else None
        indices = entry.get("indices")
        self.may_be_sorted = entry.get("may_be_sorted") is True  # by the script's collate_fn
        self.indices: list[int] = indices if isinstance(indices, list) and self.samples in (None, len(indices)) else []
        random = entry.get("random")
        self.random: Mapping[str, Any] = random if isinstance(random, dict) else {}  # when it was handed over
        self.left_out = list(dict.fromkeys(refers(self._node, ("left_out",))))  # classes of what was not kept
        self.is_empty = bool(self.left_out) and not refers(self._node)

    def part(self, samples: Sequence[int], like: Any = None, filled: bool = False) -> Any:
        """Return a copy of some samples; ``filled`` repeats them, so that there are as many as in the whole."""
        cut = None
        if self.samples is not None and len(samples) != self.samples:
            if filled:
                samples = [samples[place % len(samples)] for place in range(self.samples)]
            cut = SampleSelection(self._reader.get, self.samples, self.axis, samples)
        return self._reader.value(self._node, like, cut)


class SampleSelection:
    """Takes some samples of all that has one entry a sample, however it is packed."""

    def __init__(self, get: Callable[[Node], Any], count: int, axis: int, samples: Sequence[int]) -> None:
        self._get = get
        self._count = count
        self._axis = axis
        self._samples = list(samples)

    def rows(self, value: Any) -> Any:
        """Return the samples of a tensor or an array; nested tensors stay whole."""
        axis = next((axis for axis in (self._axis, 0) if self._fits(value, axis)), None)
        if axis is None:
            return value
        if is_tensor(value):
            torch: Any = sys.modules["torch"]
            return value.index_select(axis, torch.tensor(self._samples, device=value.device))
        return value.take(self._samples, axis=axis)

    def _fits(self, value: Any, axis: int) -> bool:
        has_shape = hasattr(type(value), "shape") and not (is_tensor(value) and is_nested(value))
        return has_shape and len(value.shape) > axis and int(value.shape[axis]) == self._count

    def items(self, nodes: list[Node]) -> list[Node]:
        """Return those of a list of samples, unless it is one of tensors that have all samples themselves."""
        if len(nodes) == self._count and not any(map(self._has_samples, nodes)):
            return [nodes[sample] for sample in self._samples]
        return nodes

    def _has_samples(self, node: Node) -> bool:
        if not isinstance(node, dict) or "dict" in node:
            return isinstance(node, dict) and any(map(self._has_samples, below(node)))
        value = self._get(node) if not ARRAYS.isdisjoint(node) else None
        return self._fits(value, self._axis) or self._fits(value, 0)


class LoopIteration:
    """What one turn of a loop worked on: what it fetched, and what it gave to its model where that is other."""

    def __init__(self, fetched: SavedBatch | None) -> None:
        self.fetched = fetched
        self.called: list[SavedBatch] = []
        self.targets: list[SavedBatch] = []
        self.variables: list[SavedBatch] = []

    @property
    def indices(self) -> list[int]:
        """The indices of its samples in the data set, where the snapshot tells."""
        return [] if self.fetched is None else self.fetched.indices

    @property
    def left_out(self) -> list[str]:
        """Classes of what was not kept of what a loader gave."""
        return [] if self.fetched is None else self.fetched.left_out

    @property
    def is_whole(self) -> bool:
        """Whether no part of it can be taken."""
        return self.fetched is not None and self.fetched.samples is None

    @property
    def samples(self) -> int:
        """How many there are; something that nobody knows the samples of counts as one."""
        batches = self.called if self.fetched is None else [self.fetched]
        return next((batch.samples for batch in batches if batch.samples), 1)


def loop_iterations(batches: Sequence[SavedBatch]) -> list[LoopIteration]:
    """Return the batches, which come in the order of time, by turns of the loop."""
    fetched = [LoopIteration(batch) for batch in batches if batch.source == "loader"]
    others = [batch for batch in batches if batch.source != "loader"]
    if not fetched:
        return _iterations_of_calls(others)
    called = [batch for batch in others if batch.source == "forward"]
    for number, batch in enumerate(called):  # as many calls in each turn
        fetched[number * len(fetched) // len(called)].called.append(batch)
    return fetched


def _iterations_of_calls(batches: Sequence[SavedBatch]) -> list[LoopIteration]:
    """Return the turns where nothing is fetched: what the model is called with until a loss is computed is one turn."""
    found: list[LoopIteration] = []
    for batch in batches:
        if not found or (batch.source == "forward" and found[-1].targets):
            found.append(LoopIteration(None))
        turn = found[-1]
        {"forward": turn.called, "script": turn.variables}.get(batch.source, turn.targets).append(batch)
    return found


def empties_loader(whole: Sequence[LoopIteration], samples: Sequence[int]) -> bool:
    """Return whether a batch would have no sample left, and that of another loader stand in its place."""
    loaders = {turn.fetched.loader for turn in whole if turn.fetched is not None}
    return len(loaders) > 1 and len(samples_by_iteration(whole, samples)) < len(whole)


def samples_by_iteration(
    whole: Sequence[LoopIteration], samples: Sequence[int]
) -> list[tuple[LoopIteration, list[int]]]:
    """Return which of its samples each turn is left with; turns that are left with none are left out."""
    found, start = [], 0
    for turn in whole:
        end = start + turn.samples
        own = [sample - start for sample in samples if start <= sample < end]
        if own:
            found.append((turn, own))
        start = end
    return found
