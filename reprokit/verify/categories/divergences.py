"""Finds where two series of a trail part: the first step in which each quantity differs, and how many differ.

Here are facts; `divergence_words.py` says them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from reprokit.model.states import Switch
from reprokit.run_files.trails import Series, TrailStep, TrailTensor

BLOCK = 4096  # steps compared as bytes first, and decoded only if these differ
GENERATORS = ("torch", "python", "numpy")
TENSORS, BEFORE, INPUTS, BUFFERS, LENGTH = "tensors", "before", "inputs", "buffers", "steps"
PER_STEP = (BEFORE, "batch", *GENERATORS, INPUTS, "loss", "gradients", "parameters", BUFFERS)
ORDER = (TENSORS, *PER_STEP, LENGTH)  # within a step, cause before effect
OF_TENSORS = ("gradients", "parameters")
RESULTS = ("loss", "gradients", "parameters", BUFFERS)  # quantities that model inputs affect
PARAMETERS_EVERY = {"tensorflow": 17}  # by framework: steps of which one has parameters, but where a question reads all
BOOSTING = ("xgboost", "lightgbm")  # frameworks whose steps have results only; buffers stand for the whole model
NEVER = 1 << 63  # later than any step

Point = tuple[int, int]  # a step, and the index of a quantity in ORDER


@dataclass
class QuantityDivergence:
    """Where and how often one quantity differs."""

    known: bool = False  # whether both runs recorded it in some step
    first: int | None = None
    count: int = 0  # steps that differ
    left: int | None = None  # digests in the first differing step
    right: int | None = None
    tensors: list[str] | None = None  # tensors that differ in that step; None if unknown
    last: tuple[int | None, int | None] = (None, None)
    is_seen_moving: bool = False  # whether some step shows if it changes
    drawn: int | None = None  # of a generator: the first step in which it both changes and differs
    acting: int | None = None  # of model inputs: the first step in which they and a result differ

    def see(self, step: int, values: tuple[int | None, int | None]) -> None:
        """Add the values of a step, equal or not."""
        self.known = self.known or None not in values
        pairs = [
            (previous, current)
            for previous, current in zip(self.last, values, strict=True)
            if None not in (previous, current)
        ]
        self.is_seen_moving = self.is_seen_moving or len(pairs) == 2
        if self.drawn is None and values[0] != values[1] and any(previous != current for previous, current in pairs):
            self.drawn = step
        self.last = values

    def add(self, step: int, left: int | None, right: int | None) -> None:
        """Add a step in which the quantity differs."""
        self.count += 1
        if self.first is None:
            self.first, self.left, self.right = step, left, right


@dataclass(frozen=True)
class TrailSide:
    """One run's series, and whether it is complete: a run that was cut off has only its beginning."""

    series: Series
    whole: bool
    asked: Switch | None  # the trail's state in run.json

    @cached_property
    def parameters_every(self) -> int:
        """Return of how many steps the series has the parameters of one."""
        every = PARAMETERS_EVERY.get(self.series.framework, 1)
        others = (step for step in self.series.steps() if (step.number + self.series.skipped) % every)
        return 1 if every > 1 and any(step.parameters is not None for step in others) else every


@dataclass
class SeriesDivergence:
    """The result of comparing two series."""

    left: Series
    right: Series
    steps: int = 0  # steps in which any quantity differs
    seen: int = -1  # the last step that was decoded
    quantities: dict[str, QuantityDivergence] = field(
        default_factory=lambda: {name: QuantityDivergence() for name in ORDER}
    )

    @property
    def differing(self) -> list[str]:
        """Return the quantities that differ, in causal order."""
        names = (name for name in ORDER if self.quantities[name].first is not None and not self.has_no_effect(name))
        return sorted(names, key=self.point)

    def point(self, name: str) -> Point:
        """Return the step in which a quantity can first be a cause, and its index; NEVER if it cannot be one."""
        step = self.quantities[name].first
        assert step is not None
        if self.is_idle(name):
            step = NEVER
        elif name == INPUTS:
            step = self.quantities[name].acting or step
        elif name in GENERATORS and self.knows_start(name):
            step = self.quantities[name].drawn or step
        return step, ORDER.index(name)

    def step(self, name: str) -> int:
        """Return the step to report for a quantity that differs."""
        first, (step, _) = self.quantities[name].first, self.point(name)
        return step if step != NEVER or first is None else first

    @property
    def every(self) -> int:
        """Return of how many steps at least one trail has one: only those that both have are compared.

        It is 1 where both end before they pass over any.
        """
        stop, sides = min(self.left.count, self.right.count), (self.left, self.right)
        return max((side.every for side in sides if side.skipped + stop > side.always), default=1)

    @property
    def compared_steps(self) -> int:
        """Return up to which step both trails tell what the runs did."""
        stop = min(self.left.count, self.right.count)
        if stop and all(step.parameters is not None for step in steps_of_both(self, stop - 1)):
            return stop
        return self.looked_at_before(stop) + 1

    def looked_at_from(self, step: int) -> int:
        """Return the first step from this one on that neither trail passes over; their end if there is none."""
        stop = min(self.left.count, self.right.count)
        while step < stop:
            later = max(side.looked_at_from(step) for side in (self.left, self.right))
            if later == step:
                return step
            step = later
        return stop

    def looked_at_before(self, step: int) -> int:
        """Return the last step before this one that neither trail passes over; -1 if there is none."""
        before = step
        while before >= 0:
            before = min(side.looked_at_before(before) for side in (self.left, self.right))
            if before < 0 or all(side.looked_at_from(before) == before for side in (self.left, self.right)):
                return before
        return before

    def knows_before(self, step: int) -> bool:
        """Return whether both runs recorded the parameters before a step."""
        for series in (self.left, self.right):
            *earlier, this_step = series.steps(max(0, step - 1), step + 1)
            if before_of(this_step, earlier[0].parameters if earlier else None) is None:
                return False
        return True

    def knows_start(self, name: str) -> bool:
        """Return whether both runs recorded a generator's state before the first step."""
        return name in self.left.generators and name in self.right.generators

    def is_idle(self, name: str) -> bool:
        """Return whether this generator differs from the start on, but no step draws from it."""
        quantity = self.quantities[name]
        return name in GENERATORS and quantity.first == 0 and quantity.is_seen_moving and quantity.drawn is None

    def has_no_effect(self, name: str) -> bool:
        """Return whether these are model inputs that differ only in steps with equal results."""
        return name == INPUTS and self.quantities[name].first is not None and self.quantities[name].acting is None

    def drawn_before_start(self) -> list[str]:
        """Return the generators that differ before the first step and may have been drawn from by then."""
        names = [name for name in GENERATORS if self.knows_start(name)]
        differing = [name for name in names if self.left.generators[name] != self.right.generators[name]]
        return [name for name in differing if name not in self.left.untouched or name not in self.right.untouched]


def compared(left: TrailSide, right: TrailSide) -> SeriesDivergence:
    diff = SeriesDivergence(left.series, right.series)
    left_series, right_series = left.series, right.series
    for name in GENERATORS:
        diff.quantities[name].last = left_series.generators.get(name), right_series.generators.get(name)
    stop = min(left_series.count, right_series.count)
    for start in range(0, stop, BLOCK):
        end = min(start + BLOCK, stop)
        has_known = any(quantity.known for quantity in diff.quantities.values())
        if has_known and left_series.records(start, end) == right_series.records(start, end):
            continue
        for left_step, right_step in zip(left_series.steps(start, end), right_series.steps(start, end), strict=True):
            _compare_step(diff, left_step, right_step, (left, right))
    _compare_tables(diff, stop)
    is_aligned = bool(left_series.skipped or right_series.skipped)  # then the kept first steps are others
    is_whole = left.whole and right.whole and left.asked == right.asked and not is_aligned
    _compare_kept(diff, stop, (left, right), whole=is_whole)
    if (
        left_series.count != right_series.count
        and (left.whole or left_series.count > right_series.count)
        and (right.whole or right_series.count > left_series.count)
    ):
        diff.quantities[LENGTH].add(stop, left_series.count, right_series.count)
    return diff


def _compare_step(
    diff: SeriesDivergence, left: TrailStep, right: TrailStep, sides: tuple[TrailSide, TrailSide]
) -> None:
    differing: set[str] = set()
    is_passed = left.passed or right.passed
    for name in PER_STEP:
        values = getattr(left, name), getattr(right, name)
        if is_passed and None in values:
            continue
        quantity = diff.quantities[name]
        if name == BEFORE and diff.seen == left.number - 1:
            last = diff.quantities["parameters"].last
            values = before_of(left, last[0]), before_of(right, last[1])
        quantity.see(left.number, values)
        if values[0] != values[1] and not _is_no_difference(name, values, (left, right), sides):
            quantity.add(left.number, *values)
            differing.add(name)
    inputs = diff.quantities[INPUTS]
    if INPUTS in differing and inputs.acting is None and not differing.isdisjoint(RESULTS):
        inputs.acting = left.number
    diff.steps += bool(differing - {INPUTS})
    diff.seen = diff.seen if is_passed else left.number


def before_of(step: TrailStep, last: int | None) -> int | None:
    """Return the parameters before a step: if unchanged since, those that the previous step left."""
    return last if step.before is None and step.unchanged else step.before


def _is_no_difference(
    name: str,
    values: tuple[int | None, int | None],
    steps: tuple[TrailStep, TrailStep],
    sides: tuple[TrailSide, TrailSide],
) -> bool:
    """Return whether a missing value on one side has a harmless reason, and so is no difference."""
    framework = sides[0].series.framework
    if name in (BEFORE, INPUTS) or (name == BUFFERS and framework in BOOSTING):
        return None in values  # not recorded in every step
    if name == GENERATORS[0] and len({_at_generators(*each) for each in zip(steps, sides, strict=True)}) > 1:
        return True  # of a resumed training: only one of both digests has the seed generators in it
    not_asked = name == "gradients" and sides[0].asked != sides[1].asked
    return any(
        value is None and (name in step.unsteady or not side.whole or not_asked or _has_none_of(name, step, side))
        for value, step, side in zip(values, steps, sides, strict=True)
    )


def _at_generators(step: TrailStep, side: TrailSide) -> bool:
    """Return whether a step's digest of random states has those that are read with the weights."""
    return (step.number + side.series.skipped) % PARAMETERS_EVERY.get(side.series.framework, 1) == 0


def _has_none_of(name: str, step: TrailStep, side: TrailSide) -> bool:
    """Return whether a series has a quantity of some steps only, of which this is none."""
    return name == "parameters" and (step.number + side.series.skipped) % side.parameters_every != 0


def _compare_tables(diff: SeriesDivergence, stop: int) -> None:
    """Compare names, types and shapes of the tensors, and from which step on they are updated."""
    starts = {diff.looked_at_from(first) for side in (diff.left, diff.right) for first, _ in side.tables}
    for step in sorted({0, *(step for step in starts if step < stop)}):
        tables = diff.left.tensors(step), diff.right.tensors(step)
        if tables[0] != tables[1] or diff.left.kind != diff.right.kind:
            quantity = diff.quantities[TENSORS]
            quantity.add(step, None, None)
            quantity.tensors = quantity.tensors or _changed_tensors(*tables)


def _changed_tensors(left: list[TrailTensor], right: list[TrailTensor]) -> list[str]:
    left_by_name = {tensor.name: tensor for tensor in left}
    changed = [tensor.name for tensor in right if left_by_name.get(tensor.name) != tensor]
    names = {tensor.name for tensor in right}
    return changed + [tensor.name for tensor in left if tensor.name not in names]


def _compare_kept(diff: SeriesDivergence, stop: int, sides: tuple[TrailSide, TrailSide], *, whole: bool) -> None:
    """Name the tensors that differ in the first steps; count steps in which only a tensor's digest differs."""
    kept = {*diff.left.kept()}, {*diff.right.kept()}
    has_same_stride = (diff.left.every, diff.left.always) == (diff.right.every, diff.right.always)
    is_same = diff.left.count == diff.right.count and diff.steps == 0 and whole and has_same_stride
    if is_same and kept[0] != kept[1] and sides[0].parameters_every == sides[1].parameters_every:
        diff.quantities[TENSORS].add(min(kept[0] ^ kept[1]), None, None)
    for step in sorted(kept[0] & kept[1]):
        if step >= stop:
            break
        differing = _kept_tensors(diff, step)
        for name in OF_TENSORS:
            quantity = diff.quantities[name]
            if differing is None or not _is_steady(diff, step, name):
                continue
            if differing[name] and (quantity.first is None or step < quantity.first):
                quantity.count, quantity.first = quantity.count + 1, step
            if quantity.first == step:
                quantity.tensors = differing[name]


def _is_steady(diff: SeriesDivergence, step: int, name: str) -> bool:
    steps = [*diff.left.steps(step, step + 1), *diff.right.steps(step, step + 1)]
    return all(getattr(trail_step, name) is not None for trail_step in steps)


def _kept_tensors(diff: SeriesDivergence, step: int) -> dict[str, list[str]] | None:
    """Return the names of the tensors that differ in a step; None if a run has no digests of them."""
    left, right = diff.left.digests(step), diff.right.digests(step)
    if left is None or right is None or left.tensors != right.tensors:
        return None
    names = [tensor.name for tensor in left.tensors]
    both = {name: zip(names, getattr(left, name), getattr(right, name), strict=True) for name in OF_TENSORS}
    return {
        name: [tensor for tensor, left_value, right_value in both[name] if left_value != right_value]
        for name in OF_TENSORS
    }


def steps_of_both(diff: SeriesDivergence, step: int) -> list[TrailStep]:
    """Return this step of both runs."""
    return [*diff.left.steps(step, step + 1), *diff.right.steps(step, step + 1)]


def are_known(diff: SeriesDivergence, names: Sequence[str]) -> bool:
    """Return whether both runs recorded any of these quantities."""
    return any(diff.quantities[name].known for name in names)


def draws_equal(diff: SeriesDivergence, step: int) -> bool:
    """Return whether all known generators are equal until this step."""
    known_generators = [name for name in GENERATORS if diff.quantities[name].known]
    points = [diff.point(name)[0] for name in known_generators if diff.quantities[name].first is not None]
    return bool(known_generators) and all(point >= step for point in points)


def is_equal_before(diff: SeriesDivergence, name: str, step: int) -> bool:
    """Return whether a quantity is known, and so equal, before the first difference; inputs in this very step."""
    if name != INPUTS:
        return diff.quantities[name].known
    inputs = {trail_step.inputs for trail_step in steps_of_both(diff, step)}
    return len(inputs) == 1 and None not in inputs
