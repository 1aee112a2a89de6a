"""Finds where the command's Python has its packages, without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from reprokit.errors import LaunchError
from reprokit.launch import command as commands
from reprokit.launch.command import Command

SCRIPT_LIMIT = 5  # lines with #! that are followed
LINE_LIMIT = 256
_PYTHON = re.compile(r"python(?P<version>[0-9]+(\.[0-9]+t?)?)?")
_SITES = ("site-packages", "dist-packages")


def directories(command: Command, own: Mapping[str, str], directory: Path) -> list[str] | None:
    """The directories of installed packages, in the order of sys.path; None where the command is no Python's."""
    python = _python(command, own.get("PATH"), directory)
    if python is None:
        return None
    named = [str(directory / place) for place in own.get("PYTHONPATH", "").split(os.pathsep) if place]
    return [*named, *_sites(python, own)]


def _python(command: Command, search_path: str | None, directory: Path) -> Path | None:
    """The interpreter that the command is, or that its #! lines lead to."""
    program = command.program
    for _ in range(SCRIPT_LIMIT):
        path = directory / program
        if _PYTHON.fullmatch(os.path.basename(program)):
            return path
        words = _interpreter(path)
        if words and os.path.basename(words[0]) == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if not words:
            return None
        try:
            program = commands.find(words[0], search_path, directory)
        except LaunchError:
            return None
    return None


def _interpreter(path: Path) -> list[str]:
    """The words behind #! of a script."""
    try:
        with open(path, "rb") as file:
            head = file.read(LINE_LIMIT)
    except OSError:
        return []
    line = head.split(b"\n", 1)[0]
    return os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []


def _sites(python: Path, own: Mapping[str, str]) -> Iterator[str]:
    """What site adds to sys.path: of the virtual environment first, then of the Python that it was made from."""
    environment = python.parent.parent
    settings = _settings(environment / "pyvenv.cfg")
    if settings is not None:
        yield from _below(environment, settings.get("version", ""))
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
    real = Path(os.path.realpath(python))
    found = _PYTHON.fullmatch(real.name)
    version = (found["version"] or "") if found else ""
    home = own.get("HOME")
    if home and not own.get("PYTHONNOUSERSITE"):
        yield from _below(Path(home) / ".local", version)
    for prefix in dict.fromkeys([real.parent.parent, Path("/usr/local"), Path("/usr")]):
        if prefix == real.parent.parent or real.is_relative_to("/usr"):
            yield from _below(prefix, version)


def _settings(path: Path) -> dict[str, str] | None:
    """pyvenv.cfg; None where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition("=") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _below(prefix: Path, version: str) -> Iterator[str]:
    """The package directories under lib: of this version, or of every one where it is not known."""
    wanted = ".".join(version.split(".")[:2])
    for library in (prefix / "lib", prefix / "lib64"):
        places = [library / f"python{wanted}"] if "." in wanted else sorted(library.glob("python3*"))
        yield from (str(place / site) for place in places for site in _SITES if (place / site).is_dir())
    if (shared := prefix / "lib" / "python3" / "dist-packages").is_dir():  # of Debian
        yield str(shared)
