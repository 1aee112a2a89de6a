"""Finds the step of a whole training from which another one resumes it: one step left its first parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reprokit.verify.compare.divergences import GENERATORS, INPUTS, SeriesDivergence, TrailSide, compared

TRIED = 16  # resumed steps that are searched for; batches skipped before may confuse the first ones


def offset(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return how many steps the whole run had taken before the resumed one begins; None if unknown."""
    first = next(resumed.series.steps(0, 1), None)
    start = next(whole.series.steps(0, 1), None)
    if first is None or start is None or first.before is None:
        return None
    if first.before == start.before:
        return 0
    return _steps_before(whole, first.before, first.batch)


def offset_by_results(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return the same offset by the first results, as trees, that only one step of the whole run had; or None."""
    return _offset_by("parameters", whole, resumed)


def offset_by_batches(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return the same offset by the first batch that only one step of the whole run had; None if unknown."""
    return _offset_by("batch", whole, resumed)


def _offset_by(name: str, whole: TrailSide, resumed: TrailSide) -> int | None:
    steps: dict[int, list[int]] = {}
    for step in whole.series.steps():
        digest = getattr(step, name)
        if digest is not None:
            steps.setdefault(digest, []).append(step.number)
    for step in resumed.series.steps(0, TRIED):
        numbers = steps.get(getattr(step, name), [])
        if len(numbers) == 1 and numbers[0] >= step.number:
            return numbers[0] - step.number
    return None


def _steps_before(whole: TrailSide, parameters: int, batch: int | None) -> int | None:
    """Return the number of steps before these parameters; if several fit, before the step with this batch."""
    candidate: int | None = None
    parameters_before: int | None = None
    for step in whole.series.steps():
        if (parameters_before if step.before is None else step.before) == parameters:
            if batch is not None and step.batch == batch:
                return step.number
            candidate = step.number if candidate is None else candidate
        parameters_before = step.parameters
    return candidate if candidate is not None or parameters_before != parameters else whole.series.count


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
            if steps is not None:
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
