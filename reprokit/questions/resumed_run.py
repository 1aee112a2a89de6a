"""Compares a resumed run with the whole one: steps by their trails, state by the answers of both."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from reprokit.core.printable import listed
from reprokit.model.resumption import FirstDifference, PartSaid
from reprokit.questions import state_answers
from reprokit.questions.state_answers import (
    BOUNDED,
    DATA,
    GENERATORS,
    GRADIENTS,
    LATENT,
    LOADER,
    MODULES,
    PARTS,
    SETTINGS,
    VARIABLES,
    PartDifference,
)
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories import resumption
from reprokit.verify.categories.divergence_words import NAMES, cause_words
from reprokit.verify.categories.divergences import INPUTS, LENGTH, TENSORS, SeriesDivergence, TrailSide
from reprokit.verify.categories.trails import Key, sides

MAX_NAMES = 100
OF_CALLS = ("batch", INPUTS, "loss")  # quantities of a step that are made of all its calls of models
NAMED = 3  # in a sentence


@dataclass(frozen=True)
class StepDivergence:
    """The first step in which a series of a resumed run differs, and the differing quantity."""

    key: Key
    step: int  # of the resumed run
    quantity: str
    series: SeriesDivergence

    def cause(self, offset: int) -> str:
        """Describe what is equal before this difference, and what it follows from."""
        if self.quantity == LENGTH:
            ends = offset + self.series.left.count, offset + self.series.right.count
            return (
                f"all steps compared are equal, but the whole training takes {ends[0]:,} steps and the resumed one ends"
                f" at step {ends[1]:,}: what decides when it ends is another, as a count of epochs or of patience"
            )
        first = f"step {self.step + offset:,} differs by its {NAMES.get(self.quantity, self.quantity)} first"
        return (
            first if self.quantity in GENERATORS else f"{first}: {cause_words(self.series, self.quantity, self.step)}"
        )


class WholeRun:
    """The whole training: its recording, and its replay that answered questions about its state."""

    def __init__(self, recording: RunDirectory, asked: RunDirectory, offset: int) -> None:
        self.recording, self.asked, self.offset = recording, asked, offset
        self.sides = _sides(recording)
        self.states, self.notes = state_answers.read(asked)

    @property
    def calls(self) -> int:
        """How many calls of models the step is made of at which the other run resumes; 0 if unknown."""
        return state_answers.calls(self.states)


class ResumedRun:
    """The trails and answers of a resumed run."""

    def __init__(self, run: RunDirectory) -> None:
        self.sides = _sides(run)
        self.states, self.notes = state_answers.read(run)

    @property
    def fetched(self) -> Mapping[str, int]:
        """How many batches each place had fetched in the first step, including the batch of this step."""
        return next((series.fetched for series in self.states.values() if series.fetched is not None), {})

    @property
    def calls(self) -> int:
        """How many calls of models the first step is made of; 0 if unknown."""
        return state_answers.calls(self.states)

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the script, as they were logged; those that differ between processes left out."""
        states = [state for series in self.states.values() for state in series.states.values()]
        items = {item for state in states for item in state.get(VARIABLES, {}).items()}
        names = Counter(name for name, _ in items)
        return {name: text for name, text in items if names[name] == 1}

    def offset(self, recording: RunDirectory, interrupted: int) -> tuple[int, bool]:
        """Return the step of the whole run at which this one resumes, and whether its parameters show that.

        Where nothing shows it, the step of the interruption is assumed.
        """
        left = _sides(recording)
        pairs = ((left[key], self.sides[key]) for key in left if key in self.sides)
        places = [place for pair in pairs if (place := resumption.place(*pair, interrupted)) is not None]
        step, is_shown = max(places, key=lambda place: (place[1], place[0]), default=(interrupted, False))
        return step, is_shown

    def divergences(
        self, left: Mapping[Key, TrailSide], offset: int, *, is_whole: bool, is_within_step: bool = False
    ) -> tuple[list[StepDivergence], int]:
        """Return where this run's series differ, the earliest first, and how many steps were compared.

        If it resumes within a step that accumulates gradients, the inputs of only a part of that step are its own.
        """
        divergences, steps = [], 0
        for key in left.keys() & self.sides.keys():
            series = resumption.aligned(left[key], self.sides[key], offset)
            steps = max(steps, min(series.left.count, series.right.count))
            left_out = {LENGTH: not is_whole, TENSORS: _has_same_tensors(series)}
            left_out.update({name: is_within_step and _is_only_first(series, name) for name in OF_CALLS})
            names = [name for name in series.differing if not series.is_idle(name) and not left_out.get(name)]
            divergences += [StepDivergence(key, series.step(name), name, series) for name in names]
        return sorted(divergences, key=lambda parting: parting.step), steps

    def first_difference(self, recording: RunDirectory, offset: int, *, is_within_step: bool = False) -> int | None:
        """Return the first step that differs; None if all are equal."""
        divergences, _ = self.divergences(_sides(recording), offset, is_whole=False, is_within_step=is_within_step)
        return divergences[0].step if divergences else None


@dataclass(frozen=True)
class ResumeOutcome:
    """The differences between a resumed run and the whole one."""

    whole: WholeRun
    divergences: list[StepDivergence]
    parts: list[PartDifference]
    steps: int  # number compared
    notes: list[str]
    is_state_compared: bool  # for each process that answered
    is_within_step: bool  # whether it resumes within a step that accumulates gradients

    @property
    def is_same(self) -> bool:
        """Whether all steps are equal, and all state except generators that nobody draws from."""
        return self.has_equal_steps and not self.divergences

    @property
    def has_equal_steps(self) -> bool:
        """Whether all that was compared is equal, though one training may have taken more steps."""
        is_equal = all(divergence.quantity == LENGTH for divergence in self.divergences)
        return bool(self.steps) and is_equal and not self.effective

    @property
    def causes(self) -> Iterator[str]:
        """Yield what the first difference follows from, as far as the steps show it."""
        for divergence in self.divergences[:1]:
            settings = [part for part in self.parts if part.part == SETTINGS and part.step == divergence.step + 1]
            left = [f"; that step leaves other settings: {listed(part.names, NAMED)}" for part in settings]
            yield "".join([divergence.cause(self.whole.offset), *left])

    @property
    def candidates(self) -> list[str]:
        """The parts of the state that may be missing, causes before effects: those of the first differing step."""
        first = self._first_step
        names = {part.part for part in self.effective if part.step == first}
        kept_parts = {
            part for series in self.whole.states.values() for state in series.states.values() for part in state
        }
        part_of_quantity = {
            name: part for name, part in {**GENERATORS, "batch": DATA}.items() if part in {*kept_parts, DATA}
        }
        quantities = [divergence.quantity for divergence in self.divergences if divergence.step == first]
        names |= {part_of_quantity[quantity] for quantity in quantities if quantity in part_of_quantity}
        # Gradients from before the first call are a cause where those of the step differ, but not what they come from.
        has_own_cause = not (self.is_within_step or set(OF_CALLS).isdisjoint(quantities))
        is_accumulated = "gradients" in quantities and not has_own_cause
        latent_causes = {LOADER: DATA in names, GRADIENTS: is_accumulated}
        latent_causes.update({part: bool(quantities) for part in (MODULES, VARIABLES)})
        names |= {part.part for part in self.parts if part.step <= first and latent_causes.get(part.part)}
        return [part for part in PARTS if part in names]

    @property
    def all_candidates(self) -> list[str]:
        """The parts that differ when the resumed training begins, and may have an effect where all steps are equal."""
        return [part.part for part in self.parts if not part.is_idle and part.part != GRADIENTS]

    @property
    def idle_generators(self) -> list[str]:
        """The generators that differ, but that no compared step draws from."""
        return [part.part for part in self.parts if part.is_idle]

    @property
    def _first_step(self) -> int:
        return min(
            [*(divergence.step for divergence in self.divergences[:1]), *(part.step for part in self.effective[:1])],
            default=0,
        )

    @property
    def effective(self) -> list[PartDifference]:
        """The parts that differ at the first differing step; later differences may be their effects."""
        parts = [part for part in self.parts if not part.is_idle and part.part not in LATENT]
        first = min((part.step for part in parts), default=0)
        return [part for part in parts if part.step == first]

    @property
    def first(self) -> FirstDifference | None:
        """Return the first step that differs."""
        if not self.divergences:
            return None
        divergence = self.divergences[0]
        process, optimizer = divergence.key
        quantity = NAMES.get(divergence.quantity, divergence.quantity)
        step = divergence.step + self.whole.offset
        return FirstDifference(
            process=process, optimizer=optimizer, step=step, resumed_step=divergence.step, quantity=quantity
        )

    @property
    def has_unread_variables(self) -> bool:
        """Whether the script has more variables than are read."""
        states = [state for series in self.whole.states.values() for state in series.states.values()]
        return any(BOUNDED in state.get(VARIABLES, {}) for state in states)

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the script's variables that differ."""
        return next((part.names for part in self.parts if part.part == VARIABLES), ())

    def described_parts(
        self, variables: Collection[str] | None = None, *, has_other_facts: bool = False
    ) -> list[PartSaid]:
        """Return the differing parts, with steps of the whole run; of the script's variables only these, or all."""
        candidates = self.all_candidates if has_other_facts and self.has_equal_steps else self.candidates
        return [
            PartSaid(
                part=difference.part,
                step=difference.step + self.whole.offset,
                names=difference.described(chosen := variables if difference.part == VARIABLES else None)[:MAX_NAMES],
                objects=[name for name in difference.names if chosen is None or name in chosen][:MAX_NAMES],
                idle=difference.is_idle,
            )
            for difference in self.parts
            if difference.part in candidates
            or (
                difference.part not in LATENT - {LOADER} and (difference.step <= self._first_step or difference.is_idle)
            )
        ]


def compare_runs(
    whole: WholeRun, run: RunDirectory, *, is_whole: bool = False, window: int = sys.maxsize
) -> ResumeOutcome:
    """Compare a resumed run with the whole one; `is_whole` if it ran to its end.

    A trial goes on behind its window until it is interrupted, without the parts that are put in for each step.
    """
    resumed = ResumedRun(run)
    is_within_step = 0 < resumed.calls < whole.calls
    divergences, steps = resumed.divergences(
        whole.sides, whole.offset, is_whole=is_whole, is_within_step=is_within_step
    )
    divergences = [divergence for divergence in divergences if divergence.step < window]
    parts = state_answers.differences(whole.states, resumed.states, whole.offset)
    parts = [part for part in parts if part.step < window]
    is_compared = state_answers.is_comparable(whole.states, resumed.states, whole.offset)
    notes = list(resumed.notes)
    if 0 not in (whole.calls, resumed.calls) and whole.calls != resumed.calls:
        notes.append(
            f"the first update of the resumed training is made of {resumed.calls} calls of its model, that of the whole"
            f" one of {whole.calls}"
        )
    return ResumeOutcome(whole, divergences, parts, steps, notes, is_compared, is_within_step)


def _is_only_first(series: SeriesDivergence, name: str) -> bool:
    """Return whether the first step is the only one that differs by a quantity."""
    quantity = series.quantities[name]
    return quantity.first == 0 and quantity.count == 1


def _has_same_tensors(series: SeriesDivergence) -> bool:
    """Return whether both start with tensors of the same dtypes and shapes: loading may rename them."""
    left, right = ([(tensor.dtype, tensor.shape) for tensor in side.tensors(0)] for side in (series.left, series.right))
    return left == right and series.left.kind == series.right.kind


def _sides(run: RunDirectory) -> dict[Key, TrailSide]:
    return sides(run, list(trails.read(run)))
