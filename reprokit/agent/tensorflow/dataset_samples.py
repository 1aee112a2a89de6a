"""Records the tf.data batches of each step by their elements or digests (--batch-digests).

Batches of eager loops are digested when they are fetched. Keras' fit fetches them within a graph: an operation is
appended to the data set passed to it, which digests each element.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from _thread import _local
from collections import deque

from ..core import trail_library
from ..core.patching import replace
from ..events.steps import BatchFetched, Events, LoaderBegan, LoaderExhausted, tell
from . import private_api
from .tensors import is_eager, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent import Agent
    from ..listeners.sample_ledger import SampleLedger

    KnownBatch = tuple[int, list[int] | None]  # digest, and indices of its elements if they are known

MAX_ELEMENTS = 1 << 20  # some 2 microseconds each
_BATCHES = frozenset(["Batch", "ParallelBatch"])
_ALL = _BATCHES | {"Cache", "Map", "Options", "ParallelMap", "Prefetch", "Shuffle"}  # stages that lose no element
_SOME = frozenset(["Filter", "Shard", "Skip", "Take"])


class SlicedElements:
    """The elements of the arrays that a data set slices, by their values; none if a batch may have others.

    Nothing is added to the data set: an index beside each element would be seen by the script's functions and specs,
    and could move its seeds.
    """

    def __init__(
        self, dataset: Any, digests_of: Callable[[list[Any]], list[int] | None], array_of: Callable[[Any], Any]
    ) -> None:
        self._digests_of = digests_of
        self._indices: dict[int, int] = {}  # by digest
        self.facts: dict[str, object] = {}  # how many an epoch has, and may leave out as they fill no batch, if known
        tensors, stages = private_api.sliced_by(dataset)
        kinds = [kind for kind, _ in stages]
        batches = [stage for kind, stage in stages if kind in _BATCHES]
        self._is_batched = bool(batches)
        if not tensors or len(batches) > 1 or not _ALL.union(_SOME).issuperset(kinds):
            return
        arrays = [array_of(tensor) for tensor in tensors]
        size = len(arrays[0])
        digests = digests_of(arrays) if size <= MAX_ELEMENTS else None
        self._indices = {digest: index for index, digest in enumerate(digests or ())}
        if len(self._indices) != size:  # of equal elements nobody knows which one it is
            self._indices = {}
        elif _ALL.issuperset(kinds):
            self.facts = {"samples": size, "left_over": sum(map(private_api.most_left_over, batches))}

    def of(self, arrays: list[Any]) -> list[int] | None:
        """Return the indices of the elements in a batch; None if they are not known, from here on."""
        if not self._indices:
            return None
        digests = self._digests_of(arrays if self._is_batched else [array[None] for array in arrays])
        indices = [self._indices.get(digest) for digest in digests or [0]]
        if None in indices:  # a function has changed them
            self._indices = {}
        return [index for index in indices if index is not None] if self._indices else None


class DatasetIteration:
    """One iteration over a data set, which the sample ledger treats as a loader."""

    def __init__(self, name: str, number: int, elements: SlicedElements | None) -> None:
        self.name, self.number, self.elements = name, number, elements
        self.began: LoaderBegan | None = None
        self.count = 0  # batches so far

    def facts(self) -> dict[str, object]:
        """Return the facts about the loader for the ledger."""
        return {"dataset": "tf.data", **({} if self.elements is None else self.elements.facts)}


class FitDigests:
    """The digests and elements of the batches that the graph of one call of fit has fetched."""

    def __init__(self, name: str, size: int | None, elements: SlicedElements | None) -> None:
        self.size = size  # batches per epoch, once known
        self.iteration = DatasetIteration(name, 0, elements)
        self._epochs: deque[deque[KnownBatch]] = deque()  # those fetched by the graph, one deque per iteration

    def note(self, index: int, batch: KnownBatch) -> None:
        """Add a batch; called on the input thread, which may be ahead of the steps."""
        if index == 0:
            self._epochs.append(deque())
        self._epochs[-1].append(batch)

    def take(self) -> KnownBatch | None:
        """Return the next step's batch; None if the graph has fetched no further one."""
        is_new = len(self._epochs) > 1
        while len(self._epochs) > 1:  # prefetched batches, or those to build the model, belong to no step
            self._epochs.popleft()
        if is_new and self.iteration.count:
            before = self.iteration
            self.iteration = DatasetIteration(before.name, before.number + 1, before.elements)
        return self._epochs[0].popleft() if self._epochs and self._epochs[0] else None


class DatasetThread(_local):
    """The call of fit on a thread."""

    fit: FitDigests | None = None
    is_fitting = False


class DatasetSamples:
    """Reports the batches of tf.data to the sample ledger."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._events = Events()
        self._thread = DatasetThread()
        self._library: Any = None
        self._datasets: Any = weakref.WeakKeyDictionary()  # name, number of iterations and elements, by data set
        self._iterations: Any = weakref.WeakKeyDictionary()  # DatasetIteration by iterator

    def begin(self, ledger: SampleLedger, library: trail_library.Library) -> None:
        """Begin to report to a ledger."""
        self._library = library
        self._events.add(ledger)
        owner = private_api.module("iterators").OwnedIterator
        replace(owner, "__init__", self._make_init)
        for name in ("__next__", "get_next"):
            replace(owner, name, self._make_next)

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(iterator: Any, dataset: Any = None, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
            original(iterator, dataset, *arguments, **keywords)
            if dataset is not None:
                self._agent.attempt(self._register, iterator, dataset)

        return __init__

    def _register(self, iterator: Any, dataset: Any) -> None:
        if not self._thread.is_fitting:
            self._iterations[iterator] = self._datasets.setdefault(dataset, ["", 0, None])
            if self._datasets[dataset][2] is None:
                self._datasets[dataset][2] = self._elements_of(dataset)

    def _make_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_next(iterator: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                batch = original(iterator, *arguments, **keywords)
            except Exception as error:
                if is_end(error):
                    self._agent.attempt(self._report_end, self._iterations.get(iterator))
                raise
            self._agent.attempt(self._record_batch, iterator, batch)
            return batch

        return get_next

    def _record_batch(self, iterator: Any, batch: Any) -> None:
        iteration = self._iterations.get(iterator)
        leaves = None if iteration is None else leaves_of(batch)
        if iteration is None or not all(map(is_eager, leaves or [])):
            return
        if type(iteration) is list:  # the entry of the data set, which is named at its first batch
            entry = iteration
            entry[0] = entry[0] or self._agent.name("dataset")
            iteration = self._iterations[iterator] = DatasetIteration(*entry)
            entry[1] += 1
        self._report_batch(iteration, *self._known(iteration.elements, [array_of(leaf) for leaf in leaves or []]))

    def _elements_of(self, dataset: Any) -> Any:
        return self._agent.attempt(SlicedElements, dataset, self._row_digests, array_of)

    def _known(self, elements: SlicedElements | None, arrays: list[Any]) -> KnownBatch:
        return self.digest(arrays), None if elements is None else elements.of(arrays)

    def _report_batch(self, iteration: DatasetIteration, digest: int, indices: list[int] | None) -> None:
        if iteration.began is None:
            iteration.began = LoaderBegan(iteration, ("", 0), None)
            tell(self._events.loader_began, iteration.began)
        iteration.count += 1
        tell(self._events.batch_fetched, BatchFetched(None, iteration.began, indices, None, digest))

    def _report_end(self, iteration: Any) -> None:
        """Report that an iteration has no further batch."""
        if isinstance(iteration, DatasetIteration) and iteration.began is not None:
            tell(self._events.loader_exhausted, LoaderExhausted(iteration.began))

    def digest(self, arrays: list[Any]) -> int:
        """Return the digest of a batch's arrays; never 0."""
        numpy, digest = sys.modules["numpy"], 0
        for original in arrays:
            salt, array = trail_library.salt(original.dtype.name, original.shape), original
            if original.dtype.hasobject:  # texts
                text = hashlib.sha256()
                for word in original.reshape(-1).tolist():
                    data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
                    text.update(b"%d\0" % len(data) + data)
                array = numpy.frombuffer(text.digest(), numpy.uint8)
            flat = numpy.ascontiguousarray(array)
            digest = self._library.fold(digest, flat.__array_interface__["data"][0], flat.nbytes, salt)
        return digest or 1

    def _row_digests(self, arrays: list[Any]) -> list[int] | None:
        """Return a digest of each row of arrays of equal length; None of others."""
        numpy = sys.modules["numpy"]
        if not arrays or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            return None
        digests = [0] * len(arrays[0])
        for original in arrays:
            if original.dtype.hasobject:  # texts
                rows = [original[row : row + 1] for row in range(len(digests))]
                digests = [trail_library.mix(digest ^ self.digest([row])) for digest, row in zip(digests, rows)]
                continue
            salt = trail_library.salt(original.dtype.name, original.shape[1:])
            array, fold = numpy.ascontiguousarray(original), self._library.fold
            address, size = array.__array_interface__["data"][0], array.nbytes // max(len(digests), 1)
            digests = [fold(digest, address + row * size, size, salt) for row, digest in enumerate(digests)]
        return digests

    # Keras' fit

    def fitting(self, name: str, arguments: Any) -> None:
        """Handle the begin of a call of fit."""
        if not self._events.batch_fetched:
            return
        self._thread.is_fitting = True
        tensorflow = sys.modules["tensorflow"]
        if isinstance(arguments.get("x"), tensorflow.data.Dataset) and not tensorflow.distribute.has_strategy():
            self._agent.attempt(self._add_digests, name, arguments, tensorflow)

    def _add_digests(self, name: str, arguments: dict[str, Any], tensorflow: Any) -> None:
        size = int(arguments["x"].cardinality())
        elements = self._elements_of(arguments["x"])
        fit = FitDigests(name, size if size >= 0 else None, elements)

        def known(index: Any, arrays: tuple[Any, ...]) -> None:
            fit.note(int(index), self._known(elements, [numpy_array(array) for array in arrays]))

        def note(index: Any, *arrays: Any) -> Any:
            self._agent.attempt(known, index, arrays)
            return index

        def watched(index: Any, element: Any) -> Any:
            nest = tensorflow.nest
            leaves = nest.flatten(element, expand_composites=True)
            noted = tensorflow.numpy_function(note, [index, *leaves], index.dtype)
            with tensorflow.control_dependencies([noted]):
                leaves = [tensorflow.identity(leaf) for leaf in leaves]
            return nest.pack_sequence_as(element, leaves, expand_composites=True)

        arguments["x"] = arguments["x"].enumerate().map(watched)
        self._thread.fit = fit

    def stepped(self, model: Any) -> None:
        """Report the batches of a step; there are several if the model executes several steps per call."""
        fit = self._thread.fit
        for _ in range(0 if fit is None else int(getattr(model, "steps_per_execution", 1) or 1)):
            assert fit is not None
            batch = fit.take()
            if batch is None:
                return
            self._report_batch(fit.iteration, *batch)
            if fit.iteration.count == fit.size:
                self._report_end(fit.iteration)

    def failed(self, error: BaseException) -> None:
        """Handle a failed step: this is how a data set of unknown size ends."""
        fit = self._thread.fit
        if fit is not None and is_end(error) and fit.size is None and fit.iteration.count:
            fit.size = fit.iteration.count
            self._report_end(fit.iteration)

    def ended(self) -> None:
        """Handle the end of a call of fit."""
        self._thread.fit, self._thread.is_fitting = None, False


def is_end(error: BaseException) -> bool:
    """Return whether an error means that a data set has no further batch."""
    return type(error).__name__ in ("StopIteration", "OutOfRangeError")


def leaves_of(batch: Any) -> list[Any]:
    """Return the tensors of a batch, in a fixed order."""
    leaves: list[Any] = sys.modules["tensorflow"].nest.flatten(batch, expand_composites=True)
    return leaves


def array_of(tensor: Any) -> Any:
    """Return a tensor as an array: a view if possible, a copy for devices and strings."""
    array = view(tensor)
    return numpy_array(tensor.numpy()) if array is None else array


def numpy_array(value: Any) -> Any:
    """Convert a value to an array; a bytes value is a scalar string."""
    return sys.modules["numpy"].asarray(value, None if not isinstance(value, bytes) else object)
