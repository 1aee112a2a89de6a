"""Which batches of tf.data each step has, by their digests (--batch-digests).

Where a loop takes batches eagerly, their bytes are digested there. Keras' fit takes them within a graph: the data set
that it is given gets one more operation at its end, which hands each element to us on its way.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from _thread import _local
from collections import deque

from .. import trail_library
from ..core.patching import replace
from ..events import BatchFetched, Events, LoaderBegan, LoaderExhausted, tell
from . import private_api
from .tensors import is_eager, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent
    from ..sample_ledger import SampleLedger


class DatasetIteration:
    """One iteration of a data set; to the ledger, of a loader of this name."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.began: LoaderBegan | None = None
        self.count = 0  # of the batches that were taken

    def facts(self) -> dict[str, object]:
        """Return what the ledger keeps of it."""
        return {"dataset": "tf.data"}


class FitDigests:
    """The digests of the batches that the graph of one call of fit takes."""

    def __init__(self, name: str, size: int | None) -> None:
        self.size = size  # batches of an epoch, as soon as that is known
        self.iteration = DatasetIteration(name, 0)
        self._epochs: deque[deque[int]] = deque()  # of what the graph has taken, an iteration each

    def note(self, index: int, digest: int) -> None:
        """Take in an element, on the thread that makes batches, which may be ahead of the steps."""
        if index == 0:
            self._epochs.append(deque())
        self._epochs[-1].append(digest)

    def take(self) -> int | None:
        """Return the digest of the next step's batch; None where the graph has taken no further one."""
        is_new = len(self._epochs) > 1
        while len(self._epochs) > 1:  # what was taken in advance or to build the model, no step gets
            self._epochs.popleft()
        if is_new and self.iteration.count:
            self.iteration = DatasetIteration(self.iteration.name, self.iteration.number + 1)
        return self._epochs[0].popleft() if self._epochs and self._epochs[0] else None


class DatasetThread(_local):
    """What a thread fits."""

    fit: FitDigests | None = None
    is_fitting = False


class DatasetSamples:
    """Tells the ledger which batches of tf.data are taken."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._events = Events()
        self._thread = DatasetThread()
        self._library: Any = None
        self._datasets: Any = weakref.WeakKeyDictionary()  # name, and how often it was iterated
        self._iterations: Any = weakref.WeakKeyDictionary()  # of iterators

    def begin(self, ledger: SampleLedger, library: trail_library.Library) -> None:
        """Tell this ledger."""
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
                self._agent.attempt(self._began, iterator, dataset)

        return __init__

    def _began(self, iterator: Any, dataset: Any) -> None:
        if not self._thread.is_fitting:
            self._iterations[iterator] = self._datasets.setdefault(dataset, ["", 0])

    def _make_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_next(iterator: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                batch = original(iterator, *arguments, **keywords)
            except Exception as error:
                if is_end(error):
                    self._agent.attempt(self._ended, self._iterations.get(iterator))
                raise
            self._agent.attempt(self._fetched, iterator, batch)
            return batch

        return get_next

    def _fetched(self, iterator: Any, batch: Any) -> None:
        iteration = self._iterations.get(iterator)
        leaves = None if iteration is None else leaves_of(batch)
        if iteration is None or not all(map(is_eager, leaves or [])):
            return
        if type(iteration) is list:  # of its data set, which has no name before its first batch
            known = iteration
            known[0] = known[0] or self._agent.name("dataset")
            iteration = self._iterations[iterator] = DatasetIteration(known[0], known[1])
            known[1] += 1
        self._tell(iteration, self.digest([array_of(leaf) for leaf in leaves or []]))

    def _tell(self, iteration: DatasetIteration, digest: int) -> None:
        if iteration.began is None:
            iteration.began = LoaderBegan(iteration, ("", 0), None, iteration)
            tell(self._events.loader_began, iteration.began)
        iteration.count += 1
        tell(self._events.batch_fetched, BatchFetched(None, iteration.began, None, None, digest))

    def _ended(self, iteration: Any) -> None:
        """There is no further batch."""
        if isinstance(iteration, DatasetIteration) and iteration.began is not None:
            tell(self._events.loader_exhausted, LoaderExhausted(iteration.began))

    def digest(self, arrays: list[Any]) -> int:
        """Return the digest of a batch's arrays, which is not 0."""
        numpy, digest = sys.modules["numpy"], 0
        for given in arrays:
            salt, array = trail_library.salt(given.dtype.name, given.shape), given
            if given.dtype.hasobject:  # texts
                text = hashlib.sha256()
                for word in given.reshape(-1).tolist():
                    data = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogatepass")
                    text.update(b"%d\0" % len(data) + data)
                array = numpy.frombuffer(text.digest(), numpy.uint8)
            flat = numpy.ascontiguousarray(array)
            digest = self._library.fold(digest, flat.__array_interface__["data"][0], flat.nbytes, salt)
        return digest or 1

    # Keras' fit

    def fitting(self, name: str, arguments: Any) -> None:
        """A call of fit begins, with these arguments."""
        if not self._events.batch_fetched:
            return
        self._thread.is_fitting = True
        tensorflow = sys.modules["tensorflow"]
        if isinstance(arguments.get("x"), tensorflow.data.Dataset) and not tensorflow.distribute.has_strategy():
            self._agent.attempt(self._watch_fit, name, arguments, tensorflow)

    def _watch_fit(self, name: str, arguments: dict[str, Any], tensorflow: Any) -> None:
        size = int(arguments["x"].cardinality())
        fit = FitDigests(name, size if size >= 0 else None)

        def note(index: Any, *arrays: Any) -> Any:
            self._agent.attempt(lambda: fit.note(int(index), self.digest([numpy_array(array) for array in arrays])))
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
        """A step was made, of as many batches as it executes at once."""
        fit = self._thread.fit
        for _ in range(0 if fit is None else int(getattr(model, "steps_per_execution", 1) or 1)):
            assert fit is not None
            digest = fit.take()
            if digest is None:
                return
            self._tell(fit.iteration, digest)
            if fit.iteration.count == fit.size:
                self._ended(fit.iteration)

    def failed(self, error: BaseException) -> None:
        """A step was not made; of a data set whose size is not known that is how it ends."""
        fit = self._thread.fit
        if fit is not None and is_end(error) and fit.size is None and fit.iteration.count:
            fit.size = fit.iteration.count
            self._ended(fit.iteration)

    def ended(self) -> None:
        """The call has ended."""
        self._thread.fit, self._thread.is_fitting = None, False


def is_end(error: BaseException) -> bool:
    """Return whether this says that a data set has no further batch."""
    return type(error).__name__ in ("StopIteration", "OutOfRangeError")


def leaves_of(batch: Any) -> list[Any]:
    """Return the tensors of a batch, in a fixed order."""
    leaves: list[Any] = sys.modules["tensorflow"].nest.flatten(batch, expand_composites=True)
    return leaves


def array_of(tensor: Any) -> Any:
    """Return the bytes of a tensor as an array, copied where they lie elsewhere or are texts."""
    array = view(tensor)
    return numpy_array(tensor.numpy()) if array is None else array


def numpy_array(value: Any) -> Any:
    """Return an array; scalars of texts come as bytes."""
    return sys.modules["numpy"].asarray(value, None if not isinstance(value, bytes) else object)
