"""Compares weights: digests at each epoch, tensors at the end, and numbers of optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.difference import Difference, Verdict, compared, group, missing
from reprokit.verify.categories.match import Raw, RunPair, SeriesPair
from reprokit.verify.categories.processes import marked_if_stopped
from reprokit.verify.categories.series_leaves import LinePoint, LineWording, at_end, judged, leaf, numbered, title
from reprokit.verify.read.metric_lines import END_WEIGHTS


def compare(runs: RunPair) -> Difference:
    """Compare epochs before the end, as a difference persists; then numbers of steps."""
    children = [leaf(pair, _TRAIL) for pair in runs.of("weights")]
    children += [marked_if_stopped(runs, pair, _end(pair)) for pair in runs.of(END_WEIGHTS)]
    children += [marked_if_stopped(runs, pair, leaf(pair, _STEPS)) for pair in runs.of("optimizer")]
    return judged(group("weights", tuple(children)), runs.accepted("weights"))


def written_at_end(runs: RunPair) -> frozenset[str]:
    """Return the names of the nodes of what a process writes at its end: it says nothing of an earlier step."""
    ends = {title(pair.key, _END.noun) for pair in runs.of(END_WEIGHTS)}
    return frozenset(ends | {title(pair.key, _STEPS.noun) for pair in runs.of("optimizer")})


def _end(pair: SeriesPair) -> Difference:
    """Compare one object at the end; a group of its tensors if these are known."""
    summary = leaf(pair, _END)
    if pair.left is None or pair.right is None or pair.left.count != 1 or pair.right.count != 1:
        return summary
    left, right = pair.left.last or {}, pair.right.last or {}
    if not (left.get("tensors") and right.get("tensors")):
        return summary
    head = Difference("digest", summary.judged, summary.left, summary.right)
    return group(summary.name, (*_tensors(left, right, pair.key.name), head), summary.detail)


def _tensors(left: Raw, right: Raw, owner: str) -> Iterator[Difference]:
    """Yield a leaf for each tensor in the model's order."""
    sides = [{tensor[0]: tensor for tensor in line["tensors"]} for line in (left, right)]
    for name in [*sides[0], *(name for name in sides[1] if name not in sides[0])]:
        left_tensor, right_tensor = sides[0].get(name), sides[1].get(name)
        if left_tensor is None or right_tensor is None:
            yield missing(name, _tensor(left_tensor), _tensor(right_tensor))
            continue
        part = "shape or type" if left_tensor[1:3] != right_tensor[1:3] else "values"
        yield compared(name, _tensor(left_tensor), _tensor(right_tensor), f"{owner} has other {part} there")


def _tensor(tensor: list[object] | None) -> str:
    """Return type, shape and digest of one tensor, whose fields have a fixed order."""
    if tensor is None:
        return ""
    _, dtype, shape, digest = tensor
    return f"{dtype} {shape} {digest}"


def _trail_point(left: Raw, right: Raw, position: int) -> LinePoint:
    epoch_words = numbered("epoch")(left, position)
    if left.get("epoch") != right.get("epoch"):
        return LinePoint(f"digest {position + 1}", epoch_words, numbered("epoch")(right, position))
    if left.get("epoch") != position:  # for example if each of several loaders counts its own epochs
        epoch_words = f"{epoch_words} (digest {position + 1})"
    return LinePoint(epoch_words, left["digest"], right["digest"])


def _end_point(left: Raw, right: Raw, position: int) -> LinePoint:
    """Return the first tensor that differs; the digest if none is known."""
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
