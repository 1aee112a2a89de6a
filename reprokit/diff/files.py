"""Compares two files or two directories on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from reprokit.core.difference import Difference, Verdict, compared, group, missing
from reprokit.core.errors import ArtifactDamaged, ArtifactNotReadable
from reprokit.diff.compare import FileSide, compare
from reprokit.diff.elements import CompareOptions
from reprokit.diff.formats import refers
from reprokit.diff.raw import AS_BYTES
from reprokit.diff.sources import open_file, siblings
from reprokit.diff.stores import ArrayStore, common_stores, compare_stores

MOST_FILES = 1_000_000  # of a directory
EVENTS, EVENT_KINDS = "events.out.tfevents.", (".v2", ".profile-empty")
DEEPEST = 100  # directories within directories
CHECKSUM_FILES = ("fingerprint.pb",)  # hold checksums of other files: listed after those


def diff(left: Path, right: Path, options: CompareOptions | None = None) -> Difference:
    """Compare two files, or two directories file by file."""
    options = options or CompareOptions()
    kinds = _kind(left), _kind(right)
    if kinds[0] != kinds[1]:
        raise ArtifactNotReadable(f"{left} is a {kinds[0]} and {right} a {kinds[1]}; name two of a kind")
    if kinds[0] == "directory":
        return _compare_directories(left, right, options)
    return _compare_files(left.name, left, right, options)


def _kind(path: Path) -> str:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise ArtifactNotReadable(
            f"{path}: {getattr(error, 'strerror', None) or error}; name a file that can be read"
        ) from None
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise ArtifactNotReadable(f"{path} is neither a file nor a directory, and cannot be compared")
    return "directory" if stat.S_ISDIR(mode) else "file"


@dataclass(frozen=True)
class _Companions:
    """Files that were read as part of another file in each directory: name of the file to name of the other."""

    left: dict[str, str] = field(default_factory=dict)
    right: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, difference: Difference, left: Iterable[str], right: Iterable[str]) -> None:
        """Record the files read along with `name`, unless the comparison fell back to bytes."""
        if AS_BYTES not in difference.figures:
            self.left.update((os.path.join(os.path.dirname(name), sibling), name) for sibling in left)
            self.right.update((os.path.join(os.path.dirname(name), sibling), name) for sibling in right)

    def of(self, name: str, left: str | None, right: str | None) -> Difference | None:
        """Return the note for a file that was compared as part of the same other file on both sides, else None."""
        owners = {self.left.get(name), self.right.get(name)}
        if left != right or len(owners) != 1 or None in owners:
            return None
        return Difference(name, Verdict.NOT_RECORDED, left or "", right or "", f"compared as part of {owners.pop()}")


def _compare_files(
    name: str, left: Path, right: Path, options: CompareOptions, companions: _Companions | None = None
) -> Difference:
    """Compare a pair of files; each pair has its own limits."""
    left_file, right_file = open_file(left), open_file(right)
    nearby_files = left_file.beside, right_file.beside = siblings(left), siblings(right)
    try:
        limits = replace(options.limits, spent=type(options.limits.spent)())
        result = compare(
            name, FileSide(left_file, left.name), FileSide(right_file, right.name), replace(options, limits=limits)
        )
        if companions is not None:
            companions.add(name, result, *(nearby.opened for nearby in nearby_files))
        return result
    except ArtifactDamaged as error:  # damaged files are compared as bytes; this fails only if a file changes meanwhile
        raise ArtifactDamaged(f"{left} or {right} changed while it was read ({error}); compare them again") from None
    finally:
        for file in (left_file, right_file, *(file for nearby in nearby_files for file in nearby.opened.values())):
            file.close()  # type: ignore[attr-defined]


def _compare_directories(left: Path, right: Path, options: CompareOptions) -> Difference:
    sides = dict(_entries(left)), dict(_entries(right))
    trees: dict[str, Difference] = {}
    companions = _Companions()
    partners = _partners(*sides)
    names = {*sides[0], *sides[1]}.difference(partners.values())
    for name in sorted(names, key=lambda name: (not refers(name), name)):
        partner = partners.get(name, name)
        kinds = sides[0].get(name), sides[1].get(partner)
        paths = left / name, right / partner
        trees[name] = companions.of(name, *kinds) or _compare_entry(name, *paths, *kinds, options, companions)
    for store in common_stores(*sides):
        _compare_store(store, left, right, options, trees)
    if not trees:
        return Difference(left.name or str(left), Verdict.IDENTICAL, detail="both directories are empty")
    order = sorted(trees, key=lambda name: (os.path.basename(name) in CHECKSUM_FILES, name))
    return group(left.name or str(left), tuple(trees[name] for name in order))


def _compare_store(
    store: ArrayStore, left: Path, right: Path, options: CompareOptions, trees: dict[str, Difference]
) -> None:
    """Put the comparison of a store in the place of those of its files, if any of these differ and it can be read."""
    files = [name for name in store.files[0] | store.files[1] if name in trees]
    if not any(trees[name].verdict.differs for name in files):
        return
    try:
        tree = compare_stores(store, left / store.directory, right / store.directory, options)
    except ArtifactDamaged as error:
        mark = min(files, key=lambda name: (os.path.basename(name) not in store.format.marks, name.count(os.sep), name))
        why = f"cannot be read as {store.format.title} ({error}); its files are compared one by one"
        trees[mark] = replace(trees[mark], detail="; ".join(filter(None, (trees[mark].detail, why))))
        return
    for name in files:
        del trees[name]
    trees[store.name] = tree


def _partners(left: Iterable[str], right: Iterable[str]) -> dict[str, str]:
    """Pair the event files of TensorBoard, whose names contain time, host and process: left name to right name."""
    common = {*left}.intersection(right)
    sides = _event_files({*left} - common), _event_files({*right} - common)
    partners: dict[str, str] = {}
    for directory in sides[0].keys() & sides[1].keys():
        names = sides[0][directory], sides[1][directory]
        if len(names[0]) == len(names[1]):
            partners.update(zip(*names, strict=True))
    return partners


def _event_files(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Return the event files of TensorBoard by directory and kind, in order of time."""
    names_by_kind: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if os.path.basename(name).startswith(EVENTS):
            kind = next((ending for ending in EVENT_KINDS if name.endswith(ending)), "")
            names_by_kind.setdefault((os.path.dirname(name), kind), []).append(name)
    return names_by_kind


def _entries(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield relative path and kind of all entries below a directory; links are not followed."""
    pending = [""]
    count = 0
    while pending:
        subdirectory = pending.pop()
        for entry in os.scandir(directory / subdirectory):
            name = os.path.join(subdirectory, entry.name)
            kind = _entry_kind(entry)
            count += 1
            if count > MOST_FILES:
                raise ArtifactNotReadable(f"{directory} holds more than {MOST_FILES} files; compare parts of it")
            if name.count(os.sep) > DEEPEST:
                raise ArtifactNotReadable(f"{directory} is more than {DEEPEST} directories deep; compare parts of it")
            if kind == "directory":
                pending.append(name)
            yield name, kind


def _entry_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "special file"


def _compare_entry(
    name: str,
    left: Path,
    right: Path,
    left_kind: str | None,
    right_kind: str | None,
    options: CompareOptions,
    companions: _Companions,
) -> Difference:
    if left_kind is None or right_kind is None:
        side = "left" if left_kind else "right"
        return missing(name, left_kind or "", right_kind or "", f"only the {side} directory has it")
    if left_kind != right_kind:
        return Difference(name, Verdict.DIFFERENT, left_kind, right_kind, "of another kind")
    if left_kind == "file":
        return _compare_files(name, left, right, options, companions)
    if left_kind == "symbolic link":
        return compared(name, f"-> {os.readlink(left)}", f"-> {os.readlink(right)}", "points elsewhere")
    if left_kind == "directory":
        return Difference(name, Verdict.IDENTICAL, left_kind, right_kind)
    return Difference(name, Verdict.NOT_RECORDED, left_kind, right_kind, "not compared")
