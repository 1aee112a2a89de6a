"""Looks into outputs whose digests differ: into the copies that the runs kept, or the files where they still are."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from reprokit import private_keys, rundir
from reprokit.artifacts.compare import CompareOptions, FileSide, compare
from reprokit.artifacts.sources import BLOCK, FileSource
from reprokit.difference import Difference
from reprokit.errors import ReprokitError
from reprokit.model.outputs import OutputFile
from reprokit.rundir import RunDirectory
from reprokit.tolerance import Tolerance

LARGEST = 4 << 30  # bytes of a file whose digest is taken again


@dataclass(frozen=True)
class OutputContents:
    """The outputs of two runs, as far as their bytes are still there."""

    left: RunDirectory
    right: RunDirectory
    tolerance: Tolerance | None = None

    def compare(self, name: str, left: OutputFile, right: OutputFile) -> Difference | None:
        """The tree of two files; None where the bytes of one are gone."""
        with ExitStack() as files, suppress(OSError, ReprokitError):  # what their digests say stands
            one = _opened(self.left, left, files)
            other = _opened(self.right, right, files) if one is not None else None
            if one is None or other is None:
                return None
            one.beside, other.beside = _Outputs(self.left, left.path, files), _Outputs(self.right, right.path, files)
            return compare(
                name,
                FileSide(one, left.path),
                FileSide(other, right.path),
                CompareOptions.within(self.tolerance, self.tolerance),
            )
        return None


@dataclass
class _Outputs:
    """The outputs of a run as the files beside one of them."""

    run: RunDirectory
    path: str
    files: ExitStack
    opened: dict[str, FileSource] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def open(self, name: str) -> FileSource | None:
        """The output of this name in the same directory."""
        if name not in self.opened and "/" not in name:
            outputs, path = self.run.outputs(), os.path.join(os.path.dirname(self.path), name)
            for file in (found for found in (outputs.files if outputs else ()) if found.path == path):
                opened = _opened(self.run, file, self.files)
                if opened is not None:
                    self.opened[name] = opened
        return self.opened.get(name)


def _opened(run: RunDirectory, file: OutputFile, files: ExitStack) -> FileSource | None:
    """The file with the recorded digest, until those files are closed."""
    opened = found(run, file)
    if opened is not None:
        files.callback(opened.close)
    return opened


def found(run: RunDirectory, file: OutputFile) -> FileSource | None:
    """The run's own copy, else the file that the run wrote; of a private key neither."""
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
    with suppress(OSError):
        is_recorded = source.size == file.size <= LARGEST and _digest(source) == file.digest
        if is_recorded and not private_keys.holds_private_key(source.read(0, private_keys.HEAD)):
            return source
    source.close()
    return None


def _digest(source: FileSource) -> str:
    digest = hashlib.sha256()
    for at in range(0, source.size, BLOCK):
        digest.update(source.read(at, BLOCK))
    return f"sha256:{digest.hexdigest()}"
