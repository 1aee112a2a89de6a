"""Compares the files that the runs wrote: by digest, or by content without a container's noise."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from reprokit import private_keys, rundir
from reprokit.artifacts.compare import CompareOptions, FileSide
from reprokit.artifacts.compare import compare as compare_files
from reprokit.artifacts.elements import Siblings
from reprokit.artifacts.sources import FileSource, blocks
from reprokit.difference import Difference, Verdict, compared, group, missing
from reprokit.errors import ReprokitError
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.rundir import RunDirectory
from reprokit.verify.compare.match import RunPair
from reprokit.verify.read.normalization import CONTAINERS, CONTENTS, Normalizations, excluded
from reprokit.verify.read.scan import natural

LARGEST = 4 << 30  # bytes of a file whose digest is taken again
UNKNOWN = OutputFile(path="", size=0, digest="")


def compare(runs: RunPair) -> Difference:
    """One leaf a file, matched by its path; of files that differ what differs in them, as far as contents are there."""
    (left, right), normalizations = runs.outputs, runs.normalizations
    if left is None or right is None:
        children = () if left is right else (missing("list of outputs", _listed(left), _listed(right)),)
        return group("outputs", children)
    sides = _by_path(left), _by_path(right)
    for path in {file.path for file in left.files} ^ {file.path for file in right.files}:
        normalizations.path(path)  # noted where it makes a difference
    leaves = []
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        for one, other in zip_longest(sides[0].get(path, ()), sides[1].get(path, ())):
            if left_out := excluded((one or other or UNKNOWN).path, path):
                reason, why = left_out
                texts = _described(one), _described(other)
                leaves.append(Difference(path, Verdict.NOT_RECORDED, *texts, why, exclusion=reason))
                continue
            leaf = _file(path, one, other, normalizations)
            if one is not None and other is not None and leaf.verdict.differs:
                leaf = _looked_into(leaf, _contents(runs, path, one, other), runs)
            leaves.append(leaf)
    leaves += _links(left, right, normalizations)
    if left.left_out or right.left_out:
        verdict = Verdict.DIFFERENT if left.left_out != right.left_out else Verdict.NOT_RECORDED
        texts = f"{left.left_out} files", f"{right.left_out} files"
        leaves.append(Difference("files beyond the bounds", verdict, *texts, "not compared"))
    return group("outputs", tuple(leaves))


def _links(left: OutputsFile, right: OutputsFile, normalizations: Normalizations) -> Iterator[Difference]:
    """One leaf a symbolic link: where it leads."""
    sides = [{normalizations.path(link.path): link.target for link in side.links} for side in (left, right)]
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        targets = sides[0].get(path), sides[1].get(path)
        one, other = ("" if target is None else f"symbolic link to {target}" for target in targets)
        if targets[0] is None or targets[1] is None:
            yield missing(path, one, other, f"only the {'right' if targets[0] is None else 'left'} run linked {path}")
        else:
            same = normalizations.path(targets[0]) == normalizations.path(targets[1])
            yield compared(path, one, other, f"{path} leads elsewhere", same=same)


def beside(runs: RunPair) -> Iterator[str]:
    """Yield what is known of files that cannot be compared."""
    texts = [outputs.not_compared if outputs is not None else [] for outputs in runs.outputs]
    yield from (f"not compared: in both runs {text}" for text in texts[0] if text in texts[1])
    for side, mine, others in (("left", *texts), ("right", *reversed(texts))):
        yield from (f"not compared: in the {side} run {text}" for text in mine if text not in others)


def comparable(outputs: OutputsFile | None) -> bool:
    """Return whether there is any file that is compared, and whose digest is known."""
    files = outputs.files if outputs is not None else ()
    known = (file.path for file in files if file.digest or file.content)
    return any(excluded(path, Normalizations().path(path)) is None for path in known)


def _by_path(outputs: OutputsFile) -> dict[str, list[OutputFile]]:
    """Return the files by normalized path; those that share one stand in the order of their contents."""
    found: dict[str, list[OutputFile]] = defaultdict(list)
    normalizations = Normalizations()
    for file in outputs.files:
        found[normalizations.path(file.path)].append(file)
    return {path: sorted(files, key=lambda file: (file.digest, file.size)) for path, files in found.items()}


def _file(path: str, left: OutputFile | None, right: OutputFile | None, normalizations: Normalizations) -> Difference:
    texts = _described(left), _described(right)
    if left is None or right is None:
        return missing(path, *texts, f"only the {'right' if left is None else 'left'} run wrote it")
    if left.digest and left.digest == right.digest:
        same = (left.size, left.content, left.container) == (right.size, right.content, right.container)
        return compared(path, *texts, "the records of it contradict each other", same=same)
    both_read = left.digest and right.digest
    if both_read and left.content and (left.content, left.container) == (right.content, right.container):
        normalizations.add(CONTAINERS)
        meaning = "same content; only time stamps of the container differ"
        return Difference(path, Verdict.IDENTICAL, *texts, meaning)
    if not left.digest and not right.digest and left.size == right.size:
        return Difference(path, Verdict.NOT_RECORDED, *texts, f"not compared: {left.note or right.note or 'not read'}")
    meaning = "other bytes" if left.size == right.size else "another size"
    return compared(path, *texts, meaning, same=False)


def _looked_into(leaf: Difference, tree: Difference | None, runs: RunPair) -> Difference:
    """Return the leaf of two files with what differs in them."""
    if tree is None and runs.accepted("outputs") is not None:
        return replace(leaf, detail=f"{leaf.detail}; only digests are left, which no tolerance can judge")
    if tree is None:
        return leaf
    if not tree.verdict.not_bitwise:
        runs.normalizations.add(CONTENTS)
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


def _contents(runs: RunPair, name: str, left: OutputFile, right: OutputFile) -> Difference | None:
    """Return the tree of two files; None where the bytes of one are gone."""
    with ExitStack() as files, suppress(OSError, ReprokitError):  # what their digests say stands
        one = _opened(runs.directories[0], left, files)
        other = _opened(runs.directories[1], right, files) if one is not None else None
        if one is None or other is None:
            return None
        one.beside = _siblings(runs.directories[0], left.path, files)
        other.beside = _siblings(runs.directories[1], right.path, files)
        options = CompareOptions(runs.accepted("outputs"), runs.accepted("outputs"))
        return compare_files(name, FileSide(one, left.path), FileSide(other, right.path), options)
    return None


def _siblings(run: RunDirectory, path: str, files: ExitStack) -> Siblings:
    """Return the outputs of a run that stand in the same directory as one of them."""
    outputs = run.outputs()
    directory, name = os.path.split(path)

    def find(name: str) -> FileSource | None:
        beside = [file for file in outputs.files if file.path == os.path.join(directory, name)] if outputs else []
        opened = (_opened(run, file, files) for file in beside)
        return next((source for source in opened if source is not None), None)

    return Siblings(name, find)


def _opened(run: RunDirectory, file: OutputFile, files: ExitStack) -> FileSource | None:
    """Return the file with the recorded digest, until those files are closed."""
    opened = found(run, file)
    if opened is not None:
        files.callback(opened.close)
    return opened


def found(run: RunDirectory, file: OutputFile) -> FileSource | None:
    """Return the run's own copy, else the file that the run wrote; of a private key neither."""
    if file.kept is not None:
        with suppress(OSError, ReprokitError):
            kept = _with_digest(run.open_kept(file), file)
            if kept is not None:
                return kept
    path = Path(run.run.working_directory) / file.path
    with suppress(OSError, ValueError):
        return _with_digest(rundir.open_regular(os.fspath(path), os.O_RDONLY), file)
    return None


def _with_digest(fd: int, file: OutputFile) -> FileSource | None:
    source = FileSource(fd)
    with suppress(OSError, ReprokitError):
        is_recorded = source.size == file.size <= LARGEST and _digest(source) == file.digest
        if is_recorded and not private_keys.holds_private_key(source.read(0, private_keys.HEAD)):
            return source
    source.close()
    return None


def _digest(source: FileSource) -> str:
    digest = hashlib.sha256()
    for block in blocks(source):
        digest.update(block)
    return f"sha256:{digest.hexdigest()}"
