"""The state of the training's source: its git checkout with what is not committed, and the files that it imported."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import reprokit
from reprokit import names, rundir
from reprokit.launch import modules
from reprokit.launch.host import MAX_CODE, file_digest
from reprokit.state_files import INDUCTOR

LIMIT = 2.0  # seconds for each question to git
MAX_DIFF = 256 << 20  # bytes of the changes that are read
MAX_UNTRACKED = 500  # files that are named
MAX_FILE = 1 << 20  # bytes of one of them; larger ones are data
MAX_BYTES = 256 << 20  # of all modules
PATIENCE = 1.0  # seconds for reading modules

# Nothing that the checkout's configuration names is executed.
_SAFELY = ("-c", "core.fsmonitor=false")
_DIFF = ("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")
_OWN = frozenset({".reprokit", "__pycache__"})
OWN = os.path.realpath(reprokit.__path__[0])
_NOISE = names.NOISE | {"dist-packages", "site-packages"}
_LIBRARY = re.compile(r"((.*?)/lib(?:64)?/python\d[\d.]*)(?=/|$)", re.DOTALL)
_CACHED = re.compile(r"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)


def git(directory: Path) -> dict[str, Any] | None:
    """Commit, digest of the changes to tracked files, and digests of untracked ones, where this is a checkout."""
    from shutil import which  # while the training runs: it takes long to load

    program = which("git")
    commit = _output(program, directory, "rev-parse", "HEAD") if program else None
    if program is None or commit is None:
        return None
    changes = _changes(program, directory)
    facts: dict[str, Any] = {"commit": commit.decode("ascii", "replace").strip(), "dirty": None}
    if changes is not None:
        facts.update(dirty=bool(changes), changes=changes)
    facts["untracked"], more = _untracked(program, directory)
    return {**facts, "more_untracked": more} if more else facts


def _output(program: str | None, directory: Path, *question: str) -> bytes | None:
    """Return what git answers; None if it fails or takes too long. Ctrl-C at the terminal does not reach it."""
    with suppress(OSError, subprocess.SubprocessError):
        asked = [program or "git", *_SAFELY, *question]
        done = subprocess.run(asked, timeout=LIMIT, check=True, **_surroundings(directory))
        answer: bytes = done.stdout
        return answer
    return None


def _surroundings(directory: Path) -> dict[str, Any]:
    return {
        "cwd": directory,
        "env": {**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
    }


def _changes(program: str, directory: Path) -> str | None:
    """Return the digest of what is not committed, submodules included; empty for nothing, None if git is too slow."""
    digest, size = hashlib.sha256(), 0
    with suppress(OSError), subprocess.Popen([program, *_SAFELY, *_DIFF], **_surroundings(directory)) as process:
        assert process.stdout is not None
        limit = threading.Timer(LIMIT, process.kill)
        limit.start()
        try:
            while (block := process.stdout.read(1 << 16)) and size <= MAX_DIFF:
                digest.update(block)
                size += len(block)
        finally:
            limit.cancel()
            if size > MAX_DIFF:
                process.kill()
        if process.wait() == 0:
            return f"sha256:{digest.hexdigest()}" if size else ""
    return None


def _untracked(program: str, directory: Path) -> tuple[dict[str, str], int]:
    """Return the digests of small files that git does not know and is not told to ignore; how many more there are."""
    listed = _output(program, directory, "ls-files", "--others", "--exclude-standard", "-z") or b""
    names = sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)
    own = tuple(f"{os.path.dirname(name)}/" for name in names if os.path.basename(name) == rundir.SHIM_PLAN)
    names = [name for name in names if not name.startswith(own) and _OWN.isdisjoint(name.split("/"))]
    found = {name: digest for name in names[:MAX_UNTRACKED] if (digest := file_digest(directory / name, MAX_FILE))}
    return found, max(0, len(names) - MAX_UNTRACKED)


def used(run: Path, search_path: Iterable[str], directory: Path) -> set[str]:
    """Return the code that processes of the run read, loaded or executed, outside of Python's and the system's places.

    It need not be a module: `exec`, `runpy` and ctypes leave none, a killed process names none, and not all is Python.
    """
    loaded, here = modules.loaded(run), os.path.realpath(directory)
    libraries = {match.groups() for place in (*search_path, *loaded) if (match := _LIBRARY.match(place))}
    pythons = {python for library, python in libraries if _is_of_python(library, python)}
    known = (*names.SYSTEM, *(f"{python}/{part}/" for python in pythons for part in ("bin", "lib")), f"{OWN}/")
    read = {_CACHED.sub(r"\1\2.py", path) for path in names.read(run)}
    files = {path for path in read if path.endswith((".py", ".pyc"))}.union(loaded)
    return {path for path in files if not path.startswith(known) and not _is_kept(path.removeprefix(f"{here}/"))}


def _is_of_python(library: str, python: str) -> bool:
    """Return whether a directory is an interpreter's or an environment's, and not a project's that is called so."""
    return os.path.isfile(f"{library}/os.py") or names.is_environment(python)


def _is_kept(path: str) -> bool:
    return INDUCTOR in path or not _NOISE.isdisjoint(path.split("/"))


def digests(files: Iterable[str], directory: Path, packages: Iterable[str]) -> dict[str, str]:
    """The digests of the code that lies outside of packages, by path from the working directory."""
    places = tuple(packages)
    own = [file for file in sorted(files) if not file.startswith(places)]
    return dict(_digests(own[:MAX_CODE], directory))


def _digests(files: list[str], directory: Path) -> Iterator[tuple[str, str]]:
    deadline, left = time.monotonic() + PATIENCE, MAX_BYTES
    for file in files:
        if time.monotonic() > deadline or left < 0:
            return
        digest = file_digest(Path(file))
        if digest is not None:
            left -= os.path.getsize(file)
            yield os.path.relpath(file, directory) if file.startswith(f"{directory}/") else file, digest


def without(git: dict[str, Any] | None, known: set[str], directory: Path) -> dict[str, Any] | None:
    """Return the state of a checkout without files that the run itself wrote, or that are told of elsewhere."""
    if git is None:
        return None
    here = os.path.realpath(directory)
    paths = {name: os.path.join(here, name) for name in git["untracked"]}
    told = {name for name, path in paths.items() if known & {path, os.path.join(os.path.dirname(path), "*")}}
    untracked = {name: digest for name, digest in git["untracked"].items() if name not in told}
    return {**git, "untracked": untracked}
