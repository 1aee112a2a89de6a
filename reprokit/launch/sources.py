"""Records the training's source: its git checkout with uncommitted changes, and the code files that it used."""

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

LIMIT = 2.0  # seconds for each call of git
MAX_DIFF = 256 << 20  # bytes read of the changes
MAX_UNTRACKED = 500  # files listed
MAX_FILE = 1 << 20  # bytes of an untracked file; larger files count as data
MAX_BYTES = 256 << 20  # of all modules
PATIENCE = 1.0  # seconds for reading modules

# Keeps git from executing programs that the checkout's configuration names.
_SAFELY = ("-c", "core.fsmonitor=false")
_DIFF = ("diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=diff")
_OWN = frozenset({".reprokit", "__pycache__"})
OWN = os.path.realpath(reprokit.__path__[0])
_NOISE = names.NOISE | {"dist-packages", "site-packages"}
_LIBRARY = re.compile(r"((.*?)/lib(?:64)?/python\d[\d.]*)(?=/|$)", re.DOTALL)
_CACHED = re.compile(r"(.*/)__pycache__/([^/]+?)\.[^/]*\.pyc", re.DOTALL)


def git(directory: Path) -> dict[str, Any] | None:
    """Return the commit, the digest of changes to tracked files and those of untracked files; None outside of git."""
    from shutil import which  # imported while the training runs: slow to load

    program = which("git")
    commit = _output(program, directory, "rev-parse", "HEAD") if program else None
    if program is None or commit is None:
        return None
    changes = _changes(program, directory)
    facts: dict[str, Any] = {"commit": commit.decode("ascii", "replace").strip(), "dirty": None}
    if changes is not None:
        facts.update(dirty=bool(changes), changes=changes)
    facts["untracked"], left_out = _untracked(program, directory)
    return {**facts, "more_untracked": left_out} if left_out else facts


def _output(program: str | None, directory: Path, *arguments: str) -> bytes | None:
    """Return git's output; None if it fails or times out. Ctrl-C in the terminal does not reach it."""
    with suppress(OSError, subprocess.SubprocessError):
        command = [program or "git", *_SAFELY, *arguments]
        process = subprocess.run(command, timeout=LIMIT, check=True, **_process_options(directory))
        answer: bytes = process.stdout
        return answer
    return None


def _process_options(directory: Path) -> dict[str, Any]:
    return {
        "cwd": directory,
        "env": {**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
    }


def _changes(program: str, directory: Path) -> str | None:
    """Return the digest of uncommitted changes with submodules; empty for none, None if git is too slow."""
    digest, size = hashlib.sha256(), 0
    with suppress(OSError), subprocess.Popen([program, *_SAFELY, *_DIFF], **_process_options(directory)) as process:
        assert process.stdout is not None
        timer = threading.Timer(LIMIT, process.kill)
        timer.start()
        try:
            while (block := process.stdout.read(1 << 16)) and size <= MAX_DIFF:
                digest.update(block)
                size += len(block)
        finally:
            timer.cancel()
            if size > MAX_DIFF:
                process.kill()
        if process.wait() == 0:
            return f"sha256:{digest.hexdigest()}" if size else ""
    return None


def _untracked(program: str, directory: Path) -> tuple[dict[str, str], int]:
    """Return the digests of small untracked files that git does not ignore, and the number of files left out."""
    output = _output(program, directory, "ls-files", "--others", "--exclude-standard", "-z") or b""
    names = sorted(os.fsdecode(name) for name in output.split(b"\0") if name)
    run_directories = tuple(f"{os.path.dirname(name)}/" for name in names if os.path.basename(name) == rundir.SHIM_PLAN)
    names = [name for name in names if not name.startswith(run_directories) and _OWN.isdisjoint(name.split("/"))]
    digests = {name: digest for name in names[:MAX_UNTRACKED] if (digest := file_digest(directory / name, MAX_FILE))}
    return digests, max(0, len(names) - MAX_UNTRACKED)


def used(run: Path, search_path: Iterable[str], directory: Path) -> set[str]:
    """Return the code that processes read, loaded or executed, without that of Python and the system.

    It need not be a module: `exec`, `runpy` and ctypes leave none, and a killed process reports none.
    """
    loaded, real_directory = modules.loaded(run), os.path.realpath(directory)
    libraries = {match.groups() for place in (*search_path, *loaded) if (match := _LIBRARY.match(place))}
    pythons = {python for library, python in libraries if _is_python_prefix(library, python)}
    excluded = (*names.SYSTEM, *(f"{python}/{part}/" for python in pythons for part in ("bin", "lib")), f"{OWN}/")
    read_files = {_CACHED.sub(r"\1\2.py", path) for path in names.read(run)}
    files = {path for path in read_files if path.endswith((".py", ".pyc"))}.union(loaded)
    return {
        path
        for path in files
        if not path.startswith(excluded) and not _is_excluded(path.removeprefix(f"{real_directory}/"))
    }


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


def _digests(files: list[str], directory: Path) -> Iterator[tuple[str, str]]:
    deadline, remaining = time.monotonic() + PATIENCE, MAX_BYTES
    for file in files:
        if time.monotonic() > deadline or remaining < 0:
            return
        digest = file_digest(Path(file))
        if digest is not None:
            remaining -= os.path.getsize(file)
            yield os.path.relpath(file, directory) if file.startswith(f"{directory}/") else file, digest


def without(git: dict[str, Any] | None, known_paths: set[str], directory: Path) -> dict[str, Any] | None:
    """Return the state of a checkout without untracked files that the run wrote or that are listed elsewhere."""
    if git is None:
        return None
    real_directory = os.path.realpath(directory)
    paths = {name: os.path.join(real_directory, name) for name in git["untracked"]}
    excluded = {name for name, path in paths.items() if known_paths & {path, os.path.join(os.path.dirname(path), "*")}}
    untracked = {name: digest for name, digest in git["untracked"].items() if name not in excluded}
    return {**git, "untracked": untracked}
