"""Which step a fetched batch belongs to: the one whose model was called with it, also where a loop fetches ahead.

Usually a batch is fetched, a model is called and an optimizer updates: then the batch is that step's, whatever the
script has made of it. Where a loader gave several batches before the call, as to a wrapper that fetches ahead, to a
thread, or to a loop that accumulates, those with whose memory the model was called are the step's, and later ones of
the loader wait for theirs. Where the model was called with other memory, only what was drawn is known.
"""

from __future__ import annotations

from collections import Counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol

    class BatchMemory(Protocol):
        """The memory of a batch's values, without keeping them alive; or that of a call's arguments."""

        def is_alive(self) -> bool:
            """Return whether some of it is still that of the batch."""

        def values_in(self, arguments: Any) -> set[int]:
            """Return the addresses of the values of the batch that are arguments."""

        def overlaps(self, arguments: Any) -> bool:
            """Return whether an argument is a part of the batch, as a slice of it is."""


# How a thread has used the batches that it fetched last. If no model was called with them, this is decided at the next
# fetch: they were only inspected if their loader was exhausted and no step followed.
NOT_CALLED, TRAINED, EVALUATED, EXHAUSTED = range(4)


class LoaderIteration:
    """One iteration of a data loader."""

    def __init__(self, number: int, epoch: int) -> None:
        self.number = number  # of the loader, in this file
        self.epoch = epoch
        self.batches: dict[int, int] = {}  # of iterable data sets: number of batches by worker
        self.has_steps = False
        self.fetched = self.stepped = 0  # batches that it has given, and that were a step's
        self.is_exhausted = False  # while some of its batches wait for their steps
        self.is_ahead = False  # a step left one of its batches to a later step
        self.is_drawn = False  # a step had several, and it is not known which its model was called with


class FetchedBatch:
    """A batch that a loader has given, until the step that it belongs to."""

    __slots__ = ("entry", "is_used", "iteration", "memory", "numbers", "value", "waits")

    def __init__(self, iteration: LoaderIteration, entry: bytes, numbers: bytes, value: Any) -> None:
        self.iteration, self.entry, self.numbers = iteration, entry, numbers
        self.value = value  # the batch, until it is called with or another one is fetched
        self.memory: BatchMemory | None = None  # in place of it from then on
        self.is_used = False  # a model was called with it, as far as that is known
        self.waits = iteration.is_ahead  # it is a step's only if a model is called with it

    @property
    def is_alive(self) -> bool:
        return self.memory is not None and self.memory.is_alive()


class PendingBatches:
    """The batches that a thread has fetched since its last step, after those that wait for theirs."""

    def __init__(self, memory_of: Callable[[Any], BatchMemory] | None) -> None:
        self._memory_of = memory_of  # None: calls of models are not known
        self.batches: list[FetchedBatch] = []
        self.kept = 0  # how many were there before the last step
        self.first = 0  # index of the first one fetched since a model was called
        self.use = NOT_CALLED
        self._is_plain = True  # no batch waits, and no call had to be looked at
        self._unclear: set[LoaderIteration] = set()  # a call had several to choose from, and none was its argument
        self.has_called = False  # this thread calls models: it does not only fetch for another one
        self.is_listed = False  # among those that other threads look at

    def add(self, batch: FetchedBatch) -> None:
        """Append a batch; one that was fetched before without a call is known by its memory from now on."""
        if len(self.batches) > self.first:
            self._remember(self.batches[-1])
        if self._memory_of is None:
            batch.value = None
        self.batches.append(batch)

    def _remember(self, batch: FetchedBatch) -> None:
        if batch.value is not None and self._memory_of is not None:
            batch.memory = self._memory_of(batch.value)
        batch.value = None

    def moved(self, before: Any, after: Any) -> None:
        """Note that a batch was copied: a model will be called with the copy."""
        if self._memory_of is None:
            return
        places = self._memory_of(before)
        for batch in self.batches:
            if batch.value is before or (batch.memory is not None and batch.memory.values_in(places)):
                batch.memory, batch.value = self._memory_of((before, after)), None

    def exhausted(self) -> None:
        """Note that a loader has no further batch, and that no model was called with the last ones so far."""
        self.use = EXHAUSTED
        if self.batches:
            self._remember(self.batches[-1])

    def has(self, iteration: LoaderIteration) -> bool:
        """Return whether a batch of this iteration is here."""
        return any(batch.iteration is iteration for batch in self.batches)

    def waits_for_steps(self, iteration: LoaderIteration) -> bool:
        """Return whether batches of an exhausted iteration are left to steps that may not come."""
        return iteration.fetched > iteration.stepped and (iteration.is_ahead or not self.has_called)

    def drop(self) -> None:
        """Drop the batches that were fetched last, as they are not used for a step.

        Those of other loaders wait, as they may have been fetched ahead; so do those of a thread that calls no models.
        """
        dropped, last = self.batches[self.first :], self.batches[-1].iteration if self.batches else None
        del self.batches[self.first :]
        for batch in dropped:
            if not (self.has_called and batch.iteration is last):
                self._remember(batch)
                if batch.is_alive:
                    batch.waits, self._is_plain = True, False
                    self.batches.append(batch)

    # Calls of models

    def called(self, arguments: Any, keywords: Any, fetching: list[PendingBatches]) -> None:
        """Note a call of a model through which gradients can go; ``fetching`` are the batches of all threads."""
        self.use, batches = TRAINED, self.batches
        self.has_called = True
        if self._is_plain and len(batches) == self.first + 1:  # the usual case, for which nothing is looked at
            batches[-1].is_used, batches[-1].value = True, None
        elif self._memory_of is not None and not (self._is_plain and batches and len(batches) == self.first):
            others = [pending for pending in fetching if pending is not self]
            if others or batches:
                self._find_used(self._memory_of((arguments, keywords)), others)
            for pending in others:
                if pending.use == EXHAUSTED and not pending.batches:
                    pending.is_listed = False
                    fetching.remove(pending)

    def called_without_gradients(self) -> None:
        self.has_called = True
        if self.use != TRAINED:
            self.use = EVALUATED

    def _find_used(self, arguments: BatchMemory, others: Iterable[PendingBatches]) -> None:
        self._is_plain = False
        for batch in self.batches[self.first :]:
            self._remember(batch)
        self._forget_left_loops()
        used = _called_with(self.batches, arguments)
        if not used:
            for other in others:
                used = other.give(arguments)
                self.batches += used
                if used:
                    break
        for batch in used:
            batch.is_used = True
        if not used:
            self._guess()

    def _forget_left_loops(self) -> None:
        """Forget what waits and is gone, of iterations that fetch no more: their loops were left before it was used."""
        current = self.batches[-1].iteration if self.batches else None
        waiting = [batch for batch in self.batches if batch.waits and not batch.is_used]
        for batch in waiting:
            if batch.iteration is current or batch.is_alive:
                continue
            index = self.batches.index(batch)
            self.first -= index < self.first
            self.kept -= index < self.kept
            del self.batches[index]

    def _guess(self) -> None:
        """Take the only batch that a loader has given since the last step for the step's, whatever it has become."""
        clear = {batch.iteration for batch in self.batches if batch.is_used}
        counts = Counter(batch.iteration for batch in self.batches if batch.iteration not in clear)
        for batch in self.batches[self.kept :]:
            if counts[batch.iteration] > 1:
                self._unclear.add(batch.iteration)
            elif not batch.waits and batch.iteration not in clear:
                batch.is_used = True

    def give(self, arguments: BatchMemory) -> list[FetchedBatch]:
        """Remove and return the batches with which another thread has called its model."""
        if self.has_called:
            return []
        batches = list(self.batches)  # their thread adds more meanwhile
        for batch in batches:
            self._remember(batch)
        used = _called_with(batches, arguments)
        for batch in used:
            self.batches.remove(batch)
            batch.iteration.has_steps = True
        self.first = 0
        return used

    # Steps

    def take(self) -> tuple[list[FetchedBatch], bool]:
        """Return the batches of the step that is done, and whether they are only those that were drawn before it."""
        kept: list[FetchedBatch] = []
        taken, is_drawn = self.batches, False
        if self._memory_of is not None and len(taken) > 1 and not all(batch.is_used for batch in taken):
            self._is_plain = False
            self._guess()
        if not self._is_plain:
            taken, kept, is_drawn = self._divided()
        self.batches, self.use = kept, NOT_CALLED
        self.kept = self.first = len(kept)
        self._is_plain = not kept
        self._unclear.clear()
        return taken, is_drawn

    def _divided(self) -> tuple[list[FetchedBatch], list[FetchedBatch], bool]:
        """Return the batches of the step and those of later ones, and whether calls leave something open."""
        last = {batch.iteration: index for index, batch in enumerate(self.batches) if batch.is_used}
        taken: list[FetchedBatch] = []
        kept: list[FetchedBatch] = []
        is_drawn = False
        for index, batch in enumerate(self.batches):
            iteration = batch.iteration
            iteration.is_drawn = iteration.is_drawn or (iteration in self._unclear and iteration not in last)
            is_before, is_ahead = index < last.get(iteration, 0), index > last.get(iteration, index)
            iteration.is_ahead = iteration.is_ahead or is_ahead
            batch.waits = batch.waits or is_ahead
            if batch.is_used or is_before or iteration.is_drawn or not batch.waits:
                taken.append(batch)
                is_drawn = is_drawn or (is_before and not batch.is_used)
            elif batch.is_alive:  # else the loop was left before it was used
                kept.append(batch)
        return taken, kept, is_drawn


def _called_with(batches: Iterable[FetchedBatch], arguments: BatchMemory) -> list[FetchedBatch]:
    """Return the batches whose values are the arguments of a call; else the single one of which they are parts."""
    known = [(batch, batch.memory) for batch in batches if batch.memory is not None]
    whole: list[FetchedBatch] = []
    addresses: set[int] = set()  # a data set may give the same tensors each time: then the first batch was meant
    for batch, memory in known:
        values = memory.values_in(arguments) - addresses
        if values:
            addresses |= values
            whole.append(batch)
    parts = [] if whole else [batch for batch, memory in known if memory.overlaps(arguments)]
    return whole or (parts if len(parts) == 1 else [])
