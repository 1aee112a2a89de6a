"""Compares the files that the runs wrote: by digest, or by content without a container's noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

from reprokit.difference import Difference, Verdict, compared, group, missing
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.tolerance import Tolerance
from reprokit.verify.compare.output_contents import OutputContents
from reprokit.verify.read import trackers
from reprokit.verify.read.normalization import CONTAINERS, CONTENTS, Normalisations
from reprokit.verify.read.scan import natural

UNKNOWN = OutputFile(path="", size=0, digest="")


def compare(
    left: OutputsFile | None,
    right: OutputsFile | None,
    normalisations: Normalisations,
    contents: OutputContents | None = None,
) -> Difference:
    """One leaf a file, matched by its path; of files that differ what differs in them, as far as contents are there."""
    if left is None or right is None:
        children = () if left is right else (missing("list of outputs", _listed(left), _listed(right)),)
        return group("outputs", children)
    sides = _by_path(left), _by_path(right)
    for path in {file.path for file in left.files} ^ {file.path for file in right.files}:
        normalisations.path(path)  # noted where it makes a difference
    leaves = []
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        for one, other in zip_longest(sides[0].get(path, ()), sides[1].get(path, ())):
            if left_out := trackers.excluded((one or other or UNKNOWN).path, path):
                reason, why = left_out
                texts = _described(one), _described(other)
                leaves.append(Difference(path, Verdict.NOT_RECORDED, *texts, why, exclusion=reason))
                continue
            leaf = _file(path, one, other, normalisations)
            if contents is not None and one is not None and other is not None and leaf.verdict.differs:
                leaf = _looked_into(leaf, contents.compare(path, one, other), normalisations, contents.tolerance)
            leaves.append(leaf)
    leaves += _links(left, right, normalisations)
    if left.left_out or right.left_out:
        leaves.append(_left_out(left.left_out, right.left_out))
    return group("outputs", tuple(leaves))


def _links(left: OutputsFile, right: OutputsFile, normalisations: Normalisations) -> Iterator[Difference]:
    """One leaf a symbolic link: where it leads."""
    sides = [{normalisations.path(link.path): link.target for link in side.links} for side in (left, right)]
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        targets = sides[0].get(path), sides[1].get(path)
        one, other = ("" if target is None else f"symbolic link to {target}" for target in targets)
        if targets[0] is None or targets[1] is None:
            yield missing(path, one, other, f"only the {'right' if targets[0] is None else 'left'} run linked {path}")
        else:
            same = normalisations.path(targets[0]) == normalisations.path(targets[1])
            yield compared(path, one, other, f"{path} leads elsewhere", same=same)


def beside(left: OutputsFile | None, right: OutputsFile | None) -> Iterator[str]:
    """What is known of files that cannot be compared."""
    texts = [outputs.not_compared if outputs is not None else [] for outputs in (left, right)]
    yield from (f"not compared: in both runs {text}" for text in texts[0] if text in texts[1])
    for side, mine, others in (("left", *texts), ("right", *reversed(texts))):
        yield from (f"not compared: in the {side} run {text}" for text in mine if text not in others)


def comparable(outputs: OutputsFile | None) -> bool:
    """Whether there is any file that is compared, and whose digest is known."""
    files = outputs.files if outputs is not None else ()
    return any((file.digest or file.content) and not _is_of_tracker(file.path) for file in files)


def _is_of_tracker(path: str) -> bool:
    return trackers.excluded(path, Normalisations().path(path)) is not None


def _by_path(outputs: OutputsFile) -> dict[str, list[OutputFile]]:
    """The files by normalised path; those that share one stand in the order of their contents."""
    found: dict[str, list[OutputFile]] = defaultdict(list)
    normalisations = Normalisations()
    for file in outputs.files:
        found[normalisations.path(file.path)].append(file)
    return {path: sorted(files, key=lambda file: (file.digest, file.size)) for path, files in found.items()}


def _file(path: str, left: OutputFile | None, right: OutputFile | None, normalisations: Normalisations) -> Difference:
    texts = _described(left), _described(right)
    if left is None or right is None:
        return missing(path, *texts, f"only the {'right' if left is None else 'left'} run wrote it")
    if left.digest and left.digest == right.digest:
        same = (left.size, left.content, left.container) == (right.size, right.content, right.container)
        return compared(path, *texts, "the records of it contradict each other", same=same)
    both_read = left.digest and right.digest
    if both_read and left.content and (left.content, left.container) == (right.content, right.container):
        normalisations.add(CONTAINERS)
        meaning = "same content; only time stamps of the container differ"
        return Difference(path, Verdict.IDENTICAL, *texts, meaning)
    if not left.digest and not right.digest and left.size == right.size:
        return Difference(path, Verdict.NOT_RECORDED, *texts, f"not compared: {left.note or right.note or 'not read'}")
    meaning = "other bytes" if left.size == right.size else "another size"
    return compared(path, *texts, meaning, same=False)


def _looked_into(
    leaf: Difference, tree: Difference | None, normalisations: Normalisations, tolerance: Tolerance | None
) -> Difference:
    """The leaf of two files with what differs in them."""
    if tree is None and tolerance is not None:
        return replace(leaf, detail=f"{leaf.detail}; only digests are left, which no tolerance can judge")
    if tree is None:
        return leaf
    if not tree.verdict.not_bitwise:
        normalisations.add(CONTENTS)
        return Difference(leaf.name, Verdict.IDENTICAL, leaf.left, leaf.right, tree.detail)
    detail = f"{leaf.detail}; {tree.detail}"
    if not tree.children:
        return replace(leaf, judged=tree.judged, detail=detail, figures=tree.figures)
    return replace(leaf, judged=None, detail=detail, children=tree.children, figures=tree.figures)


def _described(file: OutputFile | None) -> str:
    if file is None:
        return ""
    return f"{file.size} bytes {file.digest or file.note or 'not read'}"


def _listed(outputs: OutputsFile | None) -> str:
    return "" if outputs is None else f"{len(outputs.files)} files"


def _left_out(left: int, right: int) -> Difference:
    texts = f"{left} files", f"{right} files"
    if left != right:
        return Difference("files beyond the bounds", Verdict.DIFFERENT, *texts, "not compared")
    return Difference("files beyond the bounds", Verdict.NOT_RECORDED, *texts, "not compared")
