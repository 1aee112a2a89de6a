"""Finds where two series of a trail part: the first step in which each quantity differs, and how many differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reprokit.core.printable import listed
from reprokit.model.states import Switch
from reprokit.run_files import trails
from reprokit.run_files.trails import Series, TrailStep, TrailTensor
from reprokit.verify.verdict import same_then_ends, same_until

BLOCK = 4096  # steps compared as bytes first, and decoded only if these differ
GENERATORS = ("torch", "python", "numpy")
TENSORS, BEFORE, INPUTS, BUFFERS, LENGTH = "tensors", "before", "inputs", "buffers", "steps"
PER_STEP = (BEFORE, "batch", *GENERATORS, INPUTS, "loss", "gradients", "parameters", BUFFERS)
ORDER = (TENSORS, *PER_STEP, LENGTH)  # within a step, cause before effect
OF_TENSORS = ("gradients", "parameters")
RESULTS = ("loss", "gradients", "parameters", BUFFERS)  # quantities that model inputs affect
NEVER = 1 << 63  # later than any step

Point = tuple[int, int]  # a step, and the index of a quantity in ORDER
NAMED = 3  # tensors named in a sentence
LOOKED_BACK = 64  # steps searched for the last known parameters


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
    _compare_kept(diff, stop, whole=left.whole and right.whole and left.asked == right.asked and not is_aligned)
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
    for name in PER_STEP:
        values = getattr(left, name), getattr(right, name)
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
    diff.seen = left.number


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
    if name in (BEFORE, INPUTS):
        return None in values  # not recorded in every step
    not_asked = name == "gradients" and sides[0].asked != sides[1].asked
    return any(
        value is None and (name in step.unsteady or not side.whole or not_asked)
        for value, step, side in zip(values, steps, sides, strict=True)
    )


def _compare_tables(diff: SeriesDivergence, stop: int) -> None:
    """Compare names, types and shapes of the tensors, and from which step on they are updated."""
    starts = sorted({0, *(first for side in (diff.left, diff.right) for first, _ in side.tables if first < stop)})
    for step in starts:
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


def _compare_kept(diff: SeriesDivergence, stop: int, *, whole: bool) -> None:
    """Name the tensors that differ in the first steps; count steps in which only a tensor's digest differs."""
    kept = {*diff.left.kept()}, {*diff.right.kept()}
    if diff.left.count == diff.right.count and diff.steps == 0 and kept[0] != kept[1] and whole:
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


# Names of quantities in figures.
NAMES = {**dict.fromkeys(GENERATORS, "random state"), BEFORE: "parameters before", INPUTS: "model inputs"}
BOOSTING = ("xgboost", "lightgbm")  # frameworks whose steps have results only
_PLURAL = frozenset([TENSORS, BEFORE, INPUTS, "gradients", "parameters", BUFFERS])


def counted(steps: int) -> str:
    return f"{steps:,} step{'' if steps == 1 else 's'}"


def noun(diff: SeriesDivergence, name: str) -> str:
    if name == BEFORE:
        return "parameters before the step"
    if name == INPUTS:
        return NAMES[name]
    return f"random state of {_generator(diff, name)}" if name in GENERATORS else name


def _generator(diff: SeriesDivergence, name: str) -> str:
    return {"torch": diff.left.framework, "python": "Python", "numpy": "NumPy"}[name]


def place(diff: SeriesDivergence, name: str) -> str:
    """Describe a quantity that differs but is not the first to do so."""
    quantity = diff.quantities[name]
    if name == LENGTH:
        return f"{counted(diff.left.count)} against {counted(diff.right.count)}"
    stop = min(diff.left.count, diff.right.count)
    drawn = diff.step(name)
    if diff.is_idle(name):
        return "it differs from the start on; no step drew from it, so it is no cause"
    is_drawn_late = name in GENERATORS and quantity.first == 0 and drawn
    since = "from the start on, and is drawn from first" if is_drawn_late else "first"
    return f"{since} at step {drawn:,}{_tensor_names(quantity)}; in {quantity.count:,} of {counted(stop)}"


def _tensor_names(quantity: QuantityDivergence) -> str:
    return f" ({listed(quantity.tensors, NAMED)})" if quantity.tensors else ""


def sentence(diff: SeriesDivergence, name: str) -> str:
    """Describe where the runs part, in which quantity, what is equal there, and what follows from that."""
    quantity = diff.quantities[name]
    if name == LENGTH:
        return _length_words(diff)
    step = diff.step(name)
    but_for = ""
    if name == INPUTS and quantity.first != step:
        but_for = " but for model inputs that changed no result"
    elif quantity.first == 0:  # a generator that no step drew from before
        but_for = " but for generators that no step draws from"
    beginning = same_until(counted(step), step, but_for)
    subject, verb = noun(diff, name).partition(" of ")[0], "are" if name in _PLURAL else "is"
    parts = [f"{beginning} the {subject} {verb} the first to differ{_tensor_names(quantity)}"]
    is_known = name == TENSORS or None not in (quantity.left, quantity.right) or bool(quantity.tensors)
    parts += [cause_words(diff, name, step)] if is_known else _one_side_knows(quantity)
    parts += _what_follows(diff, name, step) + (_how_to_name(diff, name) if is_known else [])
    return "; ".join(parts)


def _length_words(diff: SeriesDivergence) -> str:
    counts = diff.left.count, diff.right.count
    side = "left" if counts[0] < counts[1] else "right"
    return same_then_ends(counted(min(counts)), side, counted(max(counts)))


def cause_words(diff: SeriesDivergence, name: str, step: int) -> str:
    """Describe what is equal in the step in which this quantity differs first, and where the cause is then."""
    if name == TENSORS:
        return "the optimizer, or the names, types or shapes of what it updates are others"
    if name == BEFORE:
        return (
            f"the cause is what gave them their values{_early_draws(diff)}"
            if step == 0
            else _cause_between_steps(diff, step)
        )
    if name == "batch":
        caveat = ", though the random states before it are equal" if step and _draws_equal(diff, step) else ""
        return f"the cause is in the data, their order or augmentation{caveat}{'' if step else _early_draws(diff)}"
    if name in GENERATORS:
        return _cause_of_random_state(diff, name)
    if name == INPUTS:
        return f"{_equal_there(diff, name)} the cause is in {_source_of_inputs(diff, step)}"
    if name == BUFFERS:
        return f"{_equal_there(diff, name)} the cause is what changes buffers: the forward computation, or the script"
    if diff.left.framework in BOOSTING:
        return "the cause is in the booster's data, settings or seed, or in how it computes: none of these is seen"
    return f"{_equal_there(diff, name)} the cause is in {_computation_words(diff, name, step)}"


def _cause_between_steps(diff: SeriesDivergence, step: int) -> str:
    """Describe the cause of parameters that differ from those that the previous update left."""
    last = "those that the step before left are equal, so " if _or_update(diff, step) == "" else ""
    return f"{last}the cause is what changes parameters between the steps"


def _source_of_inputs(diff: SeriesDivergence, step: int) -> str:
    """Describe where model inputs come from."""
    knows_batch = _are_known(diff, ["batch"])
    source = "what the script makes of the batch" if knows_batch else "the data or what is made of them"
    has_several_calls = any(trail_step.inputs_several for trail_step in _steps_of_both(diff, step))
    other_source = ", or in what another call of a model gave it" if has_several_calls else ""
    return f"{source} before the model gets it{other_source}{'' if step else _early_draws(diff)}"


def _steps_of_both(diff: SeriesDivergence, step: int) -> list[TrailStep]:
    """Return this step of both runs."""
    return [*diff.left.steps(step, step + 1), *diff.right.steps(step, step + 1)]


def _early_draws(diff: SeriesDivergence) -> str:
    """Describe generators that may have been drawn from before the first step."""
    names = " and ".join(_generator(diff, name) for name in diff.drawn_before_start())
    return f", perhaps by random numbers of {names}, which differed before the first step" if names else ""


def _cause_of_random_state(diff: SeriesDivergence, name: str) -> str:
    """Describe the cause of a random state that differs."""
    if all(diff.is_idle(other) for other in diff.differing):
        return "no step drew from it, and nothing else of the steps differs"
    draws = "another seed, or another number or order of random draws"
    others = [other for other in PER_STEP if other not in GENERATORS and diff.quantities[other].first is not None]
    if not others:
        return f"nothing else of the steps differs, as far as it is known: {draws}"
    first = min(others, key=diff.point)
    subject, step = noun(diff, first), diff.quantities[first].first
    verb = "follow" if first in _PLURAL else "follows"
    return f"the {subject} {verb} at step {step:,}: {draws}"


def _are_known(diff: SeriesDivergence, names: Sequence[str]) -> bool:
    return any(diff.quantities[name].known for name in names)


def _draws_equal(diff: SeriesDivergence, step: int) -> bool:
    """Return whether all known generators are equal until this step."""
    known_generators = [name for name in GENERATORS if diff.quantities[name].known]
    points = [diff.point(name)[0] for name in known_generators if diff.quantities[name].first is not None]
    return bool(known_generators) and all(point >= step for point in points)


def _is_equal(diff: SeriesDivergence, name: str, step: int) -> bool:
    """Return whether a quantity is known, and so equal, before the first difference; inputs in this very step."""
    if name != INPUTS:
        return diff.quantities[name].known
    inputs = {trail_step.inputs for trail_step in _steps_of_both(diff, step)}
    return len(inputs) == 1 and None not in inputs


def _equal_there(diff: SeriesDivergence, name: str) -> str:
    """Describe the quantities of the step that are known and equal, before this quantity."""
    step = diff.step(name)
    words = ("batch", INPUTS, "loss", "gradients", "parameters")
    earlier = [word for word in words if ORDER.index(word) < ORDER.index(name)]
    names = [NAMES.get(word, word) for word in earlier if _is_equal(diff, word, step)]
    if _draws_equal(diff, step + 1):
        names.insert(1 if "batch" in names else 0, "random state")
    if not names:
        return "nothing else of that step is known;"
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    parameters_before = "the parameters before it and " if diff.knows_before(step) else ""
    is_singular = not parameters_before and names in (["batch"], ["random state"], ["loss"])
    return f"{parameters_before}{listed} of that step {'is' if is_singular else 'are'} equal, so"


def _computation_words(diff: SeriesDivergence, name: str, step: int) -> str:
    unseen = _not_seen(diff, name, step)
    hidden = f"; not seen: {unseen}" if unseen else ""
    if name == "parameters" and _are_known(diff, ["gradients"]):
        return f"the update: the optimizer or its state{hidden}"
    if name == "loss":
        part = f"the forward computation{_or_update(diff, step)}: a non-deterministic operation, or state that it reads"
    elif name == "gradients":
        part = "the backward computation" if _are_known(diff, ["loss"]) else "forward or backward computation"
        part += ": a non-deterministic operation, or what changes gradients after it"
    else:
        part = "the forward or backward computation, or the optimizer: gradients were not recorded"
    return f"{part}{'' if step else _early_draws(diff)}{hidden}"


def _not_seen(diff: SeriesDivergence, name: str, step: int) -> str:
    """Return the inputs of a quantity's computation that have no digest."""
    unseen: list[str] = []
    if not diff.knows_before(step):
        unseen.append("the parameters before the step" if step else "the initial parameters")
    if name != "parameters":
        unseen += [] if _are_known(diff, [BUFFERS]) else ["buffers"]
        unseen += _not_seen_of_inputs(diff, name, step)
    return ", ".join(unseen)


def _not_seen_of_inputs(diff: SeriesDivergence, name: str, step: int) -> list[str]:
    batch = "" if _are_known(diff, ["batch"]) else "the batch, and "
    derived = f"{batch}what the script makes of {'it' if batch else 'the batch'}"
    if not _is_equal(diff, INPUTS, step):
        return [f"{derived} before the model gets it"]
    partial = (
        ["some of the model inputs"]
        if any(trail_step.inputs_partial for trail_step in _steps_of_both(diff, step))
        else []
    )
    return partial + ([f"{derived} for the loss"] if name == "loss" else [])


def _or_update(diff: SeriesDivergence, step: int) -> str:
    """Describe an earlier update as a possible cause, if parameters of the step before are unknown."""
    for number in range(step - 1, max(-1, step - 1 - LOOKED_BACK), -1):
        if all(side.parameters is not None for side in _steps_of_both(diff, number)):
            return "" if number == step - 1 else f", or in an update since step {number:,}"
    return ", or in an earlier update" if step else ""


def _one_side_knows(quantity: QuantityDivergence) -> list[str]:
    if (quantity.left is None) == (quantity.right is None):
        return []
    return [f"only the {'right' if quantity.left is None else 'left'} run has it"]


def _what_follows(diff: SeriesDivergence, name: str, step: int) -> list[str]:
    """Describe how many of the following steps differ."""
    following = min(diff.left.count, diff.right.count) - step
    if name == TENSORS or diff.steps == 0:
        return []
    length = f"; {_length_in_short(diff)}" if diff.left.count != diff.right.count else ""
    steps = min(diff.steps, following)  # an idle generator's state differs before, too
    return [f"{steps:,} of the {counted(following)} from there on differ{'s' if steps == 1 else ''}{length}"]


def _length_in_short(diff: SeriesDivergence) -> str:
    return f"the runs have {diff.left.count:,} and {counted(diff.right.count)}"


def _how_to_name(diff: SeriesDivergence, name: str) -> list[str]:
    if name not in OF_TENSORS or diff.quantities[name].tensors:
        return []
    keep = trails.MAX_KEPT
    hint = f"digests of single tensors are kept of the first and the last {keep} steps: end both runs right after it"
    return [f"which tensor is not known ({hint})"]
