"""The batches of PyTorch's steps: recorded when a step receives them, and read from a snapshot, whole or in part."""

from __future__ import annotations

import sys

from ..pytorch.private_api import changes
from ..pytorch.tensors import is_nested, is_tensor
from .torch_state import leaf
from .trees import child_nodes, leaf_contents, pack

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
ALWAYS = 1 << 62  # of _copies: every batch is copied from now on
MAX_PAST = 2  # batches of each earlier step: those that were fetched ahead come last
PROBATION = 16  # batches that are copied before the script is trusted not to change batches in place
ARRAYS = frozenset(["array", "held", "sparse", "strings", "tensor"])  # kinds of nodes with a shape


# ---- recorded --------------------------------------------------------------------------------------------------------


class BatchRecord:
    """A recorded batch of the step, with its source and the random states when it was fetched."""

    __slots__ = ("indices", "node", "origin", "random", "source")

    def __init__(self, origin: str, source: Any, node: Node) -> None:
        self.origin = origin  # "loader", "forward", "loss" or "script"
        self.source = source  # the LoaderPass, the module, or a name
        self.node = node  # a node of trees.pack() whose leaves are the tensors and arrays themselves
        self.indices: Any = None  # of its samples in the data set, if a sampler chose them
        self.random: RandomReader | None = None  # random states when a loader returned it


class StepBatches:
    """The batches of a thread's steps. Tensors are copied until none has changed for a while, then only watched."""

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._copies = PROBATION
        self._watched: list[tuple[Any, int]] = []
        self.current: list[BatchRecord] = []
        self.earlier: list[BatchRecord] = []  # of another optimizer's step, as no batch was fetched since
        self._owner: object = None  # the optimizer of that step
        self.are_loaded = False  # a DataLoader returned a batch in this step
        self.is_ahead = False  # the script fetches a batch before it uses the one before it
        self.past: list[list[BatchRecord]] = []  # then: the last batches of loaders in the two steps before

    def add(self, origin: str, value: Any, source: Any = "") -> BatchRecord | None:
        """Record a batch; return None if there are too many."""
        if len(self.current) >= MAX_BATCHES:
            return None
        self._copies -= 1
        kind, plain = type(value), self._tensor
        if self._copies <= 0 and (kind is list or kind is tuple) and set(map(type, value)) == {plain}:
            node: Node = {kind.__name__: []}  # as pack() has it, without its calls
            for item in value:
                node[kind.__name__].append({"held": item.detach()})
                self._watched.append((item, changes(item)))
        else:
            node = pack(value, self._leaf, has_objects=True)
        record = BatchRecord(origin, source, node)
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
        """Drop all recorded batches: they belong to no step."""
        self.current, self.earlier, self._watched = [], [], []

    def forget(self, epoch: Any) -> None:
        """Drop the batches of this pass over a loader: no later step uses them."""
        self.earlier = [batch for batch in self.earlier if batch.source is not epoch]
        self.current = [batch for batch in self.current if batch.source is not epoch]
        if not self.current:
            self._watched = []

    def end(self, owner: object) -> None:
        """End an optimizer's step; copy all batches from now on if one changed in place."""
        for tensor, version in self._watched:
            if changes(tensor) != version:
                self._copies = ALWAYS
        batches = self.current
        if batches and batches[0].origin == "loader":
            others = len(batches) > 1
            self.earlier = [batch for batch in batches if batch.origin == "loader"][:MAX_EARLIER] if others else batches
            self._owner = owner
            if self.is_ahead:
                self.past = [*self.past[-1:], self.earlier[-MAX_PAST:]]
        elif self._owner is owner:
            self.earlier, self.past = [], []
        self.current, self._watched = [], []
        self.are_loaded = False

    @property
    def are_trusted(self) -> bool:
        """Whether batches are only watched, as none has changed."""
        return self._copies <= 0

    def has_changed(self) -> bool:
        """Return whether a batch that was recorded without a copy has changed since."""
        return self._copies <= 0 and any(changes(tensor) != version for tensor, version in self._watched)


# ---- from a snapshot -------------------------------------------------------------------------------------------------


class SavedBatch:
    """One batch of a snapshot: its value, its source, and its count of samples."""

    def __init__(self, entry: Mapping[str, Any], reader: SnapshotReader) -> None:
        self.source = str(entry.get("from"))
        self.name = entry.get("name")  # of the module or function that it was given to
        loader = entry.get("loader")
        self.loader: int | None = loader if type(loader) is int else None  # its number, if there are several
        self._node = entry["value"]
        self._reader = reader
        self.axis = int(entry.get("sample_axis") or 0)
        samples = entry.get("samples")
        self.samples: int | None = samples if type(samples) is int and samples > 0 else None
        indices = entry.get("indices")
        self.may_be_sorted = entry.get("may_be_sorted") is True  # by the script's collate_fn
        self.indices: list[int] = indices if isinstance(indices, list) and self.samples in (None, len(indices)) else []
        random = entry.get("random")
        self.random: Mapping[str, Any] = random if isinstance(random, dict) else {}  # states when it was fetched
        self.left_out = list(dict.fromkeys(leaf_contents(self._node, ("left_out",))))  # classes of unsaved values
        self.is_empty = bool(self.left_out) and not leaf_contents(self._node)

    def part(self, samples: Sequence[int], like: Any = None, filled: bool = False) -> Any:
        """Return a copy of some samples; ``filled`` repeats them up to the size of the whole batch."""
        selection = None
        if self.samples is not None and len(samples) != self.samples:
            if filled:
                samples = [samples[position % len(samples)] for position in range(self.samples)]
            selection = SampleSelection(self._reader.get, self.samples, self.axis, samples)
        return self._reader.value(self._node, like, selection)


class SampleSelection:
    """Selects samples from every value that has one entry a sample, however it is packed (a PartTaker)."""

    def __init__(self, get: Callable[[Node], Any], count: int, axis: int, samples: Sequence[int]) -> None:
        self._get = get
        self._count = count
        self._axis = axis
        self._samples = list(samples)

    def rows(self, value: Any) -> Any:
        """Return the selected samples of a tensor or an array; nested tensors stay whole."""
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
        """Return the selected items of a list of samples; a list of tensors that each have all samples stays whole."""
        if len(nodes) == self._count and not any(map(self._has_samples, nodes)):
            return [nodes[sample] for sample in self._samples]
        return nodes

    def _has_samples(self, node: Node) -> bool:
        if not isinstance(node, dict) or "dict" in node:
            return isinstance(node, dict) and any(map(self._has_samples, child_nodes(node)))
        value = self._get(node) if not ARRAYS.isdisjoint(node) else None
        return self._fits(value, self._axis) or self._fits(value, 0)


class LoopIteration:
    """The inputs of one iteration of the training loop: what it fetched, and what it called its model with."""

    def __init__(self, fetched: SavedBatch | None) -> None:
        self.fetched = fetched
        self.called: list[SavedBatch] = []
        self.targets: list[SavedBatch] = []
        self.variables: list[SavedBatch] = []

    @property
    def indices(self) -> list[int]:
        """The indices of its samples in the data set, if the snapshot has them."""
        return [] if self.fetched is None else self.fetched.indices

    @property
    def left_out(self) -> list[str]:
        """Classes of the values of a loader's batch that were not saved."""
        return [] if self.fetched is None else self.fetched.left_out

    @property
    def is_whole(self) -> bool:
        """Whether it cannot be divided, as its samples are unknown."""
        return self.fetched is not None and self.fetched.samples is None

    @property
    def samples(self) -> int:
        """The number of samples; a batch whose samples are unknown counts as one."""
        batches = self.called if self.fetched is None else [self.fetched]
        return next((batch.samples for batch in batches if batch.samples), 1)


def loop_iterations(batches: Sequence[SavedBatch]) -> list[LoopIteration]:
    """Group batches, which come in the order of time, by iterations of the training loop."""
    fetched = [LoopIteration(batch) for batch in batches if batch.source == "loader"]
    others = [batch for batch in batches if batch.source != "loader"]
    if not fetched:
        return _iterations_of_calls(others)
    called = [batch for batch in others if batch.source == "forward"]
    for number, batch in enumerate(called):  # as many calls in each iteration
        fetched[number * len(fetched) // len(called)].called.append(batch)
    return fetched


def _iterations_of_calls(batches: Sequence[SavedBatch]) -> list[LoopIteration]:
    """Group batches where nothing is fetched: an iteration ends when a loss is computed."""
    iterations: list[LoopIteration] = []
    for batch in batches:
        if not iterations or (batch.source == "forward" and iterations[-1].targets):
            iterations.append(LoopIteration(None))
        iteration = iterations[-1]
        {"forward": iteration.called, "script": iteration.variables}.get(batch.source, iteration.targets).append(batch)
    return iterations


def empties_loader(iterations: Sequence[LoopIteration], samples: Sequence[int]) -> bool:
    """Return whether a batch would have no sample left, so that another loader's batch would take its place."""
    loaders = {iteration.fetched.loader for iteration in iterations if iteration.fetched is not None}
    return len(loaders) > 1 and len(samples_by_iteration(iterations, samples)) < len(iterations)


def samples_by_iteration(
    iterations: Sequence[LoopIteration], samples: Sequence[int]
) -> list[tuple[LoopIteration, list[int]]]:
    """Return the iterations that keep any of these samples, each with its own samples' positions."""
    selected, start = [], 0
    for iteration in iterations:
        end = start + iteration.samples
        own_samples = [sample - start for sample in samples if start <= sample < end]
        if own_samples:
            selected.append((iteration, own_samples))
        start = end
    return selected
