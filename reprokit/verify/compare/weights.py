"""Compares the weights: digests at each epoch, tensor by tensor at the end, and optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.difference import Difference, Verdict, compared, group, missing
from reprokit.verify.compare.match import Raw, RunPair, SeriesPair
from reprokit.verify.compare.processes import not_told
from reprokit.verify.compare.series_leaves import LinePoint, LineWording, at_end, judged, leaf, numbered
from reprokit.verify.read.metric_lines import END_WEIGHTS


def compare(runs: RunPair) -> Difference:
    """Epochs before the end, as a difference goes on from there; then the number of steps."""
    children = [leaf(pair, _TRAIL) for pair in runs.of("weights")]
    children += [not_told(runs, pair, _end(pair)) for pair in runs.of(END_WEIGHTS)]
    children += [not_told(runs, pair, leaf(pair, _STEPS)) for pair in runs.of("optimizer")]
    return judged(group("weights", tuple(children)), runs.accepted("weights"))


def _end(pair: SeriesPair) -> Difference:
    """One object at the end: a group of its tensors where they are known."""
    summary = leaf(pair, _END)
    if pair.left is None or pair.right is None or pair.left.count != 1 or pair.right.count != 1:
        return summary
    left, right = pair.left.last or {}, pair.right.last or {}
    if not (left.get("tensors") and right.get("tensors")):
        return summary
    head = Difference("digest", summary.judged, summary.left, summary.right)
    return group(summary.name, (*_tensors(left, right, pair.key.name), head), summary.detail)


def _tensors(left: Raw, right: Raw, owner: str) -> Iterator[Difference]:
    """One leaf a tensor, in the order in which the model names them."""
    sides = [{tensor[0]: tensor for tensor in line["tensors"]} for line in (left, right)]
    for name in [*sides[0], *(name for name in sides[1] if name not in sides[0])]:
        one, other = sides[0].get(name), sides[1].get(name)
        if one is None or other is None:
            yield missing(name, _tensor(one), _tensor(other))
            continue
        what = "shape or type" if one[1:3] != other[1:3] else "values"
        yield compared(name, _tensor(one), _tensor(other), f"{owner} has other {what} there")


def _tensor(tensor: list[object] | None) -> str:
    """Type, shape and digest of one tensor; its place in the line is fixed by the format."""
    if tensor is None:
        return ""
    _, dtype, shape, digest = tensor
    return f"{dtype} {shape} {digest}"


def _trail_point(left: Raw, right: Raw, position: int) -> LinePoint:
    where = numbered("epoch")(left, position)
    if left.get("epoch") != right.get("epoch"):
        return LinePoint(f"digest {position + 1}", where, numbered("epoch")(right, position))
    if left.get("epoch") != position:  # as where each of several loaders counts its own
        where = f"{where} (digest {position + 1})"
    return LinePoint(where, left["digest"], right["digest"])


def _end_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """Return the first tensor that differs, or else the digest."""
    for child in _tensors(left, right, "") if left.get("tensors") and right.get("tensors") else ():
        if child.verdict is not Verdict.IDENTICAL:
            return LinePoint(f"tensor {child.name}", child.left or "absent", child.right or "absent")
    return LinePoint("the end", f"{left.get('class')} {left['digest']}", f"{right.get('class')} {right['digest']}")


def _digest(line: Raw) -> str:
    return str(line["digest"])


def _steps(line: Raw) -> str:
    return f"{line.get('class', '')} {line['steps']} steps".strip()


_TRAIL = LineWording("weights of", "digest", numbered("epoch"), _digest, _trail_point)
_END = LineWording("weights at the end of", "digest", at_end, _digest, _end_point)
_STEPS = LineWording("steps of", "count", at_end, _steps)
