"""Finds where the command's Python has its packages, without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from reprokit.errors import LaunchError
from reprokit.launch.command import Command, chain

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
    with suppress(LaunchError):
        for path, _ in chain(command.program, command.arguments, search_path, directory):
            if _PYTHON.fullmatch(path.name):
                return path
    return None


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
