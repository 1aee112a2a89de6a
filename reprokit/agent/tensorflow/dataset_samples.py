"""Records the tf.data batches of each step by their elements or digests (--batch-digests).

Batches of eager loops are digested when they are fetched. Keras' fit fetches them within a graph: an operation is
appended to the data set passed to it, which digests each element.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from _thread import _local
from collections import OrderedDict, deque

from ..core import trail_library
from ..core.patching import replace
from ..events.steps import BatchFetched, Events, LoaderBegan, LoaderExhausted, tell
from . import private_api
from .numbered_datasets import UNKNOWN, DatasetNumbers
from .tensors import is_eager, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent import Agent
    from ..listeners.sample_ledger import SampleLedger
    from .numbered_datasets import NumberedDataset

    KnownBatch = tuple[int, list[int] | None]  # digest, and indices of its elements if they are known

MAX_NOTED = 1 << 12  # batches that a data set may be ahead of its loop


class NotedBatches:
    """The elements of the batches that a data set has made for loops, which may be ahead of these."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[int, int], list[int] | None] = OrderedDict()

    def note(self, index: int, batch: KnownBatch) -> None:
        """Add the batch of this number in its iteration; called on the input thread."""
        digest, numbers = batch
        if self._numbers.setdefault((index, digest), numbers) != numbers:  # several iterations are under way
            self._numbers[index, digest] = None
        if len(self._numbers) > MAX_NOTED:
            self._numbers.popitem(last=False)

    def take(self, index: int, digest: int) -> list[int] | None:
        """Return the numbers of a batch's elements; None if they are not known."""
        return self._numbers.pop((index, digest), None)


class DatasetIteration:
    """One iteration over a data set, which the sample ledger treats as a loader."""

    def __init__(self, name: str, number: int, numbered: NumberedDataset | None, noted: NotedBatches | None) -> None:
        self.name, self.number, self.numbered, self.noted = name, number, numbered, noted
        self.began: LoaderBegan | None = None
        self.count = 0  # batches so far
        self.kept: Any = None  # what must not be collected meanwhile

    def facts(self) -> dict[str, object]:
        """Return the facts about the loader for the ledger."""
        return {"dataset": "tf.data", **({} if self.numbered is None else self.numbered.facts())}


class FitDigests:
    """The digests and elements of the batches that the graph of one call of fit has fetched."""

    def __init__(self, name: str, size: int | None, numbered: NumberedDataset | None) -> None:
        self.size = size  # batches per epoch, once known
        self.iteration = DatasetIteration(name, 0, numbered, None)
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
            self.iteration = DatasetIteration(before.name, before.number + 1, before.numbered, None)
        return self._epochs[0].popleft() if self._epochs and self._epochs[0] else None


class WatchedDataset:
    """A data set that loops iterate over."""

    def __init__(self, numbered: NumberedDataset | None) -> None:
        self.name, self.iterations = "", 0
        self.numbered, self.noted = numbered, NotedBatches()
        self.noting: Any = None  # the same data set, which notes its batches


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
        self._numbers = DatasetNumbers(agent)
        self._datasets: Any = weakref.WeakKeyDictionary()  # WatchedDataset by data set
        self._iterations: Any = weakref.WeakKeyDictionary()  # DatasetIteration by iterator

    def begin(self, ledger: SampleLedger, library: trail_library.Library) -> None:
        """Begin to report to a ledger."""
        self._library = library
        self._events.add(ledger)
        self._numbers.begin()
        owner = private_api.module("iterators").OwnedIterator
        replace(owner, "__init__", self._make_init)
        for name in ("__next__", "get_next"):
            replace(owner, name, self._make_next)

    def _make_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(iterator: Any, dataset: Any = None, *arguments: Any, **keywords: Any) -> None:  # noqa: N807
            is_loop = dataset is not None and not self._thread.is_fitting and private_api.executing_eagerly()
            watched = self._agent.attempt(self._watch, dataset) if is_loop else None
            given = dataset if watched is None or watched.noting is None else watched.noting
            original(iterator, given, *arguments, **keywords)
            if watched is not None:
                self._iterations[iterator] = watched, dataset  # which keeps the functions that it calls

        return __init__

    def _watch(self, dataset: Any) -> WatchedDataset:
        watched: WatchedDataset | None = self._datasets.get(dataset)
        if watched is None:
            watched = self._datasets[dataset] = WatchedDataset(self._numbers.of(dataset))
            if watched.numbered is not None:
                watched.noting = self._noting(watched.numbered.pairs, watched.noted.note, dataset, in_order=False)
        return watched

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
        if type(iteration) is tuple:  # the data set, which is named at its first batch
            watched = iteration[0]
            watched.name = watched.name or self._agent.name("dataset")
            iteration = DatasetIteration(watched.name, watched.iterations, watched.numbered, watched.noted)
            iteration.kept = self._iterations[iterator]
            self._iterations[iterator] = iteration
            watched.iterations += 1
        digest = self.digest([array_of(leaf) for leaf in leaves or []])
        self._report_batch(iteration, digest, iteration.noted and iteration.noted.take(iteration.count, digest))

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
        dataset = arguments["x"]
        numbered, size = self._numbers.of(dataset), int(dataset.cardinality())
        fit = FitDigests(name, size if size >= 0 else None, numbered)
        pairs = numbered.pairs if numbered else dataset.map(private_api.as_is(_unnumbered))
        arguments["x"] = self._noting(pairs, fit.note, dataset, in_order=True)
        self._thread.fit = fit

    def _noting(self, pairs: Any, note: Callable[[int, KnownBatch], object], dataset: Any, *, in_order: bool) -> Any:
        """Return a data set of whose pairs each batch is noted, with its place, on the thread that makes it.

        Only if batches may be noted in any order, iterators can be saved: not those of functions with a state.
        """
        tensorflow = sys.modules["tensorflow"]

        def known(index: Any, numbers: Any, arrays: tuple[Any, ...]) -> None:
            known = numbers.reshape(-1).tolist()
            digest = self.digest([numpy_array(array) for array in arrays])
            note(int(index), (digest, None if UNKNOWN in known else known))

        def called(index: Any, numbers: Any, *arrays: Any) -> Any:
            self._agent.attempt(known, index, numbers, arrays)
            return arrays[-1]  # else it would not be called, as a function without a state

        def watched(index: Any, pair: Any) -> Any:
            nest, (numbers, element) = tensorflow.nest, pair
            leaves = nest.flatten(element, expand_composites=True)
            last = tensorflow.numpy_function(called, [index, numbers, *leaves], leaves[-1].dtype, stateful=in_order)
            last.set_shape(leaves[-1].shape)
            return nest.pack_sequence_as(element, [*leaves[:-1], last], expand_composites=True)

        return private_api.restructured(pairs.enumerate().map(private_api.as_is(watched)), dataset.element_spec)

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


def _unnumbered(*element: Any) -> Any:
    return UNKNOWN, element


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
