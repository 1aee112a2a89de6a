"""Grain's DataLoader: which records each batch is made of, for the ledger of samples.

A loader's workers divide the positions of its sampler, and give batches in turn, so that positions are counted: grain's
own state starts processes when it is asked for. Once a batch has another size than was counted, nothing is known.

JAX shows no updates. In a process whose updates are not PyTorch's, each batch is a step of its own: it was drawn,
and what became of it is not known.
"""

from __future__ import annotations

import json
import sys

from ..core.agent import Adapter
from ..core.collectives import object_digest_of
from ..core.launch_plan import read_plan
from ..core.patching import Function, replace
from ..events.steps import BatchFetched, Events, LoaderBegan, LoaderExhausted, UpdateDone, tell
from ..listeners.sample_ledger import SampleLedger
from ..pytorch.events import EventHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

_SAMPLERS = ("IndexSampler", "SequentialSampler")  # whose records are found without code of the user
_ONE_TO_ONE = ("Map", "RandomMap", "TfRandomMap", "MapTransform", "RandomMapTransform", "TfRandomMapTransform")
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

    def of(self, batch: Any) -> list[int] | None:
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

    def __init__(self, records: DrawnRecords, began: LoaderBegan) -> None:
        self.records, self.began = records, began

    def begin(self, loop: GrainLoop) -> None:
        self.loop, self.name, self.number = loop, loop.loader, loop.epochs
        loop.epochs += 1


class GrainAdapter(Adapter):
    """Reports the batches of grain's loaders to the ledger of PyTorch's updates, or to one of its own."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._events = Events(agent.failed)
        self._ledger = SampleLedger(agent, self._events, lambda _: {}, lambda began: began.notes[self], _digest_of)
        if read_plan(agent.run).get("trail"):
            self._events.add(self._ledger)

    def instrument(self, name: str, module: Any) -> None:
        replace(module.DataLoader, "__iter__", self._make_iter)
        replace(module.DataLoaderIterator, "__next__", self._make_next)
        self._agent.note_calls(module.DataLoaderIterator, "set_state", self._state_set)

    def _make_iter(self, original: Function) -> Function:
        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            self._agent.attempt(self._loader_began, loader, iterator, sys._getframe(1))
            return iterator

        return iterate

    def _loader_began(self, loader: Any, iterator: Any, caller: Any) -> None:
        records, place = DrawnRecords(loader), (caller.f_code.co_filename, caller.f_lineno)
        began = LoaderBegan(loader, place, records.workers, facts=records.facts())
        began.notes[self] = epoch = iterator._reprokit_epoch = GrainEpoch(records, began)
        events = self._events_now()
        if events is self._events:
            loop = loader._reprokit_loop = getattr(loader, "_reprokit_loop", None) or GrainLoop(self._agent)
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
            if epoch is None:
                return original(iterator)
            try:
                batch = original(iterator)
            except StopIteration:
                attempt(self._exhausted, epoch)
                raise
            attempt(self._fetched, epoch, batch)
            return batch

        return fetch

    def _fetched(self, epoch: GrainEpoch, batch: Any) -> None:
        tell(self._events_of(epoch).batch_fetched, BatchFetched(batch, epoch.began, epoch.records.of(batch)))
        if epoch.loop is not None:
            epoch.loop.steps += 1
            tell(self._events.update_done, UpdateDone(epoch.loop))

    def _exhausted(self, epoch: GrainEpoch) -> None:
        tell(self._events_of(epoch).loader_exhausted, LoaderExhausted(epoch.began))

    def _events_of(self, epoch: GrainEpoch) -> Events:
        return self._events_now() if epoch.loop is None else self._events

    def parts(self) -> list[Any]:
        return [self._ledger]
