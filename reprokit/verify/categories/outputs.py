"""Compares the files that the runs wrote, by digest or by content without a container's timestamps."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from reprokit.core import private_keys
from reprokit.core.difference import (
    BookkeepingKind,
    Difference,
    Exclusion,
    Verdict,
    bookkeeping,
    compared,
    group,
    missing,
)
from reprokit.core.errors import ReprokitError
from reprokit.core.printable import listed
from reprokit.diff.compare import FileSide, compare_parts
from reprokit.diff.compare import compare as compare_files
from reprokit.diff.elements import CompareOptions, Format, Limits, Part, Siblings, Source, Value
from reprokit.diff.formats import HEAD, detect
from reprokit.diff.raw import AS_BYTES
from reprokit.diff.sources import BLOCK, BytesSource, FileSource, digest, piece
from reprokit.model.outputs import FoundFile, OutputFile, OutputsFile
from reprokit.model.plan import RECORD
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.declared_outputs import DeclaredFile
from reprokit.verify.categories.file_bookkeeping import FileBookkeeping, of_user
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.output_stores import by_arrays
from reprokit.verify.comparison import ADDED, only_added
from reprokit.verify.read.normalization import (
    CONTENTS,
    TRACKER_ALONE,
    TRACKER_LOG,
    Normalizations,
    excluded,
    is_tracker_log,
    is_tracker_settings,
)
from reprokit.verify.read.output_paths import OutputPaths
from reprokit.verify.read.scan import natural

LARGEST = 4 << 30  # bytes of a file whose digest is computed again
MOST_NAMED = 3
OTHER_BYTES = "other bytes"
UNKNOWN = OutputFile(path="", size=0, digest="")
DATABASE = "sqlite"  # the format whose rows are told apart
TABLES = (".csv", ".tsv")  # of which the first line names the columns
LONGEST_TABLE = 64 << 20  # bytes that are read with the line of names put before them
_ROW = re.compile(r"(.+?)/(\d+)/(.+)", re.DOTALL)
_ROWS = " (rows)"  # behind a table's name: the number of its rows
Row = tuple[tuple[str, str], ...]  # columns and values
Tables = dict[str, list[Row]]


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each path; of files that differ their contents are compared, if they still exist."""
    (left, right), normalizations = runs.outputs, runs.normalizations
    if left is None or right is None:
        children = (
            () if left is right else (missing("list of outputs", _number_of_files(left), _number_of_files(right)),)
        )
        return group("outputs", children)
    sides = _by_path(left, runs.paths[0]), _by_path(right, runs.paths[1])
    for path in {file.path for file in left.files} ^ {file.path for file in right.files}:
        normalizations.path(path)  # registers a normalization that changes the path
    leaves = [pair.leaf() for pair in runs.paths[0].pairs]
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        for left_file, right_file in zip_longest(sides[0].get(path, ()), sides[1].get(path, ())):
            if exclusion := excluded((left_file or right_file or UNKNOWN).path, path):
                reason, why = exclusion
                texts = _described(left_file), _described(right_file)
                leaves.append(Difference(path, Verdict.NOT_RECORDED, *texts, why, exclusion=reason))
                continue
            leaf = _file_leaf(path, left_file, right_file, normalizations)
            declared = runs.declared.of_file(path, *(file.path for file in (left_file, right_file) if file))
            is_stamped = leaf.verdict is Verdict.BOOKKEEPING
            if left_file is not None and right_file is not None and (leaf.verdict.differs or is_stamped):
                tree = _compare_contents(runs, path, left_file, right_file, declared)
                if not is_stamped:
                    leaf = _with_contents(leaf, tree, runs)
                elif tree is not None and AS_BYTES not in tree.figures:
                    leaf = _with_contents(compared(path, leaf.left, leaf.right, OTHER_BYTES, same=False), tree, runs)
            files = zip(runs.directories, (left_file, right_file), strict=True)
            leaf = leaf if declared is None else declared.judged(leaf, files)
            leaves.append(_without_tracker_log(leaf, is_whole=left_file is not None and right_file is not None))
    links = list(_link_leaves(runs, left, right))
    leaves = by_arrays(runs, leaves, sides, [leaf.name for leaf in links], found)
    for leaf in links:
        declared = runs.declared.of_file(leaf.name)
        leaves.append(leaf if declared is None else declared.judged(leaf, ()))
    if left.left_out or right.left_out:
        verdict = Verdict.DIFFERENT if left.left_out != right.left_out else Verdict.NOT_COMPARED
        texts = f"{left.left_out} files", f"{right.left_out} files"
        leaves.append(Difference("files beyond the bounds", verdict, *texts, "not compared"))
    return group("outputs", tuple(leaves))


def _without_tracker_log(leaf: Difference, *, is_whole: bool) -> Difference:
    """Return a leaf; where a log of a tracker differs, or only one run has what it keeps, as not compared."""
    is_own = is_tracker_log(leaf.name) or (is_tracker_settings(leaf.name) and not is_whole)
    if not (is_own and leaf.verdict.differs):
        return leaf
    why = TRACKER_LOG if is_whole else TRACKER_ALONE
    return Difference(leaf.name, Verdict.NOT_RECORDED, leaf.left, leaf.right, why, exclusion=Exclusion.VOLATILE)


def _link_leaves(runs: RunPair, left: OutputsFile, right: OutputsFile) -> Iterator[Difference]:
    """Yield a leaf for each symbolic link's target."""
    normalizations = runs.normalizations
    sides = [
        {paths.common(normalizations.path(link.path)): link.target for link in side.links}
        for side, paths in zip((left, right), runs.paths, strict=True)
    ]
    for path in sorted({*sides[0], *sides[1]}, key=natural):
        targets = sides[0].get(path), sides[1].get(path)
        left_text, right_text = ("" if target is None else f"symbolic link to {target}" for target in targets)
        if targets[0] is None or targets[1] is None:
            yield missing(
                path, left_text, right_text, f"only the {'right' if targets[0] is None else 'left'} run linked {path}"
            )
        else:
            same = _target(runs, 0, path, targets[0]) == _target(runs, 1, path, targets[1])
            yield compared(path, left_text, right_text, f"{path} leads elsewhere", same=same)


def _target(runs: RunPair, side: int, path: str, target: str) -> str:
    """Return the target of a link under the name that both runs have for it."""
    normalized = runs.normalizations.path(target)
    directory = os.path.dirname(path)
    if os.path.isabs(normalized) or not directory:
        return runs.paths[side].common(normalized)
    return runs.paths[side].common(os.path.normpath(os.path.join(directory, normalized)))


def beside(runs: RunPair, category: Difference) -> Iterator[str]:
    """Yield notes on files that cannot be compared, and on those in whose place the recordings found other content."""
    if names := only_added(category):
        yield f"the recordings found other content in {listed(names, MOST_NAMED)}: what each added is compared"
    if names := [file.name for file in category.children if file.figures.get(ADDED) is False]:
        yield (
            f"the recordings found other content in {listed(names, MOST_NAMED)}, so what they left may differ by that"
            " alone: let both start from the same, or compare a recording with its replay"
        )
    yield from _empty_directories(runs)
    texts = [outputs.not_compared if outputs is not None else [] for outputs in runs.outputs]
    yield from (f"not compared: in both runs {text}" for text in texts[0] if text in texts[1])
    for side, own_texts, other_texts in (("left", *texts), ("right", *reversed(texts))):
        yield from (f"not compared: in the {side} run {text}" for text in own_texts if text not in other_texts)


def _empty_directories(runs: RunPair) -> Iterator[str]:
    """Yield a note where the runs made empty directories of other names, which may be results."""
    left, right = (set(map(runs.normalizations.path, side.empty if side is not None else ())) for side in runs.outputs)
    for side, own, other in (("left", left, right), ("right", right, left)):
        if names := sorted(own - other, key=natural):
            which = "an empty directory" if len(names) == 1 else f"{len(names):,} empty directories"
            yield f"not compared: only the {side} run made {which}, first {names[0]}"


def not_compared(category: Difference) -> Iterator[str]:
    """Yield how many outputs were left out of the comparison, and why."""
    unrecorded = [leaf for leaf in category.leaves() if leaf.verdict is Verdict.NOT_RECORDED]
    of_trackers = [leaf for leaf in unrecorded if leaf.exclusion is Exclusion.VOLATILE]
    if of_trackers:
        count = f"{len(of_trackers)} of the outputs, first {of_trackers[0].name}"
        yield f"not compared, as an experiment tracker writes times and run ids into them: {count}"
    unread = [leaf for leaf in category.leaves() if leaf.verdict is Verdict.NOT_COMPARED]
    if unread:
        yield f"not compared, as not read when the runs ended: {len(unread)} of the outputs, first {unread[0].name}"


def comparable(outputs: OutputsFile | None) -> bool:
    """Return whether any file with a known digest is compared."""
    files = outputs.files if outputs is not None else ()
    paths = {file.path: Normalizations().path(file.path) for file in files if file.digest or file.content}
    return any(
        excluded(*names) is None and not (is_tracker_log(names[1]) or is_tracker_settings(names[1]))
        for names in paths.items()
    )


def _by_path(outputs: OutputsFile, paths: OutputPaths) -> dict[str, list[OutputFile]]:
    """Return the files by normalized path; files with the same path are sorted by content."""
    files_by_path: dict[str, list[OutputFile]] = defaultdict(list)
    normalizations = Normalizations()
    for file in outputs.files:
        files_by_path[paths.common(normalizations.path(file.path))].append(file)
    return {path: sorted(files, key=lambda file: (file.digest, file.size)) for path, files in files_by_path.items()}


def _file_leaf(
    path: str, left: OutputFile | None, right: OutputFile | None, normalizations: Normalizations
) -> Difference:
    texts = _described(left), _described(right)
    if left is None or right is None:
        side, file = ("right", right) if left is None else ("left", left)
        doubt = "; nothing was seen to write it: another program may have" if file is not None and file.unseen else ""
        return missing(path, *texts, f"only the {side} run wrote it{doubt}")
    if left.digest and left.digest == right.digest:
        is_same = (left.size, left.content, left.container) == (right.size, right.content, right.container)
        return compared(path, *texts, "the records of it contradict each other", same=is_same)
    were_read = left.digest and right.digest
    if were_read and left.content and (left.content, left.container) == (right.content, right.container):
        meaning = "the members are the same; time stamps of the container differ, or what is outside of them"
        return Difference(path, Verdict.BOOKKEEPING, *texts, meaning, kind=BookkeepingKind.DATE)
    if not were_read and (left.size == right.size or not all(file.digest or file.size for file in (left, right))):
        return Difference(path, Verdict.NOT_COMPARED, *texts, f"not compared: {left.note or right.note or 'not read'}")
    meaning = OTHER_BYTES if left.size == right.size else "another size"
    return compared(path, *texts, meaning, same=False)


def _with_contents(leaf: Difference, tree: Difference | None, runs: RunPair) -> Difference:
    """Return the leaf of two files with the differences of their contents."""
    if tree is None and runs.accepted("outputs") is not None:
        return replace(leaf, detail=f"{leaf.detail}; only digests are left, which no tolerance can judge")
    if tree is None:
        return leaf
    if tree.verdict is Verdict.BOOKKEEPING:
        return replace(leaf, judged=None, detail=tree.detail, children=tree.children, figures=tree.figures)
    if not tree.verdict.not_bitwise and tree.verdict is not Verdict.IGNORED:
        runs.normalizations.add(*([] if ADDED in tree.figures else [CONTENTS]))
        return Difference(leaf.name, Verdict.IDENTICAL, leaf.left, leaf.right, tree.detail, figures=tree.figures)
    detail = f"{leaf.detail}; {tree.detail}"
    if not tree.children:
        return replace(leaf, judged=tree.judged, detail=detail, figures=tree.figures)
    return replace(leaf, judged=None, detail=detail, children=tree.children, figures=tree.figures)


def _described(file: OutputFile | None) -> str:
    if file is None:
        return ""
    return f"{file.size} bytes {file.digest or file.note or 'not read'}"


def _number_of_files(outputs: OutputsFile | None) -> str:
    return "" if outputs is None else f"{len(outputs.files)} files"


def _compare_contents(
    runs: RunPair, name: str, left: OutputFile, right: OutputFile, declared: DeclaredFile | None
) -> Difference | None:
    """Return the tree of differences of two files; None if the content of one is gone."""
    with ExitStack() as files, suppress(OSError, ReprokitError):  # the result of comparing digests remains
        left_source = _open_until_end(runs.directories[0], left, files)
        right_source = _open_until_end(runs.directories[1], right, files) if left_source is not None else None
        if left_source is None or right_source is None:
            return None
        left_source.beside = _siblings(runs.directories[0], left.path, files)
        right_source.beside = _siblings(runs.directories[1], right.path, files)
        judge, accepted = FileBookkeeping(name, runs.contexts), runs.accepted("outputs")
        options = CompareOptions(accepted, accepted, declared=declared, judge=judge)
        sides = FileSide(of_user(name, left_source), left.path), FileSide(of_user(name, right_source), right.path)
        tree = compare_files(name, *sides, options)
        if not tree.verdict.not_bitwise and sides[0].source is not left_source:
            return group(name, (bookkeeping(f"{name}/_wandb", "", "", BookkeepingKind.TRACKER),), "the tracker's own")
        return tree if not tree.verdict.differs else _by_what_was_found(runs, (left, right), sides, options, tree)
    return None


def _by_what_was_found(
    runs: RunPair,
    files: tuple[OutputFile, OutputFile],
    sides: tuple[FileSide, FileSide],
    options: CompareOptions,
    tree: Difference,
) -> Difference:
    """Return the tree of what two recordings added to a file, if they found other content in its place."""
    with ExitStack() as opened:
        left, right = (found_content(run, file, opened) for run, file in zip(runs.directories, files, strict=True))
        if left is None or right is None or left.digest == right.digest:
            return tree
        options = replace(options, limits=Limits())
        try:
            added = compare_added(tree.name, sides, (left, right), options)
        except (OSError, ReprokitError):
            added = None
        return replace(added or tree, figures={**(added or tree).figures, ADDED: added is not None})


def _siblings(run: RunDirectory, path: str, files: ExitStack) -> Siblings:
    """Return the outputs of a run in the same directory as this one."""
    outputs = run.outputs()
    directory, name = os.path.split(path)

    def find(name: str) -> FileSource | None:
        beside = [file for file in outputs.files if file.path == os.path.join(directory, name)] if outputs else []
        opened = (_open_until_end(run, file, files) for file in beside)
        return next((source for source in opened if source is not None), None)

    return Siblings(name, find)


def _open_until_end(run: RunDirectory, file: OutputFile, files: ExitStack) -> FileSource | None:
    """Open the file with the recorded digest; it is closed with the exit stack."""
    opened = found(run, file)
    if opened is not None:
        files.callback(opened.close)
    return opened


def found(run: RunDirectory, file: OutputFile) -> FileSource | None:
    """Open the run's own copy, or the file that the run wrote; None if neither fits, or for private keys."""
    if file.kept is not None:
        with suppress(OSError, ReprokitError):
            copy = _verified(run.open_kept(file), file)
            if copy is not None:
                return copy
    path = Path(run.run.working_directory) / file.path
    with suppress(OSError, ValueError):
        return _verified(rundir.open_regular(os.fspath(path), os.O_RDONLY), file)
    return None


def _verified(fd: int, file: OutputFile) -> FileSource | None:
    source = FileSource(fd)
    with suppress(OSError, ReprokitError):
        is_recorded = source.size == file.size <= LARGEST and digest(source) == file.digest
        if is_recorded and not private_keys.holds_private_key(source.read(0, private_keys.HEAD)):
            return source
    source.close()
    return None


@dataclass(frozen=True)
class FoundContent:
    """What a recording found in the place of an output; nothing for a file that it created."""

    digest: str
    source: Source


def found_content(run: RunDirectory, file: OutputFile, files: ExitStack) -> FoundContent | None:
    """Return what was there before a recording; None where that is not known, as in replays."""
    outputs = run.outputs()
    if run.run.kind != RECORD or outputs is None or outputs.past_the_shim or file.unseen:
        return None
    before = next((found for found in outputs.found if found.path == file.path), FoundFile(path=file.path))
    if before not in outputs.found:
        return FoundContent("", BytesSource(b""))
    if before.kept is None or before.kind != "file" or before.digest is None:
        return None
    source = FileSource(run.open_found(before.kept))
    files.callback(source.close)
    return FoundContent(before.digest, source) if digest(source) == before.digest else None


def compare_added(
    name: str,
    sides: tuple[FileSide, FileSide],
    found: tuple[FoundContent, FoundContent],
    options: CompareOptions,
) -> Difference | None:
    """Compare what both recordings added to a file; None where that cannot be told from what they found."""
    formats = [detect(side.name, side.source.read(0, HEAD)) for side in sides]
    if all(format_ is not None and format_.name == DATABASE for format_ in formats):
        format_ = formats[0]
        assert format_ is not None
        if not all(content.source.size for content in found):
            return None  # the tables of one were made by its run
        added = [
            list(_added_parts(format_, side.source, content.source)) for side, content in zip(sides, found, strict=True)
        ]
        return compare_parts(name, added[0], added[1], options, format_)
    if not all(_begins_with(side.source, content.source) for side, content in zip(sides, found, strict=True)):
        return None
    head = _names_of_columns(name, found)
    left, right = (
        FileSide(_behind(side.source, content.source.size, head), side.name)
        for side, content in zip(sides, found, strict=True)
    )
    return compare_files(name, left, right, options)


def _begins_with(source: Source, start: Source) -> bool:
    if start.size > source.size:
        return False
    return all(source.read(at, BLOCK)[: start.size - at] == start.read(at, BLOCK) for at in range(0, start.size, BLOCK))


def _names_of_columns(name: str, found: tuple[FoundContent, FoundContent]) -> bytes:
    """Return the first line of a table, if both recordings found the same one."""
    if not name.lower().endswith(TABLES):
        return b""
    first, second = (content.source.read(0, BLOCK).partition(b"\n") for content in found)
    return b"".join(first[:2]) if first[:2] == second[:2] and first[1] else b""


def _behind(source: Source, start: int, head: bytes) -> Source:
    end = piece(source, start, source.size - start)
    return BytesSource(head + end.read(0, end.size)) if head and end.size <= LONGEST_TABLE else end


def _added_parts(format_: Format, source: Source, found: Source) -> Iterator[Part]:
    """Yield the rows of a database that are not among those that were found, then those that are gone or changed."""
    other, tables = _read(format_.read(source, Limits()))
    other_before, tables_before = _read(format_.read(found, Limits()))
    yield from (Value(*value) for value in other.items() - other_before.items())
    for table in sorted({*tables, *tables_before}):
        rows, before = tables.get(table, []), tables_before.get(table, [])
        added = _without(rows, before)
        yield from _parts_of(table, "", added)
        yield from _parts_of(table, "removed ", _without(before, rows))
        yield Value(table + _ROWS, str(len(added)))


def _parts_of(table: str, kind: str, rows: list[Row]) -> Iterator[Value]:
    for number, row in enumerate(rows, 1):
        yield from (Value(f"{table}/{kind}{number}/{column}", text) for column, text in row)


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return the rows, in their order, that remain when each of the others has taken its like."""
    taken, rest = Counter(others), []
    for row in rows:
        if taken[row]:
            taken[row] -= 1
        else:
            rest.append(row)
    return rest


def _read(parts: Iterable[Part]) -> tuple[dict[str, str], Tables]:
    """Return the rows of a database by table, and what else there is, as its schema."""
    other: dict[str, str] = {}
    rows: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        if not isinstance(part, Value) or part.name.endswith(_ROWS):
            continue
        match = _ROW.fullmatch(part.name) if not part.name.startswith("schema/") else None
        if match is None:
            other[part.name] = part.text
        else:
            rows[match[1]][match[2]].append((match[3], part.text))
    return other, {table: list(map(tuple, of_table.values())) for table, of_table in rows.items()}
