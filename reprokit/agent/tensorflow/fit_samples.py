"""Records the samples of each step of Keras' fit on arrays (Keras 3 on TensorFlow, one device).

Keras shuffles the indices of the samples once per epoch, in the graph that makes batches. There the shuffled indices
are recorded; the operation that draws the random numbers is unchanged.
"""

from __future__ import annotations

import sys
from _thread import _local

from ..core.patching import replace, swap
from ..events.steps import BatchFetched, Events, LoaderBegan, LoaderExhausted, tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..core.agent import Agent
    from ..listeners.sample_ledger import SampleLedger


class FitOrder:
    """The order of the samples in one call of fit, which the sample ledger treats as a loader."""

    def __init__(self, name: str, shuffle: Any) -> None:
        self.name = name
        self.shuffle = shuffle
        self.number = -1  # of the epoch
        self.size = self.batch_size = self.position = 0
        self.began: LoaderBegan | None = None
        self.current: Any = range(0)  # indices of the samples in the current epoch
        self.shuffled: list[Any] = []  # indices of epochs that have not begun

    def begin(self, adapter: Any) -> None:
        """Take the number of samples from the first data adapter of fit, that of the training data."""
        self.batch_size = adapter.batch_size
        self.size = self.position = adapter.batch_size * (adapter.num_batches - 1) + (
            adapter.partial_batch_size or adapter.batch_size
        )

    def note(self, indices: Any) -> Any:
        """Record the shuffled indices of an epoch; called on the input thread."""
        self.shuffled.append(indices.tolist())
        return indices

    def next_epoch(self) -> bool:
        """Advance to the next epoch; return False if its indices are unknown or ambiguous."""
        self.number, self.position = self.number + 1, 0
        self.current = range(self.size)
        if not self.shuffle:
            return True
        (*others, self.current), self.shuffled = self.shuffled or [range(0)], []
        return not others and len(self.current) == self.size

    def facts(self) -> dict[str, object]:
        """Return the facts about the loader for the ledger."""
        sampler = "shuffled by Keras" if self.shuffle else "in order"
        return {"dataset": "arrays", "sampler": sampler, "samples": self.size}


class FitThread(_local):
    """The call of fit on a thread."""

    order: FitOrder | None = None


class FitSamples:
    """Reports the samples of fit's steps to the sample ledger."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._events = Events()
        self._thread = FitThread()

    def begin(self, ledger: SampleLedger) -> None:
        """Begin to report to a ledger."""
        self._events.add(ledger)

    def watch(self, module: Any) -> None:
        """Instrument the data adapter that makes batches of arrays."""
        replace(module.ArrayDataAdapter, "get_tf_dataset", self._make_get_dataset)

    def fitting(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Handle the begin of a call of fit."""
        if self._events.batch_fetched:
            self._thread.order = FitOrder(name, arguments.get("shuffle", True))

    def ended(self) -> None:
        """Handle the end of a call of fit."""
        if self._thread.order is not None:
            self._end_epoch(self._thread.order)
        self._thread.order = None

    def _end_epoch(self, order: FitOrder) -> None:
        """Report the end of an epoch."""
        if order.began is not None and order.position >= order.size:
            tell(self._events.loader_exhausted, LoaderExhausted(order.began))
        order.began = None

    def _make_get_dataset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_tf_dataset(adapter: Any) -> Any:
            order = self._thread.order
            undo = None if order is None or order.size else self._agent.attempt(self._begin_order, order, adapter)
            try:
                return original(adapter)
            finally:
                if undo is not None:
                    undo()

        return get_tf_dataset

    def _begin_order(self, order: FitOrder, adapter: Any) -> Callable[[], None] | None:
        """Record shuffled indices in the graph being built; return a function that reverts the patch."""
        tensorflow = sys.modules["tensorflow"]
        if tensorflow.distribute.has_strategy() or order.shuffle == "batch":
            self.ended()
            return None
        order.begin(adapter)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def shuffle(*arguments: Any, **keywords: Any) -> Any:
                shuffled = original(*arguments, **keywords)
                noted = tensorflow.numpy_function(order.note, [shuffled], shuffled.dtype)
                noted.set_shape(shuffled.shape)
                return noted

            return shuffle

        return swap(tensorflow.random, "shuffle", make)

    def stepped(self, model: Any) -> None:
        """Report the samples of a step; there are several batches if the model executes several steps per call."""
        order = self._thread.order
        if order is None or not order.size:
            return
        for _ in range(int(getattr(model, "steps_per_execution", 1) or 1)):
            if order.position >= order.size:
                self._end_epoch(order)
                if not order.next_epoch():
                    self.ended()
                    words = f"the samples of {order.name} are not known: it took another order than Keras' own"
                    self._agent.warn(words, "samples-unknown")
                    return
                order.began = LoaderBegan(order, ("", 0), None)
                tell(self._events.loader_began, order.began)
            end = min(order.position + order.batch_size, order.size)
            indices = list(order.current[order.position : end])
            order.position = end
            tell(self._events.batch_fetched, BatchFetched(None, order.began, indices))
            if end == order.size:
                return
