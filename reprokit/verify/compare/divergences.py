"""Finds where two series of a trail part: for each quantity the first step that differs, and how many do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reprokit import trails
from reprokit.model.states import Switch
from reprokit.printable import listed
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
NAMED = 3  # tensors named in a sentence
LOOKED_BACK = 64  # steps, for the last parameters that are known


@dataclass
class QuantityDivergence:
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
class TrailSide:
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
    quantities: dict[str, QuantityDivergence] = field(
        default_factory=lambda: {name: QuantityDivergence() for name in ORDER}
    )

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
        """Return the step that is said of a quantity that differs."""
        first, (step, _) = self.quantities[name].first, self.point(name)
        return step if step != NEVER or first is None else first

    def knows_before(self, step: int) -> bool:
        """Return whether both runs say what the parameters were before a step."""
        for series in (self.left, self.right):
            *earlier, now = series.steps(max(0, step - 1), step + 1)
            if before_of(now, earlier[0].parameters if earlier else None) is None:
                return False
        return True

    def knows_start(self, name: str) -> bool:
        """Return whether both runs say what a generator's state was before the first step."""
        return name in self.left.generators and name in self.right.generators

    def is_idle(self, name: str) -> bool:
        """Return whether it is a generator that differs from the start on, and that no step draws from."""
        quantity = self.quantities[name]
        return name in GENERATORS and quantity.first == 0 and quantity.is_seen_moving and quantity.drawn is None

    def has_no_effect(self, name: str) -> bool:
        """Return whether these are model inputs that differ, and in no such step a result does."""
        return name == INPUTS and self.quantities[name].first is not None and self.quantities[name].acting is None

    def made_before(self) -> list[str]:
        """Return the generators that differ before the first step and may have been drawn from until then."""
        names = [name for name in GENERATORS if self.knows_start(name)]
        differing = [name for name in names if self.left.generators[name] != self.right.generators[name]]
        return [name for name in differing if name not in self.left.untouched or name not in self.right.untouched]


def compared(left: TrailSide, right: TrailSide) -> SeriesDivergence:
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
    is_aligned = bool(one.skipped or other.skipped)  # then other steps are the first that are kept
    _compare_kept(found, stop, whole=left.whole and right.whole and left.asked == right.asked and not is_aligned)
    if (
        one.count != other.count
        and (left.whole or one.count > other.count)
        and (right.whole or other.count > one.count)
    ):
        found.quantities[LENGTH].add(stop, one.count, other.count)
    return found


def _compare_step(
    found: SeriesDivergence, left: TrailStep, right: TrailStep, sides: tuple[TrailSide, TrailSide]
) -> None:
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
    """Return the parameters that a step found: where they did not change, those that the step before left."""
    return last if step.before is None and step.unchanged else step.before


def _is_excused(
    name: str,
    values: tuple[int | None, int | None],
    steps: tuple[TrailStep, TrailStep],
    sides: tuple[TrailSide, TrailSide],
) -> bool:
    """Return whether a side that does not know it has a reason that is no difference."""
    if name in (BEFORE, INPUTS):
        return None in values  # not every step looks at them
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
    """Return the names of the tensors that differ in a step; None where one run has no digests of them."""
    left, right = found.left.digests(step), found.right.digests(step)
    if left is None or right is None or left.tensors != right.tensors:
        return None
    names = [tensor.name for tensor in left.tensors]
    both = {name: zip(names, getattr(left, name), getattr(right, name), strict=True) for name in OF_TENSORS}
    return {name: [tensor for tensor, one, other in both[name] if one != other] for name in OF_TENSORS}


# Of quantities, in figures.
NAMES = {**dict.fromkeys(GENERATORS, "random state"), BEFORE: "parameters before", INPUTS: "model inputs"}
BOOSTING = ("xgboost", "lightgbm")  # of whose steps only results are known
_PLURAL = frozenset([TENSORS, BEFORE, INPUTS, "gradients", "parameters", BUFFERS])


def counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def noun(found: SeriesDivergence, name: str) -> str:
    if name == BEFORE:
        return "parameters before the step"
    if name == INPUTS:
        return NAMES[name]
    return f"random state of {_generator(found, name)}" if name in GENERATORS else name


def _generator(found: SeriesDivergence, name: str) -> str:
    return {"torch": found.left.framework, "python": "Python", "numpy": "NumPy"}[name]


def place(found: SeriesDivergence, name: str) -> str:
    """Of a quantity that is not the first to part."""
    quantity = found.quantities[name]
    if name == LENGTH:
        return f"{counted(found.left.count)} against {counted(found.right.count)}"
    stop = min(found.left.count, found.right.count)
    drawn = found.step(name)
    if found.is_idle(name):
        return "it differs from the start on; no step drew from it, so it is no cause"
    is_drawn_late = name in GENERATORS and quantity.first == 0 and drawn
    since = "from the start on, and is drawn from first" if is_drawn_late else "first"
    return f"{since} at step {drawn:,}{_named(quantity)}; in {quantity.count:,} of {counted(stop)}"


def _named(quantity: QuantityDivergence) -> str:
    return f" ({listed(quantity.tensors, NAMED)})" if quantity.tensors else ""


def sentence(found: SeriesDivergence, name: str) -> str:
    """Return where the runs part, by what, what is the same there, and what follows from that."""
    quantity = found.quantities[name]
    if name == LENGTH:
        return _length(found)
    step = found.step(name)
    beginning = f"identical for {counted(step)}; at step {step:,}" if step else "at step 0, the first,"
    if name == INPUTS and quantity.first != step:
        beginning = f"identical for {counted(step)} but for model inputs that changed no result; at step {step:,}"
    elif step and quantity.first == 0:  # a generator that nobody drew from until then
        beginning = f"identical for {counted(step)} but for generators that no step draws from; at step {step:,}"
    what, verb = noun(found, name).partition(" of ")[0], "are" if name in _PLURAL else "is"
    parts = [f"{beginning} the {what} {verb} the first to differ{_named(quantity)}"]
    is_known = name == TENSORS or None not in (quantity.left, quantity.right) or bool(quantity.tensors)
    parts += [_cause(found, name, step)] if is_known else _one_side_knows(quantity)
    parts += _after(found, name, step) + (_how_to_name(found, name) if is_known else [])
    return "; ".join(parts)


def _length(found: SeriesDivergence) -> str:
    counts = found.left.count, found.right.count
    side = "left" if counts[0] < counts[1] else "right"
    return f"identical for {counted(min(counts))}, then the {side} run ends; the other has {counted(max(counts))}"


def _cause(found: SeriesDivergence, name: str, step: int) -> str:
    if name == TENSORS:
        return "the optimizer, or the names, types or shapes of what it updates are others"
    if name == BEFORE:
        return f"the cause is what gave them their values{_made_before(found)}" if step == 0 else _between(found, step)
    if name == "batch":
        before = ", though the random states before it are equal" if step and _draws_equal(found, step) else ""
        return f"the cause is in the data, their order or augmentation{before}{'' if step else _made_before(found)}"
    if name in GENERATORS:
        return _drawn(found, name)
    if name == INPUTS:
        return f"{_equal_there(found, name)} the cause is in {_made_of_it(found, step)}"
    if name == BUFFERS:
        return f"{_equal_there(found, name)} the cause is what changes buffers: the forward computation, or the script"
    if found.left.framework in BOOSTING:
        return "the cause is in the booster's data, settings or seed, or in how it computes: none of these is seen"
    return f"{_equal_there(found, name)} the cause is in {_where(found, name, step)}"


def _between(found: SeriesDivergence, step: int) -> str:
    """Of parameters that are others than the update before left behind."""
    last = "those that the step before left are equal, so " if _before(found, step) == "" else ""
    return f"{last}the cause is what changes parameters between the steps"


def _made_of_it(found: SeriesDivergence, step: int) -> str:
    """Return where model inputs come from."""
    is_made = _are_known(found, ["batch"])
    source = "what the script makes of the batch" if is_made else "the data or what is made of them"
    several = any(at.inputs_several for at in _both(found, step))
    other = ", or in what another call of a model gave it" if several else ""
    return f"{source} before the model gets it{other}{'' if step else _made_before(found)}"


def _both(found: SeriesDivergence, step: int) -> list[TrailStep]:
    """Return this step of either run."""
    return [*found.left.steps(step, step + 1), *found.right.steps(step, step + 1)]


def _made_before(found: SeriesDivergence) -> str:
    """Generators that may have been drawn from before the first step."""
    names = " and ".join(_generator(found, name) for name in found.made_before())
    return f", perhaps by random numbers of {names}, which differed before the first step" if names else ""


def _drawn(found: SeriesDivergence, name: str) -> str:
    """Of a random state."""
    if all(found.is_idle(other) for other in found.differing):
        return "no step drew from it, and nothing else of the steps differs"
    draws = "another seed, or another number or order of random draws"
    others = [other for other in PER_STEP if other not in GENERATORS and found.quantities[other].first is not None]
    if not others:
        return f"nothing else of the steps differs, as far as it is known: {draws}"
    first = min(others, key=found.point)
    what, step = noun(found, first), found.quantities[first].first
    verb = "follow" if first in _PLURAL else "follows"
    return f"the {what} {verb} at step {step:,}: {draws}"


def _are_known(found: SeriesDivergence, names: Sequence[str]) -> bool:
    return any(found.quantities[name].known for name in names)


def _draws_equal(found: SeriesDivergence, step: int) -> bool:
    """Return whether the generators that matter are the same until this step."""
    mattering = [name for name in GENERATORS if found.quantities[name].known]
    points = [found.point(name)[0] for name in mattering if found.quantities[name].first is not None]
    return bool(mattering) and all(point >= step for point in points)


def _is_equal(found: SeriesDivergence, name: str, step: int) -> bool:
    """Whether a quantity before the first to differ is known, and so the same; of model inputs at this very step."""
    if name != INPUTS:
        return found.quantities[name].known
    inputs = {at.inputs for at in _both(found, step)}
    return len(inputs) == 1 and None not in inputs


def _equal_there(found: SeriesDivergence, name: str) -> str:
    """Return what of the step is known and the same, before this quantity."""
    step = found.step(name)
    words = ("batch", INPUTS, "loss", "gradients", "parameters")
    before = [word for word in words if ORDER.index(word) < ORDER.index(name)]
    names = [NAMES.get(word, word) for word in before if _is_equal(found, word, step)]
    if _draws_equal(found, step + 1):
        names.insert(1 if "batch" in names else 0, "random state")
    if not names:
        return "nothing else of that step is known;"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    found_before = "the parameters before it and " if found.knows_before(step) else ""
    is_one = not found_before and names in (["batch"], ["random state"], ["loss"])
    return f"{found_before}{listed} of that step {'is' if is_one else 'are'} equal, so"


def _where(found: SeriesDivergence, name: str, step: int) -> str:
    unseen = _not_seen(found, name, step)
    hidden = f"; not seen: {unseen}" if unseen else ""
    if name == "parameters" and _are_known(found, ["gradients"]):
        return f"the update: the optimizer or its state{hidden}"
    if name == "loss":
        part = f"the forward computation{_before(found, step)}: a non-deterministic operation, or state that it reads"
    elif name == "gradients":
        part = "the backward computation" if _are_known(found, ["loss"]) else "forward or backward computation"
        part += ": a non-deterministic operation, or what changes gradients after it"
    else:
        part = "the forward or backward computation, or the optimizer: gradients were not recorded"
    return f"{part}{'' if step else _made_before(found)}{hidden}"


def _not_seen(found: SeriesDivergence, name: str, step: int) -> str:
    """Return what goes into the computation of a quantity that no digest tells."""
    unseen: list[str] = []
    if not found.knows_before(step):
        unseen.append("the parameters before the step" if step else "the initial parameters")
    if name != "parameters":
        unseen += [] if _are_known(found, [BUFFERS]) else ["buffers"]
        unseen += _not_seen_of_inputs(found, name, step)
    return ", ".join(unseen)


def _not_seen_of_inputs(found: SeriesDivergence, name: str, step: int) -> list[str]:
    batch = "" if _are_known(found, ["batch"]) else "the batch, and "
    made = f"{batch}what the script makes of {'it' if batch else 'the batch'}"
    if not _is_equal(found, INPUTS, step):
        return [f"{made} before the model gets it"]
    partial = ["some of the model inputs"] if any(at.inputs_partial for at in _both(found, step)) else []
    return partial + ([f"{made} for the loss"] if name == "loss" else [])


def _before(found: SeriesDivergence, step: int) -> str:
    """Where the parameters of the step before are not known, as each step's are not: an update may be the cause."""
    for number in range(step - 1, max(-1, step - 1 - LOOKED_BACK), -1):
        if all(side.parameters is not None for side in _both(found, number)):
            return "" if number == step - 1 else f", or in an update since step {number:,}"
    return ", or in an earlier update" if step else ""


def _one_side_knows(quantity: QuantityDivergence) -> list[str]:
    if (quantity.left is None) == (quantity.right is None):
        return []
    return [f"only the {'right' if quantity.left is None else 'left'} run has it"]


def _after(found: SeriesDivergence, name: str, step: int) -> list[str]:
    """Return how much of what follows differs."""
    following = min(found.left.count, found.right.count) - step
    if name == TENSORS or found.steps == 0:
        return []
    length = f"; {_length_in_short(found)}" if found.left.count != found.right.count else ""
    steps = min(found.steps, following)  # the state of an idle generator differs before, too
    return [f"{steps:,} of the {counted(following)} from there on differ{'s' if steps == 1 else ''}{length}"]


def _length_in_short(found: SeriesDivergence) -> str:
    return f"the runs have {found.left.count:,} and {counted(found.right.count)}"


def _how_to_name(found: SeriesDivergence, name: str) -> list[str]:
    if name not in OF_TENSORS or found.quantities[name].tensors:
        return []
    keep = trails.MAX_KEPT
    hint = f"digests of single tensors are kept of the first and the last {keep} steps: end both runs right after it"
    return [f"which tensor is not known ({hint})"]
