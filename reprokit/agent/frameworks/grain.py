"""Grain's DataLoader and datasets: which records each batch is made of, for the ledger of samples.

A loader's workers divide the positions of its sampler, and give batches in turn, so that positions are counted: grain's
own state starts processes when it is asked for. Once a batch has another size than was counted, nothing is known.

The iterator of a dataset has in its state how far it read a MapDataset, whose transformations say which records are at
the positions in between. What drops, mixes, packs or reorders elements, or reads them in other processes, is not known.

JAX shows no updates. In a process whose updates are not PyTorch's, each batch is a step of its own: it was drawn,
and what became of it is not known.
"""

from __future__ import annotations

import json
import sys
import weakref

from ..core.agent import Adapter
from ..core.collectives import object_digest_of
from ..core.launch_plan import read_plan
from ..core.patching import Function, replace, replace_method
from ..events.steps import BatchFetched, Events, LoaderBegan, LoaderExhausted, UpdateDone, tell
from ..listeners.sample_ledger import SampleLedger
from ..pytorch.events import EventHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.agent import Agent

_SAMPLERS = ("IndexSampler", "SequentialSampler")  # whose records are found without code of the user
_ONE_TO_ONE = ("Map", "RandomMap", "TfRandomMap", "MapTransform", "RandomMapTransform", "TfRandomMapTransform")
# Classes of datasets and of their iterators: an element of each of the parent; at most one; as many as it says.
_EQUAL = (
    *("_MapDatasetIterator", "_RandomMapDatasetIterator", "_MapWithIndexDatasetIterator"),
    *("ThreadPrefetchDatasetIterator", "_LimitDatasetIterator"),
)
_EQUAL_MAPS = ("MapMapDataset", "RandomMapMapDataset", "MapWithIndexMapDataset", "_WithSeedMapDataset")
_SHUFFLES, _SOURCES = ("ShuffleMapDataset", "WindowShuffleMapDataset"), ("SourceMapDataset", "RangeMapDataset")
_ONCE = ("FilterMapDataset", "_FilterDatasetIterator", "_WindowShuffleDatasetIterator")
_BATCH, _BATCH_MAP, _READER = "_BatchDatasetIterator", "BatchMapDataset", "PrefetchDatasetIterator"
_SLICE, _REPEAT = "SliceMapDataset", "RepeatMapDataset"
_INTERNAL = ("grain.", "torch.utils.data.")  # modules whose iterations are parts of others
MAX_DEPTH = 16  # nested containers of a batch


class DrawnRecords:
    """The records of an iterator's batches, counted (private names as in grain 0.2.18)."""

    def __init__(self, loader: Any) -> None:
        self._sampler, shards = loader._sampler, loader._shard_options
        self._shards, self._shard = shards.shard_count, shards.shard_index
        self.workers = max(loader.multiprocessing_options.num_workers, 1)
        self._length = len(self._sampler) // self._shards
        self._taken = [0] * self.workers  # positions that each worker has made batches of
        self._worker = 0  # the one whose turn it is
        self._size, self._least, self.is_known = 1, 1, _is_own(self._sampler)
        batches = [operation for operation in loader._operations if not _is_named(operation, _ONE_TO_ONE)]
        if batches and len(batches) == 1 and _is_named(batches[0], ("Batch", "BatchOperation")):
            self._size = batches[0].batch_size
            self._least = self._size if batches[0].drop_remainder else 1
        elif batches:
            self.is_known = False
        self._is_batched = bool(batches)

    def facts(self) -> dict[str, object]:
        """Return the class of the sampler, and how many samples an iteration gives, as far as that is known."""
        sampler, left_over = self._sampler, (self._least - 1) * self.workers
        facts: dict[str, object] = {"sampler": type(sampler).__name__, "workers": self.workers, "left_over": left_over}
        passes = getattr(sampler, "_num_epochs", 1)
        if self.is_known and passes == 1 and self._shards == 1:
            return {**facts, "samples": len(sampler)}
        return {**facts, "replacement": passes != 1}

    def go_to(self, state: bytes) -> None:
        """Continue where a state says."""
        known, self.is_known = self.is_known, False
        content, every = json.loads(state.decode()), self.workers * self._shards
        seen = content["last_seen_indices"]
        firsts = [self._shard + worker * self._shards for worker in range(self.workers)]
        self._taken = [(seen[str(worker)] + every - first) // every for worker, first in enumerate(firsts)]
        self._worker = (content["last_worker_index"] + 1) % self.workers
        self.is_known = known

    def fetching(self, iterator: Any) -> None:
        """Take note that the next batch is asked for: nothing, as batches are counted."""

    def of(self, batch: Any, _iterator: Any) -> list[int] | None:
        """Return the records of the batch that came next; None if they are not known."""
        indices = self._next() if self.is_known else []
        self.is_known = bool(indices) and (not self._is_batched or _rows_of(batch) == len(indices))
        return indices if self.is_known else None

    def _next(self) -> list[int]:
        for turn in range(self.workers):
            worker = (self._worker + turn) % self.workers
            positions = range(worker, self._length, self.workers)[self._taken[worker] :][: self._size]
            if len(positions) >= self._least:
                self._taken[worker] += len(positions)
                self._worker = worker + 1
                return [self._record(position) for position in positions]
        return []

    def _record(self, position: int) -> int:
        records = getattr(self._sampler, "_record_keys", None)  # by itself, as the sampler makes a generator for each
        return position * self._shards + self._shard if records is None else int(records[position])


class ReadRecords:
    """The records of the batches of a dataset's iterator, by its state (private names as in grain 0.2.18)."""

    workers = None

    def __init__(self, iterator: Any) -> None:
        stages = list(_stages(iterator))
        kinds = [_kind_of(stage) for stage in stages]
        self._maps = [stage for stage, kind in zip(stages, kinds) if kind.endswith("MapDataset")]
        batches = [stage for stage, kind in zip(stages, kinds) if kind in (_BATCH, _BATCH_MAP)]
        known = (*_EQUAL, *_EQUAL_MAPS, *_SHUFFLES, *_SOURCES, _BATCH, _BATCH_MAP, _READER, _SLICE, _REPEAT)
        self.is_known = kinds[-1] in _SOURCES and _READER in kinds and set(kinds) <= set(known)
        self.is_known = self.is_known and len(batches) < 2 and all(map(_is_stacked, batches))
        self._is_batched = bool(batches)
        self._most = batches[0]._batch_size if _BATCH in kinds else 1  # positions of a batch
        self._first = 0
        once = set(kinds) <= {*known, *_ONCE} - {_REPEAT}
        self._facts: dict[str, object] = {"replacement": not once}
        if self.is_known and once and "_LimitDatasetIterator" not in kinds:
            below = batches[0]._parent if _BATCH_MAP in kinds else self._maps[0]
            left_over = batches[0]._batch_size - 1 if batches and batches[0]._drop_remainder else 0
            is_part = _BATCH_MAP in kinds and _SLICE in kinds[: kinds.index(_BATCH_MAP)]  # some batches of a dataset
            self._facts.update({} if is_part else {"samples": len(below), "left_over": left_over})

    def facts(self) -> dict[str, object]:
        """Return whether samples can come again, and how many an iteration gives, as far as that is known."""
        return self._facts

    def fetching(self, iterator: Any) -> None:
        """Take note of where the iterator stands before its next batch."""
        if self.is_known:
            self._first = _position(iterator)

    def of(self, batch: Any, iterator: Any) -> list[int] | None:
        """Return the records of the batch that came; None if they are not known, from here on."""
        known, self.is_known = self.is_known, False
        positions = range(self._first, _position(iterator)) if known else range(0)
        if batch is None or not 1 <= len(positions) <= self._most:  # the reader skips elements that are None
            return None
        records = list(positions)
        for stage in self._maps:
            records = _parent_positions(stage, records)
        self.is_known = not self._is_batched or _rows_of(batch) == len(records)
        return records if self.is_known else None


def _stages(iterator: Any) -> Iterator[Any]:
    """Yield an iterator, those that it reads, then the datasets that the last one reads, as long as each has one."""
    while iterator is not None:
        yield iterator
        parents = getattr(iterator, "_parents", ()) or (getattr(iterator, "_map_parent", None),)
        if len(parents) > 1:
            yield None  # mixed
        iterator = parents[0] if len(parents) == 1 else None


def _kind_of(stage: Any) -> str:
    """Return the name of a class of grain; empty for others."""
    return type(stage).__name__ if type(stage).__module__.startswith("grain.") else ""


def _is_stacked(stage: Any) -> bool:
    """Return whether a stage makes batches that have a row for each element, and nothing more."""
    function = getattr(stage._batch_fn, "func", stage._batch_fn)
    is_own = str(getattr(function, "__module__", "")).startswith("grain.")
    return is_own and (type(function).__name__ == "_MakeBatchParallel" or function.__name__ == "make_batch")


def _position(iterator: Any) -> int:
    """Return how many elements of the MapDataset a known iterator has read for what it gave."""
    state = iterator.get_state()
    while "parent" in state:
        state = state["parent"]
    return int(state["next_index"])


def _parent_positions(stage: Any, positions: list[int]) -> list[int]:
    """Return where the elements at some positions are in what the stage reads: in a source, which records they are."""
    kind = _kind_of(stage)
    if kind in _SHUFFLES:
        return [stage._shuffled_index(position) for position in positions]
    if kind == _SLICE:
        return [stage._sliced_index(position) for position in positions]
    if kind in _SOURCES:
        return [position % len(stage) for position in positions]
    if kind == _REPEAT and not stage._reseed_each_epoch:
        return [position % stage._parent_length for position in positions]
    if kind == _BATCH_MAP:
        size, length = stage._batch_size, len(stage._parent)
        places = [divmod(position, len(stage)) for position in positions]
        return [
            epoch * length + element
            for epoch, batch in places
            for element in range(batch * size, min((batch + 1) * size, length))
        ]
    return positions


def _is_own(sampler: Any) -> bool:
    return _is_named(sampler, _SAMPLERS) and type(sampler).__name__ in _SAMPLERS


def _is_named(value: Any, names: tuple[str, ...]) -> bool:
    """Return whether a value is of a class of grain with one of these names, or of a subclass."""
    return any(kind.__name__ in names and kind.__module__.startswith("grain.") for kind in type(value).__mro__)


def _rows_of(batch: Any, depth: int = 0) -> int | None:
    """Return the length of the first array in a batch; None if there is none."""
    shape = getattr(batch, "shape", None)
    if type(shape) is tuple and shape:
        return int(shape[0])
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    found = (_rows_of(part, depth + 1) for part in parts if depth < MAX_DEPTH)
    return next((rows for rows in found if rows is not None), None)


def _digest_of(batch: Any) -> int | None:
    """Return a digest of 64 bits of a batch of arrays; None of what has other objects."""
    digest = object_digest_of(batch)
    return None if digest is None else int(digest[7:23], 16)


class GrainLoop:
    """The iterations of a loader, whose batches count like the steps of an optimizer of this name."""

    def __init__(self, agent: Agent) -> None:
        self.name, self.loader = agent.name("loop"), agent.name("loader")
        self.steps = self.epochs = 0


class GrainEpoch:
    """An iteration of a loader; where its batches are steps, under the name and number that the ledger gives it."""

    loop: GrainLoop | None = None
    name, number = "", 0
    is_fetching = False  # a method of a class may call that of its base

    def __init__(self, records: DrawnRecords | ReadRecords, began: LoaderBegan) -> None:
        self.records, self.began = records, began

    def begin(self, loop: GrainLoop) -> None:
        self.loop, self.name, self.number = loop, loop.loader, loop.epochs
        loop.epochs += 1


class GrainAdapter(Adapter):
    """Reports the batches of grain's loaders and datasets to the ledger of PyTorch's updates, or to one of its own."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._events = Events(agent.failed)
        self._ledger = SampleLedger(agent, self._events, lambda _: {}, lambda began: began.notes[self], _digest_of)
        if read_plan(agent.run).get("trail"):
            self._events.add(self._ledger)
        self._loops: weakref.WeakKeyDictionary[Any, GrainLoop] = weakref.WeakKeyDictionary()  # by loader or dataset

    def instrument(self, name: str, module: Any) -> None:
        if name.endswith(".dataset"):
            replace(module._OutputIterDataset, "__iter__", self._make_output)  # the end of what a script iterates
            return
        replace(module.DataLoader, "__iter__", self._make_iter)
        replace(module.DataLoaderIterator, "__next__", self._make_next)
        self._agent.note_calls(module.DataLoaderIterator, "set_state", self._state_set)

    def _make_iter(self, original: Function) -> Function:
        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            self._agent.attempt(self._loader_began, loader, iterator, sys._getframe(1), DrawnRecords)
            return iterator

        return iterate

    def _make_output(self, original: Function) -> Function:
        def iterate(output: Any) -> Any:
            iterator = original(output)
            self._agent.attempt(self._dataset_began, output._parent, iterator, sys._getframe(1))
            return iterator

        return iterate

    def _dataset_began(self, dataset: Any, iterator: Any, caller: Any) -> None:
        while caller.f_globals.get("__name__") == "grain._src.python.dataset.dataset":
            caller = caller.f_back
        if str(caller.f_globals.get("__name__")).startswith(_INTERNAL):
            return
        if _kind_of(dataset) == "PrefetchIterDataset":
            dataset = dataset._parent  # each iteration of a MapDataset makes another
        self._loader_began(dataset, iterator, caller, lambda _: ReadRecords(iterator))
        replace_method(type(iterator), "__next__", self._make_next)

    def _loader_began(self, loader: Any, iterator: Any, caller: Any, records_of: Function) -> None:
        records, place = records_of(loader), (caller.f_code.co_filename, caller.f_lineno)
        began = LoaderBegan(loader, place, records.workers, facts=records.facts())
        began.notes[self] = epoch = iterator._reprokit_epoch = GrainEpoch(records, began)
        events = self._events_now()
        if events is self._events:
            loop = self._loops[loader] = self._loops.get(loader) or GrainLoop(self._agent)
            epoch.begin(loop)
        tell(events.loader_began, began)
        began.loader = None
        iteration = began.notes.get(self._ledger)
        if iteration is not None:
            iteration.is_drawn = True  # what a step used is not seen

    def _events_now(self) -> Events:
        """Return PyTorch's events once the script has an optimizer of it, else those of the loops themselves."""
        hooks = self._agent.shared.get(EventHooks)
        return hooks.events if hooks is not None and self._agent.has_optimizer("torch") else self._events

    def _state_set(self, _result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        epoch = getattr(arguments[0], "_reprokit_epoch", None)
        if epoch is not None:
            epoch.records.go_to(*arguments[1:], **keywords)

    def _make_next(self, original: Function) -> Function:
        attempt = self._agent.attempt

        def fetch(iterator: Any) -> Any:
            epoch = getattr(iterator, "_reprokit_epoch", None)
            if epoch is None or epoch.is_fetching:
                return original(iterator)
            attempt(epoch.records.fetching, iterator)
            epoch.is_fetching = True
            try:
                batch = original(iterator)
            except StopIteration:
                attempt(self._exhausted, epoch)
                raise
            finally:
                epoch.is_fetching = False
            attempt(self._fetched, epoch, batch, iterator)
            return batch

        return fetch

    def _fetched(self, epoch: GrainEpoch, batch: Any, iterator: Any) -> None:
        indices = epoch.records.of(batch, iterator)
        tell(self._events_of(epoch).batch_fetched, BatchFetched(batch, epoch.began, indices))
        if epoch.loop is not None:
            epoch.loop.steps += 1
            tell(self._events.update_done, UpdateDone(epoch.loop))

    def _exhausted(self, epoch: GrainEpoch) -> None:
        tell(self._events_of(epoch).loader_exhausted, LoaderExhausted(epoch.began))

    def _events_of(self, epoch: GrainEpoch) -> Events:
        return self._events_now() if epoch.loop is None else self._events

    def parts(self) -> list[Any]:
        return [self._ledger]
