"""The batches of a training's loaders from a step on: kept, or given in the place of another run's own.

Loaders are told apart by the place in the script that iterates over them. What another place fetches, as an
evaluation's, is left alone.
"""

from __future__ import annotations

import copy
import os
import sys

from ..capture.torch_state import SnapshotReader, SnapshotTensors
from .training_state import DATA, StateAnswers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import BatchDue, BatchFetched, LoaderBegan, LoaderExhausted

MAX_BYTES = 512 << 20  # of batches that are kept
AHEAD = 8  # batches that a loop may have fetched before the step that has the first of them


class BatchStream:
    """What loaders give from the first step of the question on."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers = answers
        self._counts: dict[str, int] = {}  # batches fetched, by place
        self._recent: list[tuple[str, Any]] = []  # the last before the first step; None: there was none left
        self._is_kept = False
        self._is_saved = False
        self._tensors = SnapshotTensors()
        self._nodes: list[Any] = []  # place and node of each batch that is kept
        self._lead: dict[str, int] = {}  # of them, those that had been fetched when the first step began
        self._given: dict[str, list[Any]] | None = None  # what is to be given, by place
        self._reader: Any = None
        self._next: dict[str, int] = {}  # which of them is given next

    def fetched_by_place(self) -> dict[str, int]:
        """Return how many batches were fetched until now."""
        return dict(self._counts)

    @property
    def is_at_first(self) -> bool:
        """Whether the batch that was fetched last is the first step's."""
        return self._counts == self._answers.fetched

    # Kept

    def fetched(self, event: BatchFetched) -> None:
        """A loader has given a batch."""
        place = place_of(event.began)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._take(place, event.batch)

    def exhausted(self, event: LoaderExhausted) -> None:
        """A loader has none left."""
        self._take(place_of(event.began), None)

    def _take(self, place: str, batch: Any) -> None:
        if self._is_kept:
            self._put_down(place, batch)
        elif self._answers.keeps and self._answers.window.step >= self._answers.first - AHEAD:
            self._recent = [*self._recent, (place, batch)][-AHEAD:]

    def keep(self) -> None:
        """From now on all are kept, and the last that were fetched, which a loop may have taken ahead."""
        self._is_kept = True
        for place, batch in self._recent:
            lead = self._lead.get(place, 0) + (batch is not None)
            if lead:  # else it is the end of the epoch before
                self._lead[place] = lead
                self._put_down(place, batch)
        self._recent = []

    def _put_down(self, place: str, batch: Any) -> None:
        if self._is_saved or sum(part.nbytes for part in self._tensors.parts) > MAX_BYTES:
            return
        node = None if batch is None else self._tensors.pack(f"batch.{len(self._nodes)}", copy.deepcopy(batch))
        self._nodes.append([place, node])

    def updated(self) -> None:
        """A step is over."""
        if self._is_kept and self._answers.window.is_over:
            self.finish()

    def finish(self) -> None:
        """Save what was kept."""
        if self._is_kept and not self._is_saved:
            self._is_saved = True
            self._answers.save(DATA, {"batches": self._nodes, "lead": self._lead}, self._tensors.parts)

    # Given

    def due(self, event: BatchDue) -> None:
        """Give another run's batch, where this one is at the first of them."""
        if DATA not in self._answers.parts:
            return
        if self._given is None:
            self._begin()
        place = place_of(event.began)
        given, number = (self._given or {}).get(place, []), self._counts.get(place, 0)
        position = self._next.get(place, 0)
        if number < self._answers.fetched.get(place, 0) - self._lead.get(place, 0) or position >= len(given):
            return
        self._next[place] = position + 1
        node = given[position]
        event.outlasts = node is not None
        event.replace = _none_left if node is None else lambda own: self._reader.value(node, own)

    def _begin(self) -> None:
        file = self._answers.kept(DATA)
        assert file is not None
        self._reader = SnapshotReader(sys.modules["torch"], file.tensors)
        self._given = {}
        for place, node in file.header["batches"]:
            if file.header["lead"].get(place):
                self._given.setdefault(place, []).append(node)
        for place, lead in file.header["lead"].items():  # no more than this run fetches until its first step
            wanted = self._lead[place] = min(lead, self._answers.fetched.get(place, 0))
            starts = [at for at, node in enumerate(self._given[place]) if node is not None]
            del self._given[place][: starts[lead - wanted]]


def _none_left(_own: Any) -> Any:
    raise StopIteration


def place_of(began: LoaderBegan | None) -> str:
    """Return the line that iterates over a loader, whose directory may be another in each run."""
    return "" if began is None else f"{os.path.basename(began.place[0])}:{began.place[1]}"
