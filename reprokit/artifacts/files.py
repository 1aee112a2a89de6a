"""Compares two files or two directories on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from reprokit.artifacts.compare import CompareOptions, FileSide, compare, compare_parts
from reprokit.artifacts.formats import orbax, refers
from reprokit.artifacts.raw import AS_BYTES
from reprokit.artifacts.sources import open_file, siblings
from reprokit.difference import Difference, Verdict, compared, group, missing
from reprokit.errors import ArtifactDamaged, ArtifactNotReadable

MOST_FILES = 1_000_000  # of a directory
EVENTS, EVENT_KINDS = "events.out.tfevents.", (".v2", ".profile-empty")
DEEPEST = 100  # directories within directories
SUMS = ("fingerprint.pb",)  # say of other files that they differ: named behind these


def diff(left: Path, right: Path, options: CompareOptions | None = None) -> Difference:
    """Return the tree of two files, or of two directories file by file."""
    options = options or CompareOptions()
    kinds = _kind(left), _kind(right)
    if kinds[0] != kinds[1]:
        raise ArtifactNotReadable(f"{left} is a {kinds[0]} and {right} a {kinds[1]}; name two of a kind")
    if kinds[0] == "directory":
        return _directories(left, right, options)
    return _files(left.name, left, right, options)


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
class _Claims:
    """The files that were read as parts of others beside them, and of which."""

    left: dict[str, str] = field(default_factory=dict)
    right: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, found: Difference, left: Iterable[str], right: Iterable[str]) -> None:
        """Note what was read with a file, unless that was compared as bytes in the end."""
        if AS_BYTES not in found.figures:
            self.left.update((os.path.join(os.path.dirname(name), other), name) for other in left)
            self.right.update((os.path.join(os.path.dirname(name), other), name) for other in right)

    def of(self, name: str, left: str | None, right: str | None) -> Difference | None:
        """Return what is to be said of a file that was read with another one on both sides."""
        owners = {self.left.get(name), self.right.get(name)}
        if left != right or len(owners) != 1 or None in owners:
            return None
        return Difference(name, Verdict.NOT_RECORDED, left or "", right or "", f"compared as part of {owners.pop()}")


def _files(name: str, left: Path, right: Path, options: CompareOptions, claims: _Claims | None = None) -> Difference:
    """One pair of files, with limits of its own."""
    one, other = open_file(left), open_file(right)
    besides = one.beside, other.beside = siblings(left), siblings(right)
    try:
        limits = replace(options.limits, spent=type(options.limits.spent)())
        found = compare(name, FileSide(one, left.name), FileSide(other, right.name), replace(options, limits=limits))
        if claims is not None:
            claims.add(name, found, *(beside.opened for beside in besides))
        return found
    except ArtifactDamaged as error:  # what is damaged is compared as bytes, unless these change meanwhile
        raise ArtifactDamaged(f"{left} or {right} changed while it was read ({error}); compare them again") from None
    finally:
        for file in (one, other, *(file for beside in besides for file in beside.opened.values())):
            file.close()  # type: ignore[attr-defined]


def _directories(left: Path, right: Path, options: CompareOptions) -> Difference:
    sides = dict(_entries(left)), dict(_entries(right))
    found, claims = {}, _Claims()
    partners = _partners(*sides)
    stores = {name: _store(name, left, right, options) for name in _stores(*sides)}
    within = {name for store, tree in stores.items() if not isinstance(tree, str) for name in _within(store, *sides)}
    names = {*sides[0], *sides[1]}.difference(partners.values(), within)
    for name in sorted(names, key=lambda name: (not refers(name), name)):
        other = partners.get(name, name)
        kinds = sides[0].get(name), sides[1].get(other)
        paths = left / name, right / other
        found[name] = claims.of(name, *kinds) or _entry(name, *paths, *kinds, options, claims)
    for name, tree in stores.items():
        found[name] = replace(found[name], detail=f"{found[name].detail}; {tree}") if isinstance(tree, str) else tree
    if not found:
        return Difference(left.name or str(left), Verdict.IDENTICAL, detail="both directories are empty")
    order = sorted(found, key=lambda name: (os.path.basename(name) in SUMS, name))
    return group(left.name or str(left), tuple(found[name] for name in order))


def _stores(left: Iterable[str], right: Iterable[str]) -> list[str]:
    """Return the manifests of the directories of OCDBT that both have, but not those within others."""
    both = sorted(name for name in {*left}.intersection(right) if os.path.basename(name) == orbax.MANIFEST)
    return [name for name in both if not any(name in _within(other, both) for other in both if other != name)]


def _within(manifest: str, *sides: Iterable[str]) -> set[str]:
    """Return the names of what a directory of OCDBT consists of."""
    directory = manifest.removesuffix(orbax.MANIFEST)
    parts = tuple(directory + part for part in orbax.PARTS)
    return {name for side in sides for name in side if name == manifest or f"{name}/".startswith(parts)}


def _store(manifest: str, left: Path, right: Path, options: CompareOptions) -> Difference | str:
    """Return the tree of two directories of OCDBT, or why they are compared file by file."""
    limits = replace(options.limits, spent=type(options.limits.spent)())
    one, other = (orbax.arrays((root / manifest).parent, limits) for root in (left, right))
    try:
        return compare_parts(manifest, one, other, replace(options, limits=limits))
    except ArtifactDamaged as error:
        return f"cannot be read as OCDBT ({error}); its files are compared one by one"


def _partners(left: Iterable[str], right: Iterable[str]) -> dict[str, str]:
    """TensorBoard's files of the left directory and those of the right, whose names hold time, host and process."""
    common = {*left}.intersection(right)
    sides = _events({*left} - common), _events({*right} - common)
    found: dict[str, str] = {}
    for directory in sides[0].keys() & sides[1].keys():
        names = sides[0][directory], sides[1][directory]
        if len(names[0]) == len(names[1]):
            found.update(zip(*names, strict=True))
    return found


def _events(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """TensorBoard's files by directory and kind, in the order of their times."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        if os.path.basename(name).startswith(EVENTS):
            kind = next((ending for ending in EVENT_KINDS if name.endswith(ending)), "")
            found.setdefault((os.path.dirname(name), kind), []).append(name)
    return found


def _entries(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield what a directory holds at any depth: relative path and kind; links are not followed."""
    waiting = [""]
    count = 0
    while waiting:
        below = waiting.pop()
        for entry in os.scandir(directory / below):
            name = os.path.join(below, entry.name)
            kind = _entry_kind(entry)
            count += 1
            if count > MOST_FILES:
                raise ArtifactNotReadable(f"{directory} holds more than {MOST_FILES} files; compare parts of it")
            if name.count(os.sep) > DEEPEST:
                raise ArtifactNotReadable(f"{directory} is more than {DEEPEST} directories deep; compare parts of it")
            if kind == "directory":
                waiting.append(name)
            yield name, kind


def _entry_kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "symbolic link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "special file"


def _entry(
    name: str,
    left: Path,
    right: Path,
    left_kind: str | None,
    right_kind: str | None,
    options: CompareOptions,
    claims: _Claims,
) -> Difference:
    if left_kind is None or right_kind is None:
        side = "left" if left_kind else "right"
        return missing(name, left_kind or "", right_kind or "", f"only the {side} directory has it")
    if left_kind != right_kind:
        return Difference(name, Verdict.DIFFERENT, left_kind, right_kind, "of another kind")
    if left_kind == "file":
        return _files(name, left, right, options, claims)
    if left_kind == "symbolic link":
        return compared(name, f"-> {os.readlink(left)}", f"-> {os.readlink(right)}", "points elsewhere")
    if left_kind == "directory":
        return Difference(name, Verdict.IDENTICAL, left_kind, right_kind)
    return Difference(name, Verdict.NOT_RECORDED, left_kind, right_kind, "not compared")
