"""Gives rules what a recording without saved tensors has: its losses, and the digests of parameters in its trail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from reprokit.run_files import numbers, trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors.index import IndexLine
from reprokit.saved_tensors.trial import TRAIN

MAX_STEPS = 20_000  # of a process; of a longer training one step in several is judged, and its first odd loss
LOSS = "loss"
_NOT_FINITE: dict[str, Literal["nan", "inf", "-inf"]] = {"nan": "nan", "inf": "inf", "-inf": "-inf"}


@dataclass
class RecordedIndex:
    """What was recorded of one process, as lines of an index of tensors."""

    name: str
    order: list[tuple[str, int]] = field(default_factory=list)
    ended: bool = True
    _lines: list[IndexLine] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Return what no other process has."""
        return f"recorded {self.name}"

    def has_passed(self, _mode: str, _step: int) -> bool:
        """Return that each step is complete, as the run has ended."""
        return True

    def new_lines(self) -> Iterator[IndexLine]:
        """Yield all lines at the first call, and none later."""
        lines, self._lines = self._lines, []
        yield from lines

    def close(self) -> None:
        """Bring the steps into their order."""
        steps = {line.step for line in self._lines if line.step is not None}
        self.order = [(TRAIN, step) for step in sorted(steps)]

    def add_losses(self, part: numbers.SeriesPart, described: set[str]) -> None:
        """Add losses of a series."""
        name = part.series.name
        if name not in described:
            described.add(name)
            self._lines.append(IndexLine(tensor=name, collections=["losses"]))
        steps, losses = part.columns()
        every = -(-len(steps) // MAX_STEPS)
        odd = next((place for place, loss in enumerate(losses) if not math.isfinite(loss)), None)
        for place, (step, loss) in enumerate(zip(steps, losses, strict=True)):
            if step >= 0 and (place % every == 0 or place == odd):
                value = loss if math.isfinite(loss) else _NOT_FINITE[str(loss)]
                self._lines.append(IndexLine(step=step, mode="train", name=name, reductions={"mean": value}))

    def add_digests(self, series: trails.Series) -> None:
        """Add the digests of all parameters that an optimizer updates, as each of its steps found them."""
        name = f"parameters of {series.name}"
        self._lines.append(IndexLine(tensor=name, collections=["weights"]))
        every, after = max(1, -(-series.count // MAX_STEPS)), None
        for step in series.steps():
            found = step.before if step.before is not None else after
            if found is not None and step.number % every == 0 and not step.partial:
                self._lines.append(IndexLine(step=step.number, mode="train", name=name, digest=f"{found:016x}"))
            after = step.parameters


def recorded(run: RunDirectory) -> list[RecordedIndex]:
    """Return what each process of a run recorded: its losses, and digests of its parameters."""
    indexes: dict[str, RecordedIndex] = {}
    described: dict[str, set[str]] = {}
    for process in numbers.read(run):
        for part in process.parts():
            if part.series.kind == LOSS:
                index = indexes.setdefault(process.process, RecordedIndex(process.process))
                index.add_losses(part, described.setdefault(process.process, set()))
    for trail in trails.read(run):
        for series in trail.series:
            indexes.setdefault(trail.process, RecordedIndex(trail.process)).add_digests(series)
    for index in indexes.values():
        index.close()
    return list(indexes.values())
