"""Finds where two series of a trail part: for each quantity the first step that differs, and how many do."""

from __future__ import annotations

from dataclasses import dataclass, field

from reprokit import trails
from reprokit.model.states import Switch
from reprokit.trails import Series, TrailStep, TrailTensor

BLOCK = 4096  # steps that are compared as bytes, before a look at what is in them
GENERATORS = ("torch", "python", "numpy")
TENSORS, BEFORE, INPUTS, BUFFERS, LENGTH = "tensors", "before", "inputs", "buffers", "steps"
PER_STEP = (BEFORE, "batch", *GENERATORS, INPUTS, "loss", "gradients", "parameters", BUFFERS)
ORDER = (TENSORS, *PER_STEP, LENGTH)  # within a step, cause before effect
OF_TENSORS = ("gradients", "parameters")
RESULTS = ("loss", "gradients", "parameters", BUFFERS)  # what model inputs have an effect on
NEVER = 1 << 63  # later than any step

Point = tuple[int, int]  # a step, and the place of a quantity in ORDER


@dataclass
class Quantity:
    """Where one quantity differs."""

    known: bool = False
    first: int | None = None
    count: int = 0  # steps that differ
    left: int | None = None  # its digests there
    right: int | None = None
    tensors: list[str] | None = None  # that differ there; None: not known
    last: tuple[int | None, int | None] = (None, None)
    is_seen_moving: bool = False  # whether a step could tell if it moves
    drawn: int | None = None  # of a generator: the first step in which it both moves and differs
    acting: int | None = None  # of model inputs: the first step in which they and a result differ

    def see(self, step: int, values: tuple[int | None, int | None]) -> None:
        """Take in the values of a step, be they equal or not."""
        self.known = self.known or None not in values
        pairs = [(before, now) for before, now in zip(self.last, values, strict=True) if None not in (before, now)]
        self.is_seen_moving = self.is_seen_moving or len(pairs) == 2
        if self.drawn is None and values[0] != values[1] and any(before != now for before, now in pairs):
            self.drawn = step
        self.last = values

    def add(self, step: int, left: int | None, right: int | None) -> None:
        """Another step in which it differs."""
        self.count += 1
        if self.first is None:
            self.first, self.left, self.right = step, left, right


@dataclass(frozen=True)
class Side:
    """One run's series, and whether all that it says is there: not where the run was cut off."""

    series: Series
    whole: bool
    asked: Switch | None  # what run.json says of the trail


@dataclass
class SeriesDivergence:
    """What comparing two series came to."""

    left: Series
    right: Series
    steps: int = 0  # that differ in anything
    seen: int = -1  # the last step that was looked at by itself
    quantities: dict[str, Quantity] = field(default_factory=lambda: {name: Quantity() for name in ORDER})

    @property
    def differing(self) -> list[str]:
        """The quantities that differ, the earliest in cause first."""
        names = (name for name in ORDER if self.quantities[name].first is not None and not self.has_no_effect(name))
        return sorted(names, key=self.point)

    def point(self, name: str) -> Point:
        """The step in which a quantity can first be a cause, and its place there; what cannot be one comes last."""
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
        """The step that is said of a quantity that differs."""
        first, (step, _) = self.quantities[name].first, self.point(name)
        return step if step != NEVER or first is None else first

    def knows_before(self, step: int) -> bool:
        """Whether both runs say what the parameters were before a step."""
        for series in (self.left, self.right):
            *earlier, now = series.steps(max(0, step - 1), step + 1)
            if before_of(now, earlier[0].parameters if earlier else None) is None:
                return False
        return True

    def knows_start(self, name: str) -> bool:
        """Whether both runs say what a generator's state was before the first step."""
        return name in self.left.generators and name in self.right.generators

    def is_idle(self, name: str) -> bool:
        """Whether it is a generator that differs from the start on, and that no step draws from."""
        quantity = self.quantities[name]
        return name in GENERATORS and quantity.first == 0 and quantity.is_seen_moving and quantity.drawn is None

    def has_no_effect(self, name: str) -> bool:
        """Whether these are model inputs that differ, and in no such step a result does."""
        return name == INPUTS and self.quantities[name].first is not None and self.quantities[name].acting is None

    def made_before(self) -> list[str]:
        """The generators that differ before the first step and may have been drawn from until then."""
        names = [name for name in GENERATORS if self.knows_start(name)]
        differing = [name for name in names if self.left.generators[name] != self.right.generators[name]]
        return [name for name in differing if name not in self.left.untouched or name not in self.right.untouched]


def compared(left: Side, right: Side) -> SeriesDivergence:
    found = SeriesDivergence(left.series, right.series)
    one, other = left.series, right.series
    for name in GENERATORS:
        found.quantities[name].last = one.generators.get(name), other.generators.get(name)
    stop = min(one.count, other.count)
    for start in range(0, stop, BLOCK):
        end = min(start + BLOCK, stop)
        known_already = any(quantity.known for quantity in found.quantities.values())
        if known_already and one.records(start, end) == other.records(start, end):
            continue
        for a, b in zip(one.steps(start, end), other.steps(start, end), strict=True):
            _compare_step(found, a, b, (left, right))
    _compare_tables(found, stop)
    _compare_kept(found, stop, whole=left.whole and right.whole and left.asked == right.asked)
    if (
        one.count != other.count
        and (left.whole or one.count > other.count)
        and (right.whole or other.count > one.count)
    ):
        found.quantities[LENGTH].add(stop, one.count, other.count)
    return found


def _compare_step(found: SeriesDivergence, left: TrailStep, right: TrailStep, sides: tuple[Side, Side]) -> None:
    differing: set[str] = set()
    for name in PER_STEP:
        values = getattr(left, name), getattr(right, name)
        quantity = found.quantities[name]
        if name == BEFORE and found.seen == left.number - 1:
            last = found.quantities["parameters"].last
            values = before_of(left, last[0]), before_of(right, last[1])
        quantity.see(left.number, values)
        if values[0] != values[1] and not _is_excused(name, values, (left, right), sides):
            quantity.add(left.number, *values)
            differing.add(name)
    inputs = found.quantities[INPUTS]
    if INPUTS in differing and inputs.acting is None and not differing.isdisjoint(RESULTS):
        inputs.acting = left.number
    found.steps += bool(differing - {INPUTS})
    found.seen = left.number


def before_of(step: TrailStep, last: int | None) -> int | None:
    """The parameters that a step found: where they did not change, those that the step before left."""
    return last if step.before is None and step.unchanged else step.before


def _is_excused(
    name: str, values: tuple[int | None, int | None], steps: tuple[TrailStep, TrailStep], sides: tuple[Side, Side]
) -> bool:
    """Whether a side that does not know it has a reason that is no difference."""
    is_older = name == BUFFERS and any(side.series.format < trails.WITH_BUFFERS for side in sides)
    if name in (BEFORE, INPUTS) or is_older:
        return None in values  # not every step looks at them, nor did earlier trails
    not_asked = name == "gradients" and sides[0].asked != sides[1].asked
    return any(
        value is None and (name in step.unsteady or not side.whole or not_asked)
        for value, step, side in zip(values, steps, sides, strict=True)
    )


def _compare_tables(found: SeriesDivergence, stop: int) -> None:
    """The names, types and shapes of the tensors, and from which step on they are updated."""
    starts = sorted({0, *(first for side in (found.left, found.right) for first, _ in side.tables if first < stop)})
    for step in starts:
        tables = found.left.tensors(step), found.right.tensors(step)
        if tables[0] != tables[1] or found.left.kind != found.right.kind:
            quantity = found.quantities[TENSORS]
            quantity.add(step, None, None)
            quantity.tensors = quantity.tensors or _other_names(*tables)


def _other_names(left: list[TrailTensor], right: list[TrailTensor]) -> list[str]:
    known = {tensor.name: tensor for tensor in left}
    changed = [tensor.name for tensor in right if known.get(tensor.name) != tensor]
    names = {tensor.name for tensor in right}
    return changed + [tensor.name for tensor in left if tensor.name not in names]


def _compare_kept(found: SeriesDivergence, stop: int, *, whole: bool) -> None:
    """Name the tensors of the first steps that differ; and take in a step whose tensors differ though it does not."""
    kept = {*found.left.kept()}, {*found.right.kept()}
    if found.left.count == found.right.count and found.steps == 0 and kept[0] != kept[1] and whole:
        found.quantities[TENSORS].add(min(kept[0] ^ kept[1]), None, None)
    for step in sorted(kept[0] & kept[1]):
        if step >= stop:
            break
        differing = _kept_tensors(found, step)
        for name in OF_TENSORS:
            quantity = found.quantities[name]
            if differing is None or not _is_steady(found, step, name):
                continue
            if differing[name] and (quantity.first is None or step < quantity.first):
                quantity.count, quantity.first = quantity.count + 1, step
            if quantity.first == step:
                quantity.tensors = differing[name]


def _is_steady(found: SeriesDivergence, step: int, name: str) -> bool:
    steps = [*found.left.steps(step, step + 1), *found.right.steps(step, step + 1)]
    return all(getattr(one, name) is not None for one in steps)


def _kept_tensors(found: SeriesDivergence, step: int) -> dict[str, list[str]] | None:
    """The names of the tensors that differ in a step; None where one run has no digests of them."""
    left, right = found.left.digests(step), found.right.digests(step)
    if left is None or right is None or left.tensors != right.tensors:
        return None
    names = [tensor.name for tensor in left.tensors]
    both = {name: zip(names, getattr(left, name), getattr(right, name), strict=True) for name in OF_TENSORS}
    return {name: [tensor for tensor, one, other in both[name] if one != other] for name in OF_TENSORS}
