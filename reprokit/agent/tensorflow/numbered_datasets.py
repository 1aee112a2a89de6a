"""Numbers the elements of tf.data at their source, and carries the numbers beside them to the batches.

For a data set, a numbered one is made of the same stages, with the same seeds, functions and options. Functions of the
script see elements only, by the graphs that were traced for them. Stages with a state that outlives an iteration
(orders, caches) have it once: the script's own data set takes its elements from the numbered one. Repetitions are made
likewise, as TensorFlow joins an order and the repetition behind it.
"""

from __future__ import annotations

import sys
import weakref

from ..core.patching import replace
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from ..core.agent import Agent

    Stage: TypeAlias = "Callable[[Any, Any], Any]"

UNKNOWN = -1  # the number of an element that was made of several
_SOURCES = frozenset(["FixedLengthRecord", "Range", "TFRecord", "TensorSlice", "TextLine"])
_READERS = frozenset(["FlatMap", "Interleave", "ParallelInterleave"])  # of files, in an order that stays
_WITH_STATE = frozenset(["Cache", "Repeat", "Shuffle"])
_SOME = frozenset(["Filter", "Shard", "Skip", "Take"])  # stages that lose elements
_BATCHES = frozenset(["Batch", "PaddedBatch", "ParallelBatch"])


class NumberedDataset:
    """A data set of pairs: numbers of elements, and what the script's data set gives."""

    def __init__(self, pairs: Any, size: Any, left_over: int = 0, repeats: bool = False) -> None:
        self.pairs = pairs
        self.size = size  # how many an iteration has; None if that is not known
        self.left_over, self.repeats = left_over, repeats

    def facts(self) -> dict[str, object]:
        """Return the facts about the elements for the ledger."""
        if self.repeats:
            return {"replacement": True}
        return {} if self.size is None else {"samples": self.size, "left_over": self.left_over}


class DatasetNumbers:
    """The numbered data sets of a process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._numbered: Any = weakref.WeakKeyDictionary()  # NumberedDataset or None, by data set

    def begin(self) -> None:
        """Give each order and each cache made from now on its numbered one."""
        for name in _WITH_STATE:
            replace(private_api.module("datasets").DatasetV2, name.lower(), self._make_stage)

    def _make_stage(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def stage(dataset: Any, *arguments: Any, **keywords: Any) -> Any:
            made = original(dataset, *arguments, **keywords)
            self._agent.attempt(self._share_state, made)
            return made

        return stage

    def _share_state(self, made: Any) -> None:
        kind, inputs = private_api.stage(made)
        is_made = kind in _WITH_STATE and private_api.rebuilds_stages() and private_api.executing_eagerly()
        numbered = self._numbered[made] = self._make(made, kind, inputs) if is_made else None
        if numbered is not None:
            private_api.take_from(made, numbered.pairs.map(private_api.as_is(_element)))

    def of(self, dataset: Any) -> NumberedDataset | None:
        """Return the numbered data set of one; None if its elements cannot be known."""
        if dataset not in self._numbered:
            kind, inputs = private_api.stage(dataset)
            is_made = kind not in _WITH_STATE and private_api.rebuilds_stages()
            self._numbered[dataset] = self._make(dataset, kind, inputs) if is_made else None
        found: NumberedDataset | None = self._numbered[dataset]
        return found

    def _make(self, dataset: Any, kind: str, inputs: list[Any]) -> NumberedDataset | None:
        if self._is_source(dataset, kind, inputs):
            count = int(dataset.cardinality())
            return NumberedDataset(private_api.alias(dataset).enumerate(), count if count >= 0 else None)
        belows = [self.of(each) for each in inputs]
        known = [each for each in belows if each is not None]
        if not known or len(known) != len(belows):
            return None
        if kind == "Zip":
            return _zipped(dataset, known)
        try:
            pairs = private_api.same_stage(dataset, kind, known[0].pairs) if len(known) == 1 else None
        except (AttributeError, TypeError, ValueError):  # such stages cannot have pairs
            pairs = None
        if pairs is None:
            return None
        size = None if kind in _SOME else known[0].size
        left_over = known[0].left_over + (private_api.most_left_over(dataset) if kind in _BATCHES else 0)
        return NumberedDataset(pairs, size, left_over, known[0].repeats or kind == "Repeat")

    def _is_source(self, dataset: Any, kind: str, inputs: list[Any]) -> bool:
        if kind in _READERS:
            below, below_inputs = private_api.stage(inputs[0]) if len(inputs) == 1 else ("", [])
            if below == "Tensor":  # from_generator
                return True
            return private_api.only_reads(dataset) and self._is_source(inputs[0], below, below_inputs)
        return kind in _SOURCES and private_api.reads_in_order(dataset)


def _element(_number: Any, element: Any) -> Any:
    return element


def _zipped(dataset: Any, parts: list[NumberedDataset]) -> NumberedDataset:
    tensorflow = sys.modules["tensorflow"]
    structure = private_api.zipped(dataset)
    first = parts[0]

    def joined(*pairs: Any) -> Any:
        numbers = pairs[0][0]
        for other, _ in pairs[1:]:
            numbers = tensorflow.where(numbers == other, numbers, tensorflow.constant(UNKNOWN, "int64"))
        return numbers, tensorflow.nest.pack_sequence_as(structure, [element for _, element in pairs])

    pairs = tensorflow.data.Dataset.zip(tuple(part.pairs for part in parts)).map(private_api.as_is(joined))
    is_known = all(part.size == first.size and not part.repeats for part in parts)
    return NumberedDataset(pairs, first.size if is_known else None, 0, any(part.repeats for part in parts))
