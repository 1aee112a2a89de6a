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
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Protocol

    class BatchMemory(Protocol):
        """The memory of a batch's values, without keeping them alive; or that of a call's arguments."""

        def is_alive(self) -> bool:
            """Return whether some of it is still that of the batch."""

        def values_in(self, arguments: Any) -> set[int]:
            """Return the addresses of the values of the batch that are arguments."""

        def overlaps(self, arguments: Any) -> bool:
            """Return whether an argument is a part of the batch, as a slice of it is."""

        def length_if_among(self, arguments: Iterable[Any]) -> int | None:
            """Return the number of rows of the value that is itself one of the arguments; None if none is."""

        def rows_in(self, arguments: Any) -> tuple[Sequence[int] | None, int]:
            """Return which rows of the batch are in arguments, or None if that is not known; and how many it has."""


# How a thread has used the batches that it fetched last. If no model was called with them, this is decided at the next
# fetch: they were only inspected if their loader was exhausted and no step followed.
NOT_CALLED, TRAINED, EVALUATED, EXHAUSTED = range(4)

# Steps in which gradients are followed, which costs some 100 us: the first ones, and so many of each further number.
FOLLOWED, FOLLOWED_AGAIN = 1024, 16

# What the update of a step had of a batch: not known; no gradient was seen; one was, of samples that are not known; of
# some samples; of all.
UNWATCHED, UNSEEN, REACHED, PARTLY, WHOLLY = range(5)

MAX_LOOKED_AT = 1 << 10  # batches of an iteration, before its first step


class BatchCall:
    """A call of a model with a batch, and the gradient that a backward pass has brought to its output."""

    __slots__ = ("has_gradient", "has_value", "is_unread", "rows", "rows_with_values")

    def __init__(self, rows: Sequence[int] | None) -> None:
        self.rows = rows  # the samples that it was called with; None: not known
        self.begin()

    def begin(self) -> None:
        """Begin a backward pass: nothing has come."""
        self.has_gradient = False
        self.has_value = False  # something that is not zero
        self.is_unread = False  # whether it is zero is not known
        self.rows_with_values: list[bytes] = []  # a flag for each row, of each output that has these rows

    def gradient_came(self, has_value: bool | None, rows: bytes | None) -> None:
        """Note a gradient: whether it is not zero, and which rows are not."""
        self.has_gradient = True
        self.has_value = self.has_value or bool(has_value)
        self.is_unread = self.is_unread or has_value is None
        if rows is not None:
            self.rows_with_values.append(rows)


class GradientShare:
    """What the gradients of an optimizer have of a batch."""

    __slots__ = ("_has_value", "_samples", "is_unread")

    def __init__(self) -> None:
        self.is_unread = False
        self._has_value = False
        self._samples: set[int] = set()

    def add(self, call: BatchCall) -> None:
        """Add what a backward pass has brought to a call."""
        self.is_unread = self.is_unread or call.is_unread
        for flags in call.rows_with_values:
            if call.rows is not None:
                self._samples.update(call.rows if all(flags) else [row for row, flag in zip(call.rows, flags) if flag])
        self._has_value = self._has_value or (call.has_value and not call.rows_with_values)

    def use(self, size: int | None) -> int:
        """Return what an update has of a batch of so many samples."""
        if self._samples and len(self._samples) == size:
            return WHOLLY
        if self.is_unread:
            return UNWATCHED
        if self._has_value or (self._samples and size is None):
            return REACHED
        return PARTLY if self._samples else UNSEEN


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
        self._looked_at: list[FetchedBatch] = []  # models were called with them, without gradients, before any step

    def looked_at(self, batch: FetchedBatch) -> None:
        """Keep a batch that no step followed: once there is one, this is no evaluation."""
        batch.value, batch.calls = None, []
        if len(self._looked_at) < MAX_LOOKED_AT:
            self._looked_at.append(batch)

    def stepped_first(self) -> list[FetchedBatch]:
        """Note that a step had a batch; return those that were looked at before the first one."""
        batches, self._looked_at, self.has_steps = self._looked_at, [], True
        return batches


class FetchedBatch:
    """A batch that a loader has given, until the step that it belongs to.

    The ledger makes it without a call of __init__, as there is one in each step.
    """

    iteration: LoaderIteration
    entry: bytes
    numbers: bytes
    value: Any  # the batch, until it is called with or another one is fetched
    size: int | None  # in samples; None if its loader does not say it, until it is called with
    calls: list[BatchCall]  # of models, with it
    shares: dict[int, GradientShare]  # of it in the gradients of each optimizer
    is_followed: bool  # whether gradients are followed in each step since it was fetched
    waits: bool  # it is a step's only if a model is called with it
    memory: BatchMemory | None = None  # in place of the value from then on
    is_used = False  # a model was called with it, as far as that is known

    @property
    def is_alive(self) -> bool:
        return self.memory is not None and self.memory.is_alive()

    def called(self, call: ModelArguments) -> BatchCall:
        """Note a call of a model that was, as far as that is known, made with this batch."""
        self.is_used = True
        rows, length = (None, 0) if self.memory is None else call.rows_of(self.memory)
        if self.size == 1 and rows is not None and len(rows) == length:
            rows = range(1)  # the axes of a single sample
        elif rows is not None and self.size not in (None, length):
            rows = None  # what was made of the samples has other rows
        elif rows is not None:
            self.size = length
        made = BatchCall(rows)
        self.calls.append(made)
        return made


class ModelArguments:
    """The arguments of a call of a model; where they lie is looked up if they are not a batch's own values."""

    def __init__(self, arguments: Any, keywords: Any, memory_of: Callable[[Any], BatchMemory]) -> None:
        self._arguments, self._keywords, self._memory_of = arguments, keywords, memory_of
        self._memory: BatchMemory | None = None

    @property
    def memory(self) -> BatchMemory:
        """Where the arguments lie."""
        if self._memory is None:
            self._memory = self._memory_of((self._arguments, self._keywords))
        return self._memory

    def rows_of(self, batch: BatchMemory) -> tuple[Sequence[int] | None, int]:
        """Return which rows of a batch it was called with, or None if that is not known; and how many it has."""
        length = batch.length_if_among((*self._arguments, *self._keywords.values()))
        return batch.rows_in(self.memory) if length is None else (range(length), length)


class PendingBatches:
    """The batches that a thread has fetched since its last step, after those that wait for theirs."""

    def __init__(self, memory_of: Callable[[Any], BatchMemory] | None) -> None:
        self._memory_of = memory_of  # None: calls of models are not known
        self.batches: list[FetchedBatch] = []
        self.kept = 0  # how many were there before the last step
        self.first = 0  # index of the first one fetched since a model was called
        self.use = NOT_CALLED
        self.is_plain = True  # no batch waits, and no call had to be looked at
        self._unclear: set[LoaderIteration] = set()  # a call had several to choose from, and none was its argument
        self.has_called = False  # this thread calls models: it does not only fetch for another one
        self.is_listed = False  # among those that other threads look at
        self.calls: list[BatchCall] = []  # those that the last call of a model was
        self.updates = 0
        self.follows = True  # whether gradients are followed to the update that comes: of all, they cost too much

    def updated(self) -> None:
        """Note that a step is done: gradients are followed in the first steps, then in some of the further ones."""
        self.updates += 1
        self.follows = self.updates < FOLLOWED or self.updates % FOLLOWED < FOLLOWED_AGAIN

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
            if self.has_called and batch.iteration.has_steps:  # the script looked at it, and left it out
                self.batches.append(batch)
            elif self.has_called and batch.iteration is last:
                batch.iteration.looked_at(batch)
            else:
                self._remember(batch)
                if batch.is_alive:
                    batch.waits, self.is_plain = True, False
                    self.batches.append(batch)

    # Calls of models

    def called(self, arguments: Any, keywords: Any, fetching: list[PendingBatches]) -> None:
        """Note a call of a model through which gradients can go; ``fetching`` are the batches of all threads."""
        self.use, batches, self.calls = TRAINED, self.batches, []
        self.has_called = True
        if self._memory_of is None:
            return
        is_usual = self.is_plain and len(batches) == self.first + 1
        if is_usual and not self.follows:  # nothing is looked at
            batches[-1].is_used, batches[-1].value = True, None
        elif is_usual:
            self._remember(batches[-1])
            self.calls.append(batches[-1].called(ModelArguments(arguments, keywords, self._memory_of)))
        elif not (self.is_plain and batches and len(batches) == self.first):
            others = [pending for pending in fetching if pending is not self]
            if others or batches:
                self._find_used(ModelArguments(arguments, keywords, self._memory_of), others)
            for pending in others:
                if pending.use == EXHAUSTED and not pending.batches:
                    pending.is_listed = False
                    fetching.remove(pending)

    def called_without_gradients(self) -> None:
        self.has_called = True
        if self.use != TRAINED:
            self.use = EVALUATED

    def _find_used(self, call: ModelArguments, others: Iterable[PendingBatches]) -> None:
        self.is_plain = False
        for batch in self.batches[self.first :]:
            self._remember(batch)
        self._forget_left_loops()
        used = _called_with(self.batches, call.memory)
        if not used:
            for other in others:
                used = other.give(call.memory)
                self.batches += used
                if used:
                    break
        for batch in used or self._guess():
            batch.is_followed = batch.is_followed and self.follows
            self.calls.append(batch.called(call))

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

    def _guess(self) -> list[FetchedBatch]:
        """Return the batches that are the only ones of their loaders since the last step, whatever became of them.

        A loader that gave several is unclear.
        """
        clear = {batch.iteration for batch in self.batches if batch.is_used}
        counts = Counter(batch.iteration for batch in self.batches if batch.iteration not in clear)
        single = [batch for batch in self.batches[self.kept :] if counts[batch.iteration] == 1 and not batch.waits]
        self._unclear.update(batch.iteration for batch in self.batches[self.kept :] if counts[batch.iteration] > 1)
        return single

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
            self.is_plain = False
            for batch in self._guess():
                batch.is_used = True
        if not self.is_plain:
            taken, kept, is_drawn = self._divided()
        self.batches, self.use = kept, NOT_CALLED
        self.kept = self.first = len(kept)
        self.is_plain = not kept
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
