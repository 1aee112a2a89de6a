"""Finds the step of a whole training from which another one resumes it: one step left its first parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reprokit.run_files.trails import TrailStep
from reprokit.verify.categories.divergences import BUFFERS, GENERATORS, INPUTS, SeriesDivergence, TrailSide, compared

TRIED = 16  # resumed steps that are searched for; batches skipped before may confuse the first ones
COMPARED = ("batch", INPUTS, "loss", "gradients", "parameters", BUFFERS, *GENERATORS)


@dataclass(frozen=True, order=True)
class _Likeness:
    """How much of a step is equal to another one; of two that are equally alike the later one counts."""

    has_same_start: bool  # the parameters that it found
    has_same_end: bool  # the parameters that it left
    equal: int  # number of equal quantities
    number: int

    @property
    def is_shown(self) -> bool:
        return self.has_same_start or self.has_same_end


def offset(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return how many steps the whole run had taken before the resumed one begins; None if unknown."""
    first = next(resumed.series.steps(0, 1), None)
    start = next(whole.series.steps(0, 1), None)
    if first is None or start is None or first.before is None:
        return None
    if first.before == start.before:
        return 0
    found = _most_alike(whole, first, whole.series.count)
    return found.number if found is not None and found.has_same_start else None


def place(whole: TrailSide, resumed: TrailSide, last: int) -> tuple[int, bool] | None:
    """Return the step from which the whole run is resumed, up to `last`, and whether parameters show it.

    All that is known of a step counts. Where parameters stand still, or are others, several steps fit: the last one,
    as nobody resumes on an older checkpoint than the newest.
    """
    tried = ((step, _most_alike(whole, step, last + step.number)) for step in resumed.series.steps(0, TRIED))
    found = [
        (likeness.is_shown, likeness.number - step.number)
        for step, likeness in tried
        if likeness is not None and likeness.number > step.number
    ]
    shown = next((number for is_shown, number in found if is_shown), None)
    if shown is not None:
        return shown, True
    return (found[0][1], False) if found else None


def _most_alike(whole: TrailSide, resumed: TrailStep, last: int) -> _Likeness | None:
    """Return the likeness of the step of the whole run that is most like this one; None if none is."""
    best: _Likeness | None = None
    parameters_before: int | None = None
    for step in whole.series.steps(0, last + 1):
        before = parameters_before if step.before is None else step.before
        equal = [
            name
            for name in COMPARED
            if getattr(resumed, name) is not None and getattr(step, name) == getattr(resumed, name)
        ]
        likeness = _Likeness(
            resumed.before is not None and before == resumed.before, "parameters" in equal, len(equal), step.number
        )
        is_alike = likeness.is_shown or not {"batch", INPUTS}.isdisjoint(equal)
        if is_alike and (best is None or likeness > best):
            best = likeness
        parameters_before = step.parameters
    if best is None or not best.is_shown:
        is_behind = resumed.before is not None and last >= whole.series.count and parameters_before == resumed.before
        return _Likeness(True, False, 0, whole.series.count) if is_behind else best
    return best


def aligned(whole: TrailSide, resumed: TrailSide, steps: int) -> SeriesDivergence:
    """Compare a resumed run with the whole one from a step on.

    Generators are compared from the first step's end on: until it begins, the resumed run creates and loads its state.
    """
    return _compare(_from_step(whole, steps), _from_step(resumed, 0))


def _from_step(side: TrailSide, steps: int) -> TrailSide:
    return replace(side, series=side.series.later(steps))


def _compare(left: TrailSide, right: TrailSide) -> SeriesDivergence:
    diff = compared(left, right)
    firsts = {name: quantity.first for name, quantity in diff.quantities.items()}
    # A generator that differs explains another loss, unless later batches show another place in the data.
    has_own_cause = diff.quantities["batch"].count == 1 < diff.seen + 1 and 0 in map(firsts.get, GENERATORS)
    loss = None if has_own_cause else firsts["loss"]
    if firsts["batch"] == 0 and diff.quantities["loss"].known and 0 not in (loss, firsts[INPUTS]):
        _ignore_skipped_batches(diff)
    return diff


@dataclass(frozen=True)
class Resumption:
    """States that one of two runs resumes the other in its middle."""

    steps: int  # steps of the whole run before the resumed one begins
    is_right: bool  # whether the right run is the resumed one

    @classmethod
    def find(cls, left: TrailSide, right: TrailSide) -> Resumption | None:
        """Return which of two runs is resumed; None if they begin alike, or if it is unknown."""
        for is_right, pair in ((True, (left, right)), (False, (right, left))):
            steps = offset(*pair)
            if steps == 0:
                return None
            if steps is not None and not steps % max(side.series.every for side in pair):  # else none is in both
                return cls(steps, is_right)
        return None

    def compared(self, left: TrailSide, right: TrailSide) -> SeriesDivergence:
        """Compare both runs from that step on."""
        if self.is_right:
            return _compare(_from_step(left, self.steps), right)
        return _compare(left, _from_step(right, self.steps))

    @property
    def texts(self) -> tuple[str, str]:
        """Return the text for each run."""
        texts = f"from step {self.steps:,} on", "from step 0 on"
        return texts if self.is_right else texts[::-1]

    @property
    def words(self) -> str:
        """Return a sentence on what was compared."""
        resumed, whole = ("right", "left") if self.is_right else ("left", "right")
        return (
            f"the {resumed} run resumes the {whole} one, as it begins with the parameters that step {self.steps - 1:,}"
            f" left; its step 0 is compared with step {self.steps:,}, and so on"
        )


def _ignore_skipped_batches(diff: SeriesDivergence) -> None:
    """Ignore the batches that a resumed run fetched and skipped to reach its place in the data."""
    batch, stop = diff.quantities["batch"], min(diff.left.count, diff.right.count)
    pairs = zip(diff.left.steps(1, stop), diff.right.steps(1, stop), strict=True)
    differing = (
        (left_step.number, left_step.batch, right_step.batch)
        for left_step, right_step in pairs
        if left_step.batch != right_step.batch
    )
    batch.first, batch.left, batch.right = next(differing, (None, None, None))
    batch.count -= 1
    diff.steps -= all(quantity.first != 0 for quantity in diff.quantities.values())
