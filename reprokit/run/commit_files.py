"""Compares the files that a run used with the blobs of its commit: git's index may hide that they were edited.

Bytes are compared, but for what git changes itself in a checkout: ends of lines, and the pointers of Git LFS.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from reprokit.model.environment import EnvironmentFile, UsedFiles
from reprokit.run.git import LIMIT, Checkout, Git, GitFailed
from reprokit.run_files import names, rundir
from reprokit.run_files.names import CODE_SUFFIXES

MAX_USED = 4000  # files that are looked up
MAX_BYTES = 256 << 20  # read of all of them
MAX_ARGUMENTS = 64 << 10  # bytes of names in one call of git
MAX_DEPTH = 8  # submodules within each other
MAX_SUBMODULES = 50
PATIENCE = 2.0  # seconds for all of it
SCRIPTS = (
    *CODE_SUFFIXES, ".R", ".bash", ".bin", ".c", ".cc", ".cpp", ".cu", ".exe", ".go", ".ipynb", ".jar", ".java", ".jl",
    ".js", ".lua", ".m", ".mjs", ".mk", ".pl", ".r", ".rb", ".rs", ".sh", ".smk", ".ts", ".zsh",
)  # fmt: skip
_ENTRY = re.compile(rb"(\d{6}) ([a-z]+) ([0-9a-f]{40}|[0-9a-f]{64})\t(.+)", re.DOTALL)
LINK = b"120000"  # mode of a symbolic link


@dataclass(frozen=True)
class TreeEntry:
    """What a commit holds at a path."""

    mode: bytes
    kind: bytes  # blob, commit (of a submodule) or tree
    digest: str  # of the object

    def is_of(self, content: bytes) -> bool:
        """Return whether this is the blob of the content."""
        algorithm = hashlib.sha1 if len(self.digest) == 40 else hashlib.sha256
        return algorithm(b"blob %d\0" % len(content) + content).hexdigest() == self.digest

    def is_checked_out_as(self, content: bytes) -> bool:
        """Return whether this is the blob of a file that holds these bytes."""
        return self.is_of(content) or (b"\r\n" in content and self.is_of(content.replace(b"\r\n", b"\n")))

    def points_to(self, sha256: str, size: int) -> bool:
        """Return whether this is the pointer by which Git LFS stands for a file."""
        return self.is_of(f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode())


def compared(
    checkout: Checkout, facts: EnvironmentFile, directory: Path, written: set[str], unread: int = 0
) -> UsedFiles:
    """Return how the files that the facts list compare with the commit; what the run wrote is not its source.

    `unread` files of code were used and have no digest: they were removed, or there was no time.
    """
    real_directory = os.path.realpath(directory)
    code = {**_code_arguments(facts, real_directory), **facts.code}
    data = {entry["path"]: entry["digest"] for entry in facts.data if not entry.get("files")}
    places = {name: _places(os.path.join(real_directory, name)) for name in {**data, **facts.files, **code}}
    names_by_place = {paths: name for name, paths in places.items()}
    at_start = {places[name]: digest for name, digest in facts.files.items()}
    digests = {name: at_start.get(paths, {**data, **code}.get(name, "")) for paths, name in names_by_place.items()}
    tree = _CommitTree(checkout, time.monotonic() + PATIENCE)
    tree.look_up([path for paths in names_by_place for path in paths])
    states = {name: tree.state(paths, digests[name]) for paths, name in names_by_place.items()}
    for name in (name for name in states if not written.isdisjoint(places[name])):
        # What the commit has and the run wrote is not known as it was before: for data that is no matter.
        is_lost = name in code and states[name] is not _FileState.OUTSIDE
        states[name] = _FileState.UNKNOWN if is_lost else _FileState.SKIPPED
    return UsedFiles(
        changed={name: digests[name] for name in sorted(states) if states[name] is _FileState.CHANGED},
        outside={name: digests[name] for name in sorted(code) if states.get(name) is _FileState.OUTSIDE},
        same=sum(state is _FileState.SAME for state in states.values()),
        not_compared=sum(state is _FileState.UNKNOWN for state in states.values()) + unread,
    )


def _places(path: str) -> tuple[str, ...]:
    """Return the path of a file without links in its directories, and the file that it leads to if it is a link."""
    place = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    return tuple(dict.fromkeys((place, os.path.realpath(path))))


def _code_arguments(facts: EnvironmentFile, directory: str) -> dict[str, str]:
    """Return the scripts among the arguments, and the program, with their digests."""
    arguments = {name: digest for name, digest in facts.files.items() if _is_script(os.path.join(directory, name))}
    path = facts.program.get("path", "")
    is_own = path.startswith(f"{directory}/") and not names.is_environment(os.path.dirname(os.path.dirname(path)))
    return {**arguments, **({os.path.relpath(path, directory): facts.program.get("digest", "")} if is_own else {})}


def _is_script(path: str) -> bool:
    return path.endswith(SCRIPTS) or rundir.beginning(Path(os.path.realpath(path)), 2) == b"#!"


class _FileState(Enum):
    """How a file compares with the commit; of a link and its target, the first that applies."""

    CHANGED = "changed"
    OUTSIDE = "outside"
    UNKNOWN = "unknown"
    SAME = "same"
    SKIPPED = "skipped"  # no source


@dataclass
class _CommitTree:
    """The files of a commit that a run used, compared as far as time and memory go."""

    checkout: Checkout
    deadline: float
    left: int = MAX_BYTES  # bytes that may still be read
    submodules: int = MAX_SUBMODULES
    entries: dict[str, TreeEntry] = field(default_factory=dict)  # by absolute path
    unknown: set[str] = field(default_factory=set)  # absolute paths for which git was not asked, or gave no answer

    def look_up(self, paths: list[str]) -> None:
        """Ask git for what the commit holds at these absolute paths."""
        root = os.path.join(self.checkout.root, "")
        inside = list(dict.fromkeys(path for path in paths if path.startswith(root)))
        self.unknown.update(inside[MAX_USED:])
        self._look_up(self.checkout.git, root, self.checkout.commit, inside[:MAX_USED])

    def _look_up(self, git: Git, root: str, commit: str, paths: list[str], depth: int = MAX_DEPTH) -> None:
        entries = self._entries_at(git, root, commit, paths)
        self.entries |= {path: entry for path, entry in entries.items() if entry.kind == b"blob"}
        missing = [path for path in paths if path not in entries and path not in self.unknown]
        above = {path: None for name in missing for path in _directories_above(name, root)}
        for path, entry in self._entries_at(git, root, commit, list(above)).items():
            if entry.kind == b"commit":
                below = [other for other in missing if other.startswith(f"{path}/")]
                self._look_up_submodule(Git(git.program, Path(path)), entry.digest, below, depth - 1)
        self.unknown.update(name for name in missing if not self.unknown.isdisjoint(_directories_above(name, root)))

    def _look_up_submodule(self, git: Git, commit: str, paths: list[str], depth: int) -> None:
        self.submodules -= 1
        if self.submodules < 0 or not depth:
            self.unknown.update(paths)
        else:
            self._look_up(git, f"{git.directory}/", commit, paths, depth)

    def _entries_at(self, git: Git, root: str, commit: str, paths: list[str]) -> dict[str, TreeEntry]:
        """Return what a commit holds at absolute paths; where git gives no answer, they are not known."""
        entries: dict[str, TreeEntry] = {}
        for chunk in _chunks(paths):
            limit = min(LIMIT, self.deadline - time.monotonic())
            names_below = [path[len(root) :] for path in chunk]
            try:
                if limit <= 0:
                    raise GitFailed("no-answer")
                listed = git.output("ls-tree", "-z", "--full-tree", commit, "--", *names_below, limit=limit)
            except GitFailed:
                self.unknown.update(chunk)
                continue
            for match in filter(None, map(_ENTRY.fullmatch, listed.split(b"\0"))):
                entries[root + os.fsdecode(match[4])] = TreeEntry(match[1], match[2], match[3].decode())
        return entries

    def state(self, paths: tuple[str, ...], digest: str) -> _FileState:
        """Return the state of a file, or of a link and the file that it leads to, whose digest this is."""
        states = {self._state(path, digest) for path in paths}
        return next(state for state in _FileState if state in states)

    def _state(self, path: str, digest: str) -> _FileState:
        entry = self.entries.get(path)
        if entry is None:
            return _FileState.UNKNOWN if path in self.unknown else _FileState.OUTSIDE
        try:
            if os.path.islink(path) or entry.mode == LINK:
                is_same: bool | None = entry.mode == LINK and entry.is_of(os.fsencode(os.readlink(path)))
            else:
                is_same = self._has_bytes(path, entry, digest)
        except OSError:
            return _FileState.UNKNOWN
        return _FileState.UNKNOWN if is_same is None else _FileState.SAME if is_same else _FileState.CHANGED

    def _has_bytes(self, path: str, entry: TreeEntry, digest: str) -> bool | None:
        """Return whether a file has the bytes of the commit; None where that was not looked at."""
        if time.monotonic() > self.deadline or self.left <= 0:
            return None
        with open(path, "rb", opener=rundir.open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            kind, _, sha256 = digest.partition(":")
            if kind == "sha256" and entry.points_to(sha256, size):
                return True
            if size > self.left:
                return None
            content = file.read(size)
        self.left -= size
        if kind == "sha256" and hashlib.sha256(content).hexdigest() != sha256:
            return False  # it was edited while the training ran: one of its two versions is not the commit's
        return entry.is_checked_out_as(content)


def _directories_above(path: str, root: str) -> Iterator[str]:
    """Yield the directories between a file and the top of its checkout."""
    while (path := os.path.dirname(path)).startswith(root):
        yield path


def _chunks(paths: list[str]) -> Iterator[list[str]]:
    """Yield the paths in parts that fit into a command line."""
    chunk: list[str] = []
    size = 0
    for path in paths:
        if chunk and size + len(path) > MAX_ARGUMENTS:
            yield chunk
            chunk, size = [], 0
        chunk.append(path)
        size += len(path)
    if chunk:
        yield chunk
