"""States from what source a run was executed: its commit, and the files that it used beside those of the commit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Protocol

from reprokit.core.printable import listed
from reprokit.core.untrusted_json import object_in
from reprokit.evidence.report.facts import SourceState, Stated
from reprokit.model.environment import PROBLEMS, UsedFiles, used_files

LONGEST = 2000  # characters of an address
NAMED = 3  # files in a sentence
_BEYOND = ("changes", "untracked", "more_untracked")  # keys of environment.json: what the commit does not say


class StatedSource(Protocol):
    """The source of a run, as a report or a signed statement has it."""

    @property
    def commit(self) -> str: ...
    @property
    def repository(self) -> str: ...
    @property
    def changed_files(self) -> tuple[str, ...]: ...
    @property
    def outside_files(self) -> tuple[str, ...]: ...
    @property
    def same_files(self) -> int: ...
    @property
    def not_compared(self) -> int: ...
    @property
    def state(self) -> str: ...


def source_of(environment: dict[str, Any]) -> SourceState:
    """Return the state of the git checkout; what the commit does not say is given by its digest."""
    git = object_in(environment, "git")
    used = used_files(git)
    files = used or UsedFiles()
    beyond = {key: git[key] for key in _BEYOND if git.get(key)}
    beyond |= {"used": [files.changed, files.outside]} if files.changed or files.outside else {}
    is_known = used is not None and not used.not_compared and git.get("dirty") is not None
    text = json.dumps(beyond, sort_keys=True, separators=(",", ":"))
    return SourceState(
        state="changed" if beyond else "clean" if is_known else "unknown",
        commit=str(git.get("commit") or ""),
        repository=str(git.get("repository") or "")[:LONGEST],
        changes=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if beyond else "",
        changed_files=tuple(files.changed),
        outside_files=tuple(files.outside),
        same_files=files.same,
        not_compared=files.not_compared,
    )


def source_line(source: StatedSource) -> str:
    """Return the source of a run in one line."""
    of = f" of {source.repository}" if source.repository else ""
    state = f"{source.state}, commit {source.commit or 'unknown'}{of}"
    return "; ".join((state, *(_sentences(source) if source.commit else ())))


def stated_source(environment: dict[str, Any]) -> Iterator[Stated]:
    """Yield the commit, what git says of changes, and how the files that were used compare with the commit."""
    git = environment.get("git")
    if not isinstance(git, dict):
        yield Stated("git commit", "not in a git repository")
        return
    commit = str(git.get("commit") or "")
    if not commit:
        yield Stated("git commit", PROBLEMS.get(str(git.get("problem")), "unknown"))
        return
    yield Stated("git commit", commit)
    if address := source_of(environment).repository:
        yield Stated("git repository", address)
    yield Stated("git changes", _changes(git))
    if sentences := list(_sentences(source_of(environment))):
        yield Stated("git files that were used", "; ".join(sentences))


def _sentences(source: StatedSource) -> Iterator[str]:
    """Yield how the files that a run used compare with its commit."""
    if changed := source.changed_files:
        yield f"{_files(len(changed))} used with other bytes than in the commit: {_named(changed)}"
    if outside := source.outside_files:
        yield f"{_files(len(outside), ' of code')} used that the commit lacks: {_named(outside)}"
    if source.state == "changed" and not (source.changed_files or source.outside_files):
        yield "git lists changes, or files that it does not know"
    if source.same_files:
        yield f"{_files(source.same_files)} used as the commit has {'it' if source.same_files == 1 else 'them'}"
    if source.not_compared:
        yield f"{_files(source.not_compared)} used and not compared with the commit"


def _files(count: int, kind: str = "") -> str:
    return f"1 file{kind} was" if count == 1 else f"{count:,} files{kind} were"


def _named(files: tuple[str, ...]) -> str:
    return listed(list(files), NAMED)


def _changes(git: dict[str, Any]) -> str:
    """Return the uncommitted changes that git lists, by their digest."""
    count = len(object_in(git, "untracked"))
    files = f"; {count} files that git does not know and no process was seen to read" if count else ""
    if git.get("dirty") is None:
        return f"not known, as git did not answer in time{files}"
    if not git["dirty"]:
        return f"none that git lists{files}"
    return f"changes that were not committed, as a diff {git.get('changes') or 'whose digest is not known'}{files}"
