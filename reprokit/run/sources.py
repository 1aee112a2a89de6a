"""Records the training's source: its git checkout with uncommitted changes, and the code files that it used."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reprokit
from reprokit.run import modules
from reprokit.run.file_digests import MAX_CODE, file_digest
from reprokit.run_files import names, rundir
from reprokit.run_files.state_files import INDUCTOR

if TYPE_CHECKING:
    from reprokit.run.git import Checkout, Git

MAX_DIFF = 256 << 20  # bytes read of the changes
MAX_UNTRACKED = 500  # files listed
MAX_FILE = 1 << 20  # bytes of an untracked file; larger files count as data
MAX_BYTES = 256 << 20  # of all modules
PATIENCE = 1.0  # seconds for reading modules

_DIFF = ("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")
_OWN = frozenset({".reprokit", "__pycache__"})
OWN = os.path.realpath(reprokit.__path__[0])
_NOISE = names.NOISE | {"dist-packages", "site-packages"}
_LIBRARY = re.compile(r"((.*?)/lib(?:64)?/python\d[\d.]*)(?=/|$)", re.DOTALL)
_CACHED = re.compile(r"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)


def checkout_facts(directory: Path) -> tuple[Checkout | None, dict[str, Any] | None]:
    """Return the checkout that a directory is in with its state, or why git does not know it; None outside of git."""
    place = next((path for path in (directory, *directory.parents) if os.path.lexists(path / ".git")), None)
    if place is None and "GIT_DIR" not in os.environ:
        return None, None
    from reprokit.run.git import GitFailed, checkout_of  # imported by runs in a checkout: slow to load

    try:
        checkout = checkout_of(directory, place)
    except GitFailed as failure:
        return None, {"problem": failure.problem}
    return checkout, _state_of(checkout)


def _state_of(checkout: Checkout) -> dict[str, Any]:
    """Return the commit, the digest of changes to tracked files and those of untracked files."""
    from reprokit.run.git import GitFailed

    facts: dict[str, Any] = {"commit": checkout.commit, "dirty": None, "untracked": {}}
    changes = None
    with suppress(GitFailed):  # a huge checkout may be too slow for one of them
        changes = _changes(checkout.git)
    with suppress(GitFailed):
        facts["untracked"], left_out = _untracked(checkout.git)
        facts |= {"more_untracked": left_out} if left_out else {}
        facts["dirty"] = None if changes is None else bool(changes)
    with suppress(GitFailed):
        facts |= {"repository": address} if (address := checkout.git.address()) else {}
    return facts if changes is None else {**facts, "changes": changes}


def _changes(git: Git) -> str | None:
    """Return the digest of uncommitted changes with submodules; empty for none, None for too many to read."""
    digest, size = hashlib.sha256(), 0
    with closing(git.blocks(*_DIFF)) as blocks:
        for block in blocks:
            digest.update(block)
            size += len(block)
            if size > MAX_DIFF:
                return None
    return f"sha256:{digest.hexdigest()}" if size else ""


def _untracked(git: Git) -> tuple[dict[str, str], int]:
    """Return the digests of small untracked files that git does not ignore, and the number of files left out."""
    output = git.output("ls-files", "--others", "--exclude-standard", "-z")
    names = sorted(os.fsdecode(name) for name in output.split(b"\0") if name)
    run_directories = tuple(f"{os.path.dirname(name)}/" for name in names if os.path.basename(name) == rundir.SHIM_PLAN)
    names = [name for name in names if not name.startswith(run_directories) and _OWN.isdisjoint(name.split("/"))]
    directory = git.directory
    digests = {name: digest for name in names[:MAX_UNTRACKED] if (digest := file_digest(directory / name, MAX_FILE))}
    return digests, max(0, len(names) - MAX_UNTRACKED)


def used(run: Path, search_path: Iterable[str], imported: set[str], written: set[str], directory: Path) -> set[str]:
    """Return the code that processes imported, read, loaded or executed, without that of Python and the system.

    It need not be a module: `exec`, `runpy` and ctypes leave none, and a killed process reports none.
    """
    loaded, real_directory = modules.loaded(run), os.path.realpath(directory)
    libraries = {match.groups() for place in (*search_path, *loaded) if (match := _LIBRARY.match(place))}
    pythons = {python for library, python in libraries if _is_python_prefix(library, python)}
    excluded = (*names.SYSTEM, *(f"{python}/{part}/" for python in pythons for part in ("bin", "lib")), f"{OWN}/")
    read_files = {_CACHED.sub(r"\1\2.py", path) for path in names.read(run)}
    files = {path for path in read_files if path.endswith((".py", ".pyc"))}.union(loaded)
    seen = {
        path
        for path in files - written
        if not path.startswith(excluded) and not _is_excluded(path.removeprefix(f"{real_directory}/"))
    }
    return seen | {path for path in imported if not path.startswith(f"{OWN}/")}


def _is_python_prefix(library: str, python: str) -> bool:
    """Return whether this is an interpreter's or environment's directory, not a project's of that name."""
    return os.path.isfile(f"{library}/os.py") or names.is_environment(python)


def _is_excluded(path: str) -> bool:
    return INDUCTOR in path or not _NOISE.isdisjoint(path.split("/"))


def digests(files: Iterable[str], directory: Path, packages: Iterable[str]) -> dict[str, str]:
    """Return the digests of code outside of packages, by path relative to the working directory."""
    places = tuple(packages)
    code_files = [file for file in sorted(files) if not file.startswith(places)]
    return dict(_digests(code_files[:MAX_CODE], directory))


def unread(files: Iterable[str], directory: Path, packages: Iterable[str], listed: Iterable[str]) -> set[str]:
    """Return the code outside of packages that is not listed by its digest: it is gone, or there was no time."""
    places = tuple(packages)
    candidates = {os.path.realpath(file) for file in files if not file.startswith(places)}
    listed_files = {os.path.realpath(os.path.join(directory, name)) for name in listed}
    return {file for file in candidates - listed_files if not file.startswith(places)}


def _digests(files: list[str], directory: Path) -> Iterator[tuple[str, str]]:
    deadline, remaining = time.monotonic() + PATIENCE, MAX_BYTES
    for file in files:
        if time.monotonic() > deadline or remaining < 0:
            return
        digest = file_digest(Path(file))
        if digest is not None:
            remaining -= os.path.getsize(file)
            yield os.path.relpath(file, directory) if file.startswith(f"{directory}/") else file, digest


def without(git: dict[str, Any], known_paths: set[str], directory: Path) -> dict[str, Any]:
    """Return the state of a checkout without untracked files that the run wrote or that are listed elsewhere."""
    real_directory = os.path.realpath(directory)
    paths = {name: os.path.join(real_directory, name) for name in git["untracked"]}
    excluded = {name for name, path in paths.items() if known_paths & {path, os.path.join(os.path.dirname(path), "*")}}
    untracked = {name: digest for name, digest in git["untracked"].items() if name not in excluded}
    return {**git, "untracked": untracked}
