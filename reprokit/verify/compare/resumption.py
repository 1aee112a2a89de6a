"""Finds where a resumed training goes on with a whole one: its first parameters are those that a step left."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reprokit.verify.compare.divergences import INPUTS, SeriesDivergence, TrailSide, compared

TRIED = 16  # steps of which a batch is looked for; the first may have others that were skipped


def offset(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return how many steps the whole run had taken when the resumed one begins; None where that is not known."""
    first = next(resumed.series.steps(0, 1), None)
    start = next(whole.series.steps(0, 1), None)
    if first is None or start is None or first.before is None:
        return None
    if first.before == start.before:
        return 0
    return _closest(whole, first.before, first.batch)


def offset_by_batches(whole: TrailSide, resumed: TrailSide) -> int | None:
    """Return the same by the first batch that only one step of the whole run had."""
    steps: dict[int, list[int]] = {}
    for step in whole.series.steps():
        if step.batch is not None:
            steps.setdefault(step.batch, []).append(step.number)
    for step in resumed.series.steps(0, TRIED):
        known = steps.get(step.batch, []) if step.batch is not None else []
        if len(known) == 1 and known[0] >= step.number:
            return known[0] - step.number
    return None


def _closest(whole: TrailSide, parameters: int, batch: int | None) -> int | None:
    """Of several steps that left these parameters, take the one that the same batch follows."""
    found: int | None = None
    last: int | None = None
    for step in whole.series.steps():
        if last == parameters:
            if batch is not None and step.batch == batch:
                return step.number
            found = step.number if found is None else found
        last = step.parameters
    return found if found is not None or last != parameters else whole.series.count


def aligned(whole: TrailSide, resumed: TrailSide, steps: int) -> SeriesDivergence:
    """Compare a resumed run with the whole one from a step on."""
    return _compared(_later(whole, steps), resumed)


def _later(side: TrailSide, steps: int) -> TrailSide:
    return replace(side, series=side.series.later(steps))


def _compared(left: TrailSide, right: TrailSide) -> SeriesDivergence:
    found = compared(left, right)
    firsts = {name: quantity.first for name, quantity in found.quantities.items()}
    if firsts["batch"] == 0 and found.quantities["loss"].known and 0 not in (firsts["loss"], firsts[INPUTS]):
        _leave_out_skipped(found)
    return found


@dataclass(frozen=True)
class Resumption:
    """That one of two runs goes on in the middle of the other."""

    steps: int  # that the other had taken
    is_right: bool  # which is the resumed one

    @classmethod
    def find(cls, left: TrailSide, right: TrailSide) -> Resumption | None:
        """Return which of two runs is resumed; None where they begin alike, or nothing tells."""
        for is_right, pair in ((True, (left, right)), (False, (right, left))):
            steps = offset(*pair)
            if steps == 0:
                return None
            if steps is not None:
                return cls(steps, is_right)
        return None

    def compared(self, left: TrailSide, right: TrailSide) -> SeriesDivergence:
        """Compare both from that step on."""
        if self.is_right:
            return _compared(_later(left, self.steps), right)
        return _compared(left, _later(right, self.steps))

    @property
    def texts(self) -> tuple[str, str]:
        """What stands for each run."""
        texts = f"from step {self.steps:,} on", "from step 0 on"
        return texts if self.is_right else texts[::-1]

    @property
    def words(self) -> str:
        """What was compared."""
        resumed, whole = ("right", "left") if self.is_right else ("left", "right")
        return (
            f"the {resumed} run resumes the {whole} one, as it begins with the parameters that step {self.steps - 1:,}"
            f" left; its step 0 is compared with step {self.steps:,}, and so on"
        )


def _leave_out_skipped(found: SeriesDivergence) -> None:
    """Leave out the batches that a resumed run fetched, and did not use, to come to its place in the data."""
    batch, stop = found.quantities["batch"], min(found.left.count, found.right.count)
    pairs = zip(found.left.steps(1, stop), found.right.steps(1, stop), strict=True)
    later = ((one.number, one.batch, other.batch) for one, other in pairs if one.batch != other.batch)
    batch.first, batch.left, batch.right = next(later, (None, None, None))
    batch.count -= 1
    found.steps -= all(quantity.first != 0 for quantity in found.quantities.values())
