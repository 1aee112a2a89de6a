"""Holds a resumed run against the whole one: steps by their trails, state by what both answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from reprokit import trails
from reprokit.model.resumption import FirstDifference, PartSaid
from reprokit.questions import state_answers
from reprokit.questions.state_answers import DATA, GENERATORS, LOADER, PARTS, PartDifference
from reprokit.rundir import RunDirectory
from reprokit.verify.compare import resumption
from reprokit.verify.compare.divergences import LENGTH, NAMES, TENSORS, SeriesDivergence, TrailSide
from reprokit.verify.compare.trails import Key, sides

MAX_NAMES = 100


@dataclass(frozen=True)
class Parting:
    """Where a series of a resumed run first differs."""

    key: Key
    step: int  # of the resumed run
    quantity: str


class WholeRun:
    """The whole training: its recording, and its replay that told of its state."""

    def __init__(self, recording: RunDirectory, asked: RunDirectory, offset: int) -> None:
        self.recording, self.asked, self.offset = recording, asked, offset
        self.sides = _sides(recording)
        self.states, self.notes = state_answers.read(asked)


class ResumedRun:
    """What a resumed run recorded and answered."""

    def __init__(self, run: RunDirectory) -> None:
        self.sides = _sides(run)
        self.states, self.notes = state_answers.read(run)

    @property
    def fetched(self) -> Mapping[str, int]:
        """How many batches came from each place until the first step, with that of this step."""
        return next((series.fetched for series in self.states.values() if series.fetched is not None), {})

    def offset(self, recording: RunDirectory, interrupted: int) -> tuple[int, bool]:
        """Return the step of the whole run at which this one goes on, and whether its first parameters show that.

        Else its batches do, or it is where the training was interrupted.
        """
        left = _sides(recording)
        found = self._begins(left, resumption.offset)
        return found or self._begins(left, resumption.offset_by_batches) or interrupted, bool(found)

    def _begins(self, left: Mapping[Key, TrailSide], find: Callable[[TrailSide, TrailSide], int | None]) -> int | None:
        steps = [find(left[key], self.sides[key]) for key in left if key in self.sides]
        return max((step for step in steps if step), default=None)

    def partings(self, left: Mapping[Key, TrailSide], offset: int, *, is_whole: bool) -> tuple[list[Parting], int]:
        """Return where this run's series differ, the earliest first, and how many steps were compared."""
        partings, steps = [], 0
        for key in left.keys() & self.sides.keys():
            series = resumption.aligned(left[key], self.sides[key], offset)
            steps = max(steps, min(series.left.count, series.right.count))
            left_out = {LENGTH: not is_whole, TENSORS: _has_same_tensors(series)}
            names = [name for name in series.differing if not series.is_idle(name) and not left_out.get(name)]
            partings += [Parting(key, series.step(name), name) for name in names]
        return sorted(partings, key=lambda parting: parting.step), steps

    def first_difference(self, recording: RunDirectory, offset: int) -> int | None:
        """Return the first step that differs."""
        partings, _ = self.partings(_sides(recording), offset, is_whole=False)
        return partings[0].step if partings else None


@dataclass(frozen=True)
class ResumeOutcome:
    """How a resumed run differs from the whole one."""

    whole: WholeRun
    partings: list[Parting]
    parts: list[PartDifference]
    steps: int  # that were compared
    notes: list[str]
    is_seen: bool  # whether state was compared of each process that tells of any

    @property
    def is_same(self) -> bool:
        """Whether all steps are equal, and all state but that of generators that nobody draws from."""
        return bool(self.steps) and not self.partings and not self.acting

    @property
    def candidates(self) -> list[str]:
        """What of the state may be missing, causes before effects: what differs at the first step that does."""
        first = self._first_step
        names = {part.part for part in self.acting if part.step == first}
        kept_parts = {
            part for series in self.whole.states.values() for state in series.states.values() for part in state
        }
        of_quantities = {
            name: part for name, part in {**GENERATORS, "batch": DATA}.items() if part in {*kept_parts, DATA}
        }
        quantities = [parting.quantity for parting in self.partings if parting.step == first]
        names |= {of_quantities[quantity] for quantity in quantities if quantity in of_quantities}
        if DATA in names and any(part.part == LOADER for part in self.parts):
            names.add(LOADER)
        return [part for part in PARTS if part in names]

    @property
    def _first_step(self) -> int:
        return min(
            [*(parting.step for parting in self.partings[:1]), *(part.step for part in self.acting[:1])], default=0
        )

    @property
    def acting(self) -> list[PartDifference]:
        """The parts that are others at the first step at which any is; those of later steps may follow from them.

        A loader's own generator decides batches alone, which are compared themselves.
        """
        parts = [part for part in self.parts if not part.is_idle and part.part != LOADER]
        first = min((part.step for part in parts), default=0)
        return [part for part in parts if part.step == first]

    @property
    def first(self) -> FirstDifference | None:
        """Return the first step that differs."""
        if not self.partings:
            return None
        parting = self.partings[0]
        process, optimizer = parting.key
        quantity = NAMES.get(parting.quantity, parting.quantity)
        step = parting.step + self.whole.offset
        return FirstDifference(
            process=process, optimizer=optimizer, step=step, resumed_step=parting.step, quantity=quantity
        )

    @property
    def said(self) -> list[PartSaid]:
        """Return the parts, with steps of the whole run."""
        return [
            PartSaid(
                part=difference.part,
                step=difference.step + self.whole.offset,
                names=list(difference.names[:MAX_NAMES]),
                idle=difference.is_idle,
            )
            for difference in self.parts
            if difference.step <= self._first_step or difference.is_idle
        ]


def judged(whole: WholeRun, run: RunDirectory, *, is_whole: bool = False) -> ResumeOutcome:
    """Compare a resumed run with the whole one; `is_whole` where it went on to its end."""
    resumed = ResumedRun(run)
    partings, steps = resumed.partings(whole.sides, whole.offset, is_whole=is_whole)
    parts = state_answers.differences(whole.states, resumed.states, whole.offset)
    is_seen = state_answers.is_seen(whole.states, resumed.states, whole.offset)
    return ResumeOutcome(whole, partings, parts, steps, [*resumed.notes, *_accumulated(whole, resumed)], is_seen)


def _accumulated(whole: WholeRun, resumed: ResumedRun) -> Iterator[str]:
    for process in whole.states.keys() & resumed.states.keys():
        left, right = whole.states[process].calls, resumed.states[process].calls
        if None not in (left, right) and left != right:
            yield (
                f"the first update of the resumed training is made of {right} calls of its model, that of the whole one"
                f" of {left}: gradients that had been accumulated are not restored"
            )


def _has_same_tensors(series: SeriesDivergence) -> bool:
    """Return whether both begin with tensors of the same types and shapes: a model that was loaded may rename them."""
    left, right = ([(tensor.dtype, tensor.shape) for tensor in side.tensors(0)] for side in (series.left, series.right))
    return left == right and series.left.kind == series.right.kind


def _sides(run: RunDirectory) -> dict[Key, TrailSide]:
    return sides(run, list(trails.read(run)))
