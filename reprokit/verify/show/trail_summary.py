"""What the trails of one run hold, be it still written: steps, quantities, bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from reprokit import trails
from reprokit.errors import RunDamaged, RunError
from reprokit.rundir import RunDirectory
from reprokit.trails import Series, Trail

ATTEMPTS = 5  # to read a file that grows at this moment
LOOKED_AT = 64  # steps at the beginning that tell which quantities are known
_QUANTITIES = {
    "batch": ("batch",),
    "random state": ("torch", "python", "numpy"),
    "loss": ("loss",),
    "gradients": ("gradients",),
    "parameters": ("parameters",),
    "buffers": ("buffers",),
    "model inputs": ("inputs",),
}


@dataclass(frozen=True)
class Holding:
    """What is known of the steps of one optimizer."""

    process: str
    name: str
    kind: str
    steps: int
    quantities: list[str]
    tensors: int
    bytes: int  # of the file, which all optimizers of a process share

    def __str__(self) -> str:
        what = ", ".join(self.quantities) or "nothing known of them"
        return (
            f"{self.name} ({self.kind}) of process {self.process}: {self.steps:,} step{'' if self.steps == 1 else 's'}"
            f" of {self.tensors} tensors: {what}; in a file of {self.bytes} bytes"
        )


def holdings(run: RunDirectory, *, in_progress: bool) -> tuple[list[Holding], list[str]]:
    """What each optimizer's trail holds, and a warning where that cannot be read."""
    for attempt in range(ATTEMPTS):
        try:
            return [one for trail in trails.read(run) for one in _of(trail)], []
        except RunDamaged as error:
            if not in_progress or attempt == ATTEMPTS - 1:
                return [], [str(error)]
        except RunError as error:
            return [], [str(error)]
    return [], []


def _of(trail: Trail) -> Iterator[Holding]:
    for series in trail.series:
        tensors = len(series.tensors(max(0, series.count - 1)))
        yield Holding(trail.process, series.name, series.kind, series.count, _known(series), tensors, trail.size)


def _known(series: Series) -> list[str]:
    steps = list(series.steps(0, LOOKED_AT))
    return [
        name
        for name, fields in _QUANTITIES.items()
        if any(getattr(step, field) is not None for step in steps for field in fields)
    ]


def document(found: list[Holding]) -> list[dict[str, Any]]:
    """The holdings for JSON."""
    return [{"class" if key == "kind" else key: value for key, value in asdict(one).items()} for one in found]
