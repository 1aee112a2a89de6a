"""Finds the distributions that the training's Python had installed, without running it, and which it imported."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from reprokit import rundir
from reprokit.errors import LaunchError
from reprokit.launch.command import Command, chain

MAX_DIRECTORIES = 64
MAX_NAMES = 200_000  # looked at in all of them
MAX_PACKAGES = 5000
PATIENCE = 0.25  # seconds for finding out which of them were imported
MAX_LIST = 256 << 10  # bytes read of what lists the files of a distribution

_FIRST_NAME = re.compile(r"^[^/.,\n]+", re.MULTILINE)  # of each file, or each module, in a list
_DIRECTORY = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.]*?)(?:-(?P<version>[\w.!+]+?))?(?:-py[0-9.]+[\w.-]*)?\.(?:dist|egg)-info"
)
_PYTHON = re.compile(r"python(?P<version>[0-9]+(\.[0-9]+t?)?)?")
_SITES = ("site-packages", "dist-packages")


class Distribution(msgspec.Struct, frozen=True):
    """An installed distribution."""

    name: str  # in lower case, with dashes
    version: str
    place: str  # the directory that it is installed in
    facts: str  # the directory of its facts


def installed(path: Iterable[str]) -> list[Distribution]:
    """The distributions in these directories of sys.path; of one that is there twice the first, as Python takes it."""
    found: dict[str, Distribution] = {}
    for package in _all(path):
        found.setdefault(package.name, package)
        if len(found) >= MAX_PACKAGES:
            break
    return list(found.values())


def _all(path: Iterable[str]) -> Iterator[Distribution]:
    left = MAX_NAMES
    for place in list(dict.fromkeys(path))[:MAX_DIRECTORIES]:
        try:
            names = sorted(os.listdir(place)) if os.path.isabs(place) else []
        except OSError:
            continue
        left -= len(names)
        if left < 0:
            return
        for name in names:
            match = _DIRECTORY.fullmatch(name) if name.endswith("-info") else None
            if match is not None:
                yield Distribution(normal(match["name"]), match["version"] or "", place, os.path.join(place, name))


def normal(name: str) -> str:
    """Return a name as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(packages: list[Distribution], names: set[str], files: Iterable[str]) -> set[str]:
    """Return the packages that brought these top-level names or files; a name that several share counts for all."""
    wanted = names | set(_below(packages, files))
    lower = {name.lower() for name in wanted}
    found = {package.name for package in packages if package.name.replace("-", "_") in lower}
    rest = {name for name in wanted if normal(name) not in found}
    deadline = time.monotonic() + PATIENCE
    for package in packages:  # such a package may have brought other names too
        if package.name in found and rest and time.monotonic() < deadline:
            rest -= _top_level(package)
    for package in packages:
        if package.name not in found and rest and time.monotonic() < deadline and rest & _top_level(package):
            found.add(package.name)
    return found


def places(packages: Iterable[Distribution]) -> set[str]:
    """Return what the names of installed files begin with: no source tree, where packages may have been put as well."""
    found = set()
    for package in packages:
        if package.facts.endswith(".dist-info"):
            place = package.place.rstrip("/")
            is_theirs = os.path.basename(place) in _SITES
            found |= (
                {f"{place}/"} if is_theirs else {f"{place}/{top}{end}" for top in _top_level(package) for end in "/."}
            )
    return found


def built(packages: Iterable[Distribution], imported: Iterable[str] | None) -> set[str]:
    """Return the lists with digests of packages that were built from a directory: one version may stand for several."""
    facts = {package.facts for package in packages if imported is None or package.name in imported}
    return {os.path.join(place, "RECORD") for place in facts if _is_built(os.path.join(place, "direct_url.json"))}


def _is_built(path: str) -> bool:
    """Return whether pip says that it came from a directory or a checkout, and was copied: links lead to the source."""
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            return b'"editable":true' not in file.read(MAX_LIST).replace(b" ", b"")
    except OSError:
        return False


def _below(packages: list[Distribution], files: Iterable[str]) -> Iterator[str]:
    """Yield the top-level names of files that lie in a directory where packages are installed."""
    found = {f"{package.place.rstrip('/')}/" for package in packages if package.facts.endswith(".dist-info")}
    for file in files:
        for place in found:
            if file.startswith(place):
                yield file[len(place) :].split("/", 1)[0].split(".", 1)[0]


def _top_level(package: Distribution) -> set[str]:
    """Return what can be imported of a package, by its own account."""
    for name in ("top_level.txt", "RECORD", "SOURCES.txt"):
        with suppress(OSError):
            path = Path(package.facts) / name
            with open(path, encoding="utf-8", errors="replace", opener=rundir.open_regular) as file:
                return set(_FIRST_NAME.findall(file.read(MAX_LIST)))
    return set()


def directories(command: Command, own: Mapping[str, str], directory: Path) -> list[str] | None:
    """Return the directories of installed packages, in the order of sys.path; None where the command is no Python's."""
    python = _python(command, own.get("PATH"), directory)
    if python is None:
        return None
    named = [str(directory / place) for place in own.get("PYTHONPATH", "").split(os.pathsep) if place]
    return [*named, *_sites(python, own)]


def _python(command: Command, search_path: str | None, directory: Path) -> Path | None:
    """Return the interpreter that the command is, or that its #! lines lead to."""
    with suppress(LaunchError):
        for path, _ in chain(command.program, command.arguments, search_path, directory):
            if _PYTHON.fullmatch(path.name):
                return path
    return None


def _sites(python: Path, own: Mapping[str, str]) -> Iterator[str]:
    """Yield what site adds to sys.path: of the virtual environment first, then of the Python that it was made from."""
    environment = python.parent.parent
    settings = _settings(environment / "pyvenv.cfg")
    if settings is not None:
        yield from _package_directories(environment, settings.get("version", ""))
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
    real = Path(os.path.realpath(python))
    found = _PYTHON.fullmatch(real.name)
    version = (found["version"] or "") if found else ""
    home = own.get("HOME")
    if home and not own.get("PYTHONNOUSERSITE"):
        yield from _package_directories(Path(home) / ".local", version)
    for prefix in dict.fromkeys([real.parent.parent, Path("/usr/local"), Path("/usr")]):
        if prefix == real.parent.parent or real.is_relative_to("/usr"):
            yield from _package_directories(prefix, version)


def _settings(path: Path) -> dict[str, str] | None:
    """pyvenv.cfg; None where there is none."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition("=") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _package_directories(prefix: Path, version: str) -> Iterator[str]:
    """Yield the package directories under lib: of this version, or of every one where it is not known."""
    wanted = ".".join(version.split(".")[:2])
    for library in (prefix / "lib", prefix / "lib64"):
        places = [library / f"python{wanted}"] if "." in wanted else sorted(library.glob("python3*"))
        yield from (str(place / site) for place in places for site in _SITES if (place / site).is_dir())
    if (shared := prefix / "lib" / "python3" / "dist-packages").is_dir():  # of Debian
        yield str(shared)
