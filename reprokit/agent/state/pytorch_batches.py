"""Saves the batches of a training's data loaders from a step on, or replaces them by those of another run.

Loaders are identified by the line of the script that iterates over them. What another line fetches, as an
evaluation does, is left alone.
"""

from __future__ import annotations

import copy
import functools
import os
import sys

from ..capture.torch_state import SnapshotReader, SnapshotTensors
from .training_state import DATA, StateAnswers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events.steps import BatchDue, BatchFetched, LoaderBegan, LoaderExhausted

MAX_BYTES = 512 << 20  # of saved batches
AHEAD = 8  # batches that a loop may have prefetched when the step that uses the first of them begins


class BatchStream:
    """Saves or replaces what data loaders return from the first step of the question on."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers = answers
        self._counts: dict[str, int] = {}  # batches fetched, by place
        self._recent_batches: list[tuple[str, Any]] = []  # the last ones before the first step; None: exhausted
        self._is_saving = False
        self._is_saved = False
        self._tensors = SnapshotTensors()
        self._saved_batches: list[Any] = []  # place and node of each batch
        self._lead: dict[str, int] = {}  # saved batches that had been fetched when the first step began
        self._replacements: dict[str, list[Any]] | None = None  # nodes of another run's batches, by place
        self._reader: Any = None
        self._next_positions: dict[str, int] = {}  # of the next replacement, by place

    def fetched_by_place(self) -> dict[str, int]:
        """Return how many batches each place has fetched so far."""
        return dict(self._counts)

    @property
    def is_at_first(self) -> bool:
        """Whether the last fetched batch belongs to the first step of the question."""
        return self._counts == self._answers.fetched

    # Saving

    def fetched(self, event: BatchFetched) -> None:
        """Count a batch that a loader returned, and save it."""
        place = place_of(event.began)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._record(place, event.batch)

    def exhausted(self, event: LoaderExhausted) -> None:
        """Save that a loader has no batches left."""
        self._record(place_of(event.began), None)

    def _record(self, place: str, batch: Any) -> None:
        if self._is_saving:
            self._save_batch(place, batch)
        elif self._answers.saves_state and self._answers.window.step >= self._answers.first - AHEAD:
            self._recent_batches = [*self._recent_batches, (place, batch)][-AHEAD:]

    def start_saving(self) -> None:
        """Save all batches from now on, and the last ones fetched, which a loop may have prefetched."""
        self._is_saving = True
        for place, batch in self._recent_batches:
            lead = self._lead.get(place, 0) + (batch is not None)
            if lead:  # else it is the end of the previous epoch
                self._lead[place] = lead
                self._save_batch(place, batch)
        self._recent_batches = []

    def _save_batch(self, place: str, batch: Any) -> None:
        if self._is_saved or sum(part.nbytes for part in self._tensors.parts) > MAX_BYTES:
            return
        node = None if batch is None else self._tensors.pack(f"batch.{len(self._saved_batches)}", copy.deepcopy(batch))
        self._saved_batches.append([place, node])

    def updated(self) -> None:
        """Save the snapshot once the question's steps are over."""
        if self._is_saving and self._answers.window.is_over:
            self.finish()

    def finish(self) -> None:
        """Write the saved batches to a snapshot."""
        if self._is_saving and not self._is_saved:
            self._is_saved = True
            self._answers.save(DATA, {"batches": self._saved_batches, "lead": self._lead}, self._tensors.parts)

    # Replacing

    def due(self, event: BatchDue) -> None:
        """Replace a batch by another run's, once this run is at the first of them."""
        if DATA not in self._answers.parts:
            return
        if self._replacements is None:
            self._load_replacements()
        place = place_of(event.began)
        replacements, number = (self._replacements or {}).get(place, []), self._counts.get(place, 0)
        position = self._next_positions.get(place, 0)
        if number < self._answers.fetched.get(place, 0) - self._lead.get(place, 0) or position >= len(replacements):
            return
        self._next_positions[place] = position + 1
        node = replacements[position]
        event.outlasts = node is not None
        event.replace = _none_left if node is None else lambda own: self._reader.value(node, own)

    def _load_replacements(self) -> None:
        file = self._answers.snapshot_to_restore(DATA)
        assert file is not None
        self._reader = SnapshotReader(sys.modules["torch"], file.tensors)
        self._replacements = {}
        for place, node in file.header["batches"]:
            if file.header["lead"].get(place):
                self._replacements.setdefault(place, []).append(node)
        for place, lead in file.header["lead"].items():  # no more than this run fetches before its first step
            shorter_lead = self._lead[place] = min(lead, self._answers.fetched.get(place, 0))
            starts = [position for position, node in enumerate(self._replacements[place]) if node is not None]
            del self._replacements[place][: starts[lead - shorter_lead]]


def _none_left(_own: Any) -> Any:
    raise StopIteration


def place_of(began: LoaderBegan | None) -> str:
    """Return file name and line that iterate over a loader; without the directory, which may differ between runs."""
    return "" if began is None else _name(*began.place)


@functools.lru_cache(maxsize=64)
def _name(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"
