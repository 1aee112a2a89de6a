"""Compares the trails of two runs: the first step and the first quantity, in causal order, in which they part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reprokit import trails
from reprokit.difference import SIDES, Difference, Role, Verdict, group, information, missing
from reprokit.rundir import RunDirectory
from reprokit.trails import Trail
from reprokit.verify.compare.divergences import (
    GENERATORS,
    INPUTS,
    LENGTH,
    NAMES,
    NEVER,
    ORDER,
    PER_STEP,
    Point,
    SeriesDivergence,
    TrailSide,
    compared,
    counted,
    noun,
    place,
    sentence,
)
from reprokit.verify.compare.match import RunPair
from reprokit.verify.compare.resumption import Resumption
from reprokit.verify.compare.series_leaves import judged
from reprokit.verify.read.scan import natural

LISTED = 100  # tensors in figures

Key = tuple[str, str]  # process, series


class TrailPair:
    """The trails of two runs."""

    def __init__(self, runs: RunPair):
        self._runs, self._accepted = runs.directories, runs.accepted("trail")
        self._trails = [list(trails.read(run)) for run in runs.directories]
        self.resumed: dict[Key, Resumption] = {}  # where one run goes on in the middle of the other
        self.idle: set[Key] = set()  # process and generator that differ, though no step drew from them

    @property
    def has_steps(self) -> bool:
        """Whether any step was seen in either."""
        return any(series.count for found in self._trails for trail in found for series in trail.series)

    def compare(self) -> Difference:
        """One leaf a series that is the same; of others a leaf each quantity, causes before effects."""
        both = sides(self._runs[0], self._trails[0]), sides(self._runs[1], self._trails[1])
        if any(both) and not all(both):
            return group("trail", (_one_sided(self._runs, bool(both[0])),))
        return judged(self._compare(*both), self._accepted)

    def _compare(self, *sides: Mapping[Key, TrailSide]) -> Difference:
        parted: list[tuple[Point, Difference]] = []
        others: list[Difference] = []
        drawn: set[Key] = set()
        for key in sorted({*sides[0], *sides[1]}, key=lambda key: (natural(key[0]), natural(key[1]))):
            left, right = sides[0].get(key), sides[1].get(key)
            if left is None or right is None:
                others.append(_missing(key, left, right))
                continue
            resumed = Resumption.find(left, right)
            found = compared(left, right) if resumed is None else resumed.compared(left, right)
            if resumed is not None:
                self.resumed[key] = resumed
                parted += [] if found.differing else [((NEVER, 0), _resumption(key, resumed, found))]
            for name in set(GENERATORS).intersection(found.differing):
                (self.idle if found.is_idle(name) else drawn).add((key[0], name))
            if found.differing:
                parted.append((found.point(found.differing[0]), _parted(key, found, resumed)))
            else:
                others += [_same(key, found), *_without_effect(key, found)]
        self.idle -= drawn
        parted.sort(key=lambda one: one[0])
        return group("trail", tuple([node for _, node in parted] + others), _summary(parted, others))

    def notes(self) -> Iterator[str]:
        """Trails that end before their training did."""
        for found, side in zip(self._trails, SIDES, strict=True):
            for trail in found:
                if trail.gave_up or trail.lost:
                    why = trail.gave_up or "its file could not grow"
                    yield f"the {side} run's trail of process {trail.process} lacks {counted(trail.lost)}: {why}"


def sides(run: RunDirectory, read: Sequence[Trail]) -> dict[Key, TrailSide]:
    """Return the series of a run's trails, by process and name."""
    found = {}
    for trail in read:
        process = trail.process if not trail.incarnation else f"{trail.process} (start {trail.incarnation + 1})"
        whole = run.run.trails is not None and not trail.gave_up
        found.update({(process, series.name): TrailSide(series, whole, run.run.trail) for series in trail.series})
    return found


def _one_sided(runs: tuple[RunDirectory, RunDirectory], of_left: bool) -> Difference:
    """Only one run has trails: no difference where the other was asked not to keep any."""
    texts = ("recorded", "") if of_left else ("", "recorded")
    without, side = (runs[1], "right") if of_left else (runs[0], "left")
    trail = without.run.trail
    if trail is not None and not trail.is_on:
        return information("trails", *texts, f"the {side} run has no trail ({trail.why}): its steps cannot be compared")
    return missing("trails", *texts, f"only the {'left' if of_left else 'right'} run recorded a trail")


def _missing(key: Key, left: TrailSide | None, right: TrailSide | None) -> Difference:
    texts = ["" if side is None else counted(side.series.count) for side in (left, right)]
    return missing(_title("trail", key), texts[0], texts[1])


def _title(what: str, key: Key) -> str:
    return f"{what} of {key[1]} of process {key[0]}"


def _same(key: Key, found: SeriesDivergence) -> Difference:
    text = counted(min(found.left.count, found.right.count))
    known = [name for name in ORDER if found.quantities[name].known]
    figures = {"steps": [found.left.count, found.right.count], "known": known}
    left, right = counted(found.left.count), counted(found.right.count)
    if left != right:  # of which one was cut off
        return information(_title("trail", key), left, right, f"identical for {text}, as far as both go")
    return Difference(_title("trail", key), Verdict.IDENTICAL, left, right, figures=figures)


def _without_effect(key: Key, found: SeriesDivergence) -> Iterator[Difference]:
    """Model inputs that differ in steps whose results do not: no difference of the training's."""
    inputs = found.quantities[INPUTS]
    if found.has_no_effect(INPUTS):
        where = f"first at step {inputs.first:,}, in {counted(inputs.count)}"
        detail = f"they differ, {where}; no result of these steps does, so they are no cause"
        texts = [_text(INPUTS, value) for value in (inputs.left, inputs.right)]
        yield information(_title(noun(found, INPUTS), key), texts[0], texts[1], detail)


def _summary(parted: Sequence[tuple[Point, Difference]], others: Sequence[Difference]) -> str:
    """Return what the whole category says where series differ."""
    if not parted:
        return ""
    more = len(parted) - 1 + sum(1 for other in others if other.verdict.differs)
    also = (
        f" (and {more} more optimizer{'' if more == 1 else 's'} or process{'' if more == 1 else 'es'})" if more else ""
    )
    first = parted[0][1].first()
    return f"{first.detail}{also}" if first is not None else ""


def _resumption(key: Key, resumed: Resumption, found: SeriesDivergence) -> Difference:
    """Return what is said where one run goes on in the middle of the other, and nothing else differs."""
    count = min(found.left.count, found.right.count)
    detail = f"{_title('trail', key)}: {resumed.words}; all {counted(count)} from there on are identical"
    texts = resumed.texts
    return Difference(_title("resumption", key), Verdict.DIFFERENT, *texts, detail, is_sentence=True)


def _parted(key: Key, found: SeriesDivergence, resumed: Resumption | None) -> Difference:
    """Return a group of the quantities, in the order in which they part."""
    names = found.differing
    leaves = [_leaf(key, found, name, is_first=name == names[0]) for name in names]
    equal = [name for name in PER_STEP if found.quantities[name].first is None]
    if resumed is not None:
        leaves.append(information(_title("resumption", key), *resumed.texts, resumed.words))
    leaves += [*(_equal(key, found, name) for name in equal), *_without_effect(key, found)]
    return group(_title("trail", key), tuple(leaves), leaves[0].detail)


def _equal(key: Key, found: SeriesDivergence, name: str) -> Difference:
    title = _title(noun(found, name), key)
    if not found.quantities[name].known:
        return Difference(title, Verdict.NOT_RECORDED)
    text = counted(min(found.left.count, found.right.count))
    return Difference(title, Verdict.IDENTICAL, text, text)


def _leaf(key: Key, found: SeriesDivergence, name: str, *, is_first: bool) -> Difference:
    quantity, title = found.quantities[name], _title(noun(found, name), key)
    meaning = sentence(found, name) if is_first else place(found, name)
    texts = [_text(name, value) for value in (quantity.left, quantity.right)]
    return Difference(
        title,
        Verdict.DIFFERENT,
        texts[0],
        texts[1],
        f"{title}: {meaning}",
        figures=_figures(found, name),
        is_sentence=True,
        lacking=None if name != LENGTH else "left" if found.left.count < found.right.count else "right",
        role=Role.IDLE if found.is_idle(name) else Role.OWN,
    )


def _text(name: str, value: int | None) -> str:
    if value is None:
        return ""
    return counted(value) if name == LENGTH else f"{value:016x}"


def _figures(found: SeriesDivergence, name: str) -> dict[str, Any]:
    quantity = found.quantities[name]
    tensors = quantity.tensors or []
    return {
        "step": found.step(name),
        "quantity": NAMES.get(name, name),
        **({"generator": found.left.framework if name == "torch" else name} if name in GENERATORS else {}),
        "tensor": tensors[0] if tensors else None,
        "tensors": tensors[:LISTED],
        "steps": [found.left.count, found.right.count],
        "differing_steps": quantity.count,
    }


def is_before(trail: Difference, step: int | None) -> bool:
    """Whether the trail differs before that step."""
    first = trail.first()
    return first is not None and step is not None and bool(first.figures.get("step", step) < step)


def is_after(trail: Difference, runs: RunPair) -> bool:
    """Whether losses differ at an earlier step than the trail does; those of which there is one a step at least."""
    first = trail.first()
    if first is None or "step" not in first.figures:
        return False
    step, count = first.figures["step"], min(first.figures["steps"])
    pairs = (pair for pair in runs.of("loss") if pair.left is not None and pair.left.count >= count)
    losses = [pair.position for pair in pairs if pair.position is not None]
    return bool(losses) and min(losses) < step
