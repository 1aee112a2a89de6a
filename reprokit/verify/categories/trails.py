"""Compares the trails of two runs: finds the first step, and the first quantity in causal order, that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reprokit.core.difference import SIDES, Difference, Role, Verdict, group, information, missing
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.run_files.trails import Trail
from reprokit.verify.categories.divergence_words import NAMES, counted, noun, place, sentence
from reprokit.verify.categories.divergences import (
    GENERATORS,
    INPUTS,
    LENGTH,
    NEVER,
    ORDER,
    PER_STEP,
    Point,
    SeriesDivergence,
    TrailSide,
    compared,
)
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.resumption import Resumption
from reprokit.verify.categories.series_leaves import judged
from reprokit.verify.read.scan import natural
from reprokit.verify.verdict import each_step_compared, same_as_far, same_from_there

LISTED = 100  # tensors listed in figures

Key = tuple[str, str]  # process, series


class TrailPair:
    """The trails of two runs."""

    def __init__(self, runs: RunPair):
        self._runs, self._accepted = runs.directories, runs.accepted("trail")
        self._trails = [list(trails.read(run)) for run in runs.directories]
        self.resumed: dict[Key, Resumption] = {}  # series in which one run resumes the other
        self.idle: set[Key] = set()  # process and generator that differ, although no step drew from them

    @property
    def has_steps(self) -> bool:
        """Return whether either run recorded a step."""
        return any(series.count for trails_of_run in self._trails for trail in trails_of_run for series in trail.series)

    @property
    def every(self) -> int:
        """Return of how many steps the trails of at least one run have one; 1 for each."""
        return max(map(trails.longest_stride, self._trails))

    def compare(self) -> Difference:
        """Return a leaf for each equal series; for others a leaf for each quantity, causes before effects."""
        sides_of_runs = sides(self._runs[0], self._trails[0]), sides(self._runs[1], self._trails[1])
        if any(sides_of_runs) and not all(sides_of_runs):
            return group("trail", (_recorded_once(self._runs, bool(sides_of_runs[0])),))
        return judged(self._compare(*sides_of_runs), self._accepted)

    def _compare(self, *sides: Mapping[Key, TrailSide]) -> Difference:
        differing: list[tuple[Point, Difference]] = []
        equal: list[Difference] = []
        drawn_from: set[Key] = set()
        for key in sorted({*sides[0], *sides[1]}, key=lambda key: (natural(key[0]), natural(key[1]))):
            left, right = sides[0].get(key), sides[1].get(key)
            if left is None or right is None:
                equal.append(_missing(key, left, right))
                continue
            resumed = Resumption.find(left, right)
            diff = compared(left, right) if resumed is None else resumed.compared(left, right)
            if resumed is not None:
                self.resumed[key] = resumed
                differing += [] if diff.differing else [((NEVER, 0), _resumption(key, resumed, diff))]
            for name in set(GENERATORS).intersection(diff.differing):
                (self.idle if diff.is_idle(name) else drawn_from).add((key[0], name))
            if diff.differing:
                differing.append((diff.point(diff.differing[0]), _difference_group(key, diff, resumed)))
            else:
                equal += [_same_leaf(key, diff), *_without_effect(key, diff)]
        self.idle -= drawn_from
        differing.sort(key=lambda item: item[0])
        return group("trail", tuple([leaf for _, leaf in differing] + equal), _summary(differing, equal))

    def notes(self) -> Iterator[str]:
        """Yield notes on trails that end before their training, or passed over steps."""
        if self.every > 1:
            yield each_step_compared(self.every)
        for trails_of_run, side in zip(self._trails, SIDES, strict=True):
            for trail in trails_of_run:
                if trail.gave_up or trail.lost:
                    reason = trail.gave_up or "its file could not grow"
                    yield f"the {side} run's trail of process {trail.process} lacks {counted(trail.lost)}: {reason}"


def sides(run: RunDirectory, trails_of_run: Sequence[Trail]) -> dict[Key, TrailSide]:
    """Return the series of a run's trails by process and name."""
    result = {}
    for trail in trails_of_run:
        process = trail.process if not trail.incarnation else f"{trail.process} (start {trail.incarnation + 1})"
        is_whole = run.run.trails is not None and not trail.gave_up
        result.update({(process, series.name): TrailSide(series, is_whole, run.run.trail) for series in trail.series})
    return result


def _recorded_once(runs: tuple[RunDirectory, RunDirectory], of_left: bool) -> Difference:
    """Return the leaf where only one run has trails: no difference if the other was told to keep none."""
    texts = ("recorded", "") if of_left else ("", "recorded")
    other_run, side = (runs[1], "right") if of_left else (runs[0], "left")
    trail = other_run.run.trail
    if trail is not None and not trail.is_on:
        return information("trails", *texts, f"the {side} run has no trail ({trail.why}): its steps cannot be compared")
    return missing("trails", *texts, f"only the {'left' if of_left else 'right'} run recorded a trail")


def _missing(key: Key, left: TrailSide | None, right: TrailSide | None) -> Difference:
    texts = ["" if side is None else counted(side.series.count) for side in (left, right)]
    return missing(_title("trail", key), texts[0], texts[1])


def _title(kind: str, key: Key) -> str:
    return f"{kind} of {key[1]} of process {key[0]}"


def _same_leaf(key: Key, diff: SeriesDivergence) -> Difference:
    text = counted(min(diff.left.count, diff.right.count))
    known_quantities = [name for name in ORDER if diff.quantities[name].known]
    figures = {"steps": [diff.left.count, diff.right.count], "known": known_quantities, "every": diff.every}
    left, right = counted(diff.left.count), counted(diff.right.count)
    if left != right:  # one of them was cut off
        return replace(information(_title("trail", key), left, right, same_as_far(text)), figures=figures)
    if diff.every > 1:
        left = right = f"one in {diff.every} of {left}"
    return Difference(_title("trail", key), Verdict.IDENTICAL, left, right, figures=figures)


def _without_effect(key: Key, diff: SeriesDivergence) -> Iterator[Difference]:
    """Yield a leaf for model inputs that differ only in steps with equal results: no difference of the training."""
    inputs = diff.quantities[INPUTS]
    if diff.has_no_effect(INPUTS):
        where = f"first at step {inputs.first:,}, in {counted(inputs.count)}"
        detail = f"they differ, {where}; no result of these steps does, so they are no cause"
        texts = [_text(INPUTS, value) for value in (inputs.left, inputs.right)]
        yield information(_title(noun(diff, INPUTS), key), texts[0], texts[1], detail)


def _summary(differing: Sequence[tuple[Point, Difference]], equal: Sequence[Difference]) -> str:
    """Return the sentence for the whole category if series differ."""
    if not differing:
        return ""
    more = len(differing) - 1 + sum(1 for other in equal if other.verdict.differs)
    addition = (
        f" (and {more} more optimizer{'' if more == 1 else 's'} or process{'' if more == 1 else 'es'})" if more else ""
    )
    first = differing[0][1].first()
    return f"{first.detail}{addition}" if first is not None else ""


def _resumption(key: Key, resumed: Resumption, diff: SeriesDivergence) -> Difference:
    """Return the leaf for a run that resumes the other and is identical from there on."""
    count = min(diff.left.count, diff.right.count)
    detail = f"{_title('trail', key)}: {resumed.words}; {same_from_there(counted(count))}"
    texts = resumed.texts
    return Difference(_title("resumption", key), Verdict.DIFFERENT, *texts, detail, is_sentence=True)


def _difference_group(key: Key, diff: SeriesDivergence, resumed: Resumption | None) -> Difference:
    """Return a group of the quantities, in the order in which they part."""
    names = diff.differing
    leaves = [_leaf(key, diff, name, is_first=name == names[0]) for name in names]
    equal = [name for name in PER_STEP if diff.quantities[name].first is None]
    if resumed is not None:
        leaves.append(information(_title("resumption", key), *resumed.texts, resumed.words))
    leaves += [*(_equal_leaf(key, diff, name) for name in equal), *_without_effect(key, diff)]
    return group(_title("trail", key), tuple(leaves), leaves[0].detail)


def _equal_leaf(key: Key, diff: SeriesDivergence, name: str) -> Difference:
    title = _title(noun(diff, name), key)
    if not diff.quantities[name].known:
        return Difference(title, Verdict.NOT_RECORDED)
    text = counted(min(diff.left.count, diff.right.count))
    return Difference(title, Verdict.IDENTICAL, text, text)


def _leaf(key: Key, diff: SeriesDivergence, name: str, *, is_first: bool) -> Difference:
    quantity, title = diff.quantities[name], _title(noun(diff, name), key)
    meaning = sentence(diff, name) if is_first else place(diff, name)
    texts = [_text(name, value) for value in (quantity.left, quantity.right)]
    return Difference(
        title,
        Verdict.DIFFERENT,
        texts[0],
        texts[1],
        f"{title}: {meaning}",
        figures=_figures(diff, name),
        is_sentence=True,
        lacking=None if name != LENGTH else "left" if diff.left.count < diff.right.count else "right",
        role=Role.IDLE if diff.is_idle(name) else Role.OWN,
    )


def _text(name: str, value: int | None) -> str:
    if value is None:
        return ""
    return counted(value) if name == LENGTH else f"{value:016x}"


def _figures(diff: SeriesDivergence, name: str) -> dict[str, Any]:
    quantity = diff.quantities[name]
    tensors = quantity.tensors or []
    return {
        "step": diff.step(name),
        "quantity": NAMES.get(name, name),
        **({"generator": diff.left.framework if name == "torch" else name} if name in GENERATORS else {}),
        "tensor": tensors[0] if tensors else None,
        "tensors": tensors[:LISTED],
        "steps": [diff.left.count, diff.right.count],
        "differing_steps": quantity.count,
    }


def is_before(trail: Difference, step: int | None) -> bool:
    """Return whether the trail differs before that step."""
    first = trail.first()
    return first is not None and step is not None and bool(first.figures.get("step", step) < step)


def is_after(trail: Difference, runs: RunPair) -> bool:
    """Return whether losses, recorded at least once per step, differ at an earlier step than the trail."""
    first = trail.first()
    if first is None or "step" not in first.figures:
        return False
    step, count = first.figures["step"], min(first.figures["steps"])
    pairs = (pair for pair in runs.of("loss") if pair.left is not None and pair.left.count >= count)
    losses = [pair.position for pair in pairs if pair.position is not None]
    return bool(losses) and min(losses) < step
