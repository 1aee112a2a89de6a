"""Reads what a recording found and changed: native/recorder/found.c copies files before the run changes them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from reprokit.core import private_keys
from reprokit.model.outputs import FoundFile
from reprokit.run.file_times import born
from reprokit.run.output_places import PlaceNames
from reprokit.run_files import names, rundir

PAST_SHIM = "past-the-shim"
MAX_FOUND = 100_000
LINE = re.compile(rb"([fldm]) (-|\d{1,20}-\d{1,20}) (\d{1,19}) (\d{1,4}) (\d{1,19}) (.*)", re.DOTALL)

Kind = Literal["file", "link", "directory", "moved-directory"]
KINDS: dict[bytes, Kind] = {b"f": "file", b"l": "link", b"d": "directory", b"m": "moved-directory"}


def has_program_past_the_shim(run: Path) -> bool:
    """Return whether a static or Go program took part in a recording; to be asked before its files are collected."""
    return os.path.lexists(run / rundir.FOUND / PAST_SHIM)


def collect(run: Path, results: Collection[str], places: PlaceNames, written: names.WrittenNames) -> list[FoundFile]:
    """Return what the recording found and did not leave as it was, and remove the copies of all else."""
    start = names.start_of(run)
    if start is None or not (run / rundir.FOUND).is_dir():
        return []
    noted = {
        path: found
        for path, found in _noted(run)
        if places.has_results(path) and (path in results or _has_changed(path, found, start))
    }
    placed = {after for _, after in written.placed}
    for path in results:
        is_placed = any(name in placed for name in (path, *map(str, Path(path).parents)))
        if path not in noted and not is_placed and (found := _existed(path, start.st_ctime_ns)):
            noted[path] = found
    listed = [_listed(run, path, found, places) for path, found in sorted(noted.items())[:MAX_FOUND]]
    _remove_others(run / rundir.FOUND, {found.kept for found in listed})
    return listed


def _noted(run: Path) -> Iterator[tuple[str, FoundFile]]:
    """Yield the lines of the shim and the supervisor, by absolute paths; the first of a path counts."""
    seen: set[str] = set()
    for line in names.lines_of(run / rundir.FOUND_LIST):
        match = LINE.fullmatch(line)
        if match is None:
            continue
        kind, kept, size, mode, modified, rest = match.groups()
        target, _, name = names.unescaped(rest).rpartition(os.fsdecode(names.TO))
        if name in seen or not name.startswith("/"):
            continue
        seen.add(name)
        yield (
            name,
            FoundFile(
                path=name,
                kind=KINDS[kind],
                size=int(size) if kind == b"f" else 0,
                mode=int(mode),
                modified=int(modified),
                target=target,
                kept=None if kept == b"-" else kept.decode(),
            ),
        )


def _has_changed(path: str, found: FoundFile, start: os.stat_result) -> bool:
    """Return whether something else, or nothing, is at a path now."""
    try:
        status = os.lstat(path)
    except OSError:
        return True
    if stat.S_ISDIR(status.st_mode):
        return found.kind not in ("directory", "moved-directory") or born(path) > start.st_ctime_ns
    return status.st_ctime_ns >= start.st_ctime_ns


def _existed(path: str, start: int) -> FoundFile | None:
    """Return a file that was there, by the time of its birth, and that nothing was seen to change."""
    with suppress(OSError):
        if 0 < born(path) <= start:
            status = os.lstat(path)
            is_link = stat.S_ISLNK(status.st_mode)
            return FoundFile(path=path, kind="link" if is_link else "file", mode=stat.S_IMODE(status.st_mode))
    return None


def _listed(run: Path, path: str, found: FoundFile, places: PlaceNames) -> FoundFile:
    """Return the entry of outputs.json: with a digest of the copy, and without one that may hold a private key."""
    digest = None
    if found.kept is not None:
        with suppress(OSError), open(run / rundir.FOUND / found.kept, "rb", opener=rundir.open_regular) as copy:
            if not private_keys.is_private_key(copy):
                digest = rundir.sealed(copy).digest
    kept = found.kept if digest is not None else None
    return msgspec.structs.replace(found, path=places.name(path), kept=kept, digest=digest)


def _remove_others(directory: Path, kept: set[str | None]) -> None:
    with suppress(OSError):
        for name in os.listdir(directory):
            if name not in kept:
                (directory / name).unlink()
        if not any(kept):
            directory.rmdir()
