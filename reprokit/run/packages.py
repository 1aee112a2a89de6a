"""Finds the distributions that the training's Python had installed, without running it, and which it imported."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from reprokit.core.errors import LaunchError
from reprokit.run.command import Command, chain
from reprokit.run_files import rundir

MAX_DIRECTORIES = 64
MAX_NAMES = 200_000  # directory entries examined in total
MAX_PACKAGES = 5000
PATIENCE = 0.25  # seconds for finding which were imported
MAX_LIST = 256 << 10  # bytes read of a distribution's list of files

_FIRST_NAME = re.compile(r"^[^/.,\n]+", re.MULTILINE)  # of each file or module in a list
_DIRECTORY = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.]*?)(?:-(?P<version>[\w.!+]+?))?(?:-py[0-9.]+[\w.-]*)?\.(?:dist|egg)-info"
)
_PYTHON = re.compile(r"python(?P<version>[0-9]+(\.[0-9]+t?)?)?")
_SITES = ("site-packages", "dist-packages")


class Distribution(msgspec.Struct, frozen=True):
    """An installed distribution of a package."""

    name: str  # in lower case, with dashes
    version: str
    place: str  # directory in which it is installed
    facts: str  # its .dist-info or .egg-info directory


def installed(path: Iterable[str]) -> list[Distribution]:
    """Return the distributions in these directories of sys.path; the first of each name, as Python takes it."""
    distributions: dict[str, Distribution] = {}
    for package in _all_distributions(path):
        distributions.setdefault(package.name, package)
        if len(distributions) >= MAX_PACKAGES:
            break
    return list(distributions.values())


def _all_distributions(path: Iterable[str]) -> Iterator[Distribution]:
    remaining = MAX_NAMES
    for place in list(dict.fromkeys(path))[:MAX_DIRECTORIES]:
        try:
            names = sorted(os.listdir(place)) if os.path.isabs(place) else []
        except OSError:
            continue
        remaining -= len(names)
        if remaining < 0:
            return
        for name in names:
            match = _DIRECTORY.fullmatch(name) if name.endswith("-info") else None
            if match is not None:
                yield Distribution(normal(match["name"]), match["version"] or "", place, os.path.join(place, name))


def normal(name: str) -> str:
    """Return a name in PEP 503's normal form."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(packages: list[Distribution], names: set[str], files: Iterable[str]) -> set[str]:
    """Return the packages that provided these top-level names or files; a shared name counts for all its packages."""
    top_level = names | set(_names_of_files(packages, files))
    lower_names = {name.lower() for name in top_level}
    imported_packages = {package.name for package in packages if package.name.replace("-", "_") in lower_names}
    unmatched = {name for name in top_level if normal(name) not in imported_packages}
    deadline = time.monotonic() + PATIENCE
    for package in packages:  # a matching package may provide further names
        if package.name in imported_packages and unmatched and time.monotonic() < deadline:
            unmatched -= _top_level_names(package)
    for package in packages:
        if (
            package.name not in imported_packages
            and unmatched
            and time.monotonic() < deadline
            and unmatched & _top_level_names(package)
        ):
            imported_packages.add(package.name)
    return imported_packages


def places(packages: Iterable[Distribution]) -> set[str]:
    """Return the path prefixes of installed files; a source tree with installed packages is not taken as a whole."""
    prefixes = set()
    for package in packages:
        if package.facts.endswith(".dist-info"):
            place = package.place.rstrip("/")
            is_site_directory = os.path.basename(place) in _SITES
            prefixes |= (
                {f"{place}/"}
                if is_site_directory
                else {f"{place}/{top}{end}" for top in _top_level_names(package) for end in "/."}
            )
    return prefixes


def built(packages: Iterable[Distribution], imported: Iterable[str] | None) -> set[str]:
    """Return the file lists with digests of packages built from a directory: their version may not identify them."""
    facts = {package.facts for package in packages if imported is None or package.name in imported}
    return {
        os.path.join(place, "RECORD")
        for place in facts
        if _is_built_from_directory(os.path.join(place, "direct_url.json"))
    }


def _is_built_from_directory(path: str) -> bool:
    """Return whether pip installed a copy from a directory or checkout; editable installs lead to the source."""
    try:
        with open(path, "rb", opener=rundir.open_regular) as file:
            return b'"editable":true' not in file.read(MAX_LIST).replace(b" ", b"")
    except OSError:
        return False


def _names_of_files(packages: list[Distribution], files: Iterable[str]) -> Iterator[str]:
    """Yield the top-level names of files in directories where packages are installed."""
    prefixes = {f"{package.place.rstrip('/')}/" for package in packages if package.facts.endswith(".dist-info")}
    for file in files:
        for prefix in prefixes:
            if file.startswith(prefix):
                yield file[len(prefix) :].split("/", 1)[0].split(".", 1)[0]


def _top_level_names(package: Distribution) -> set[str]:
    """Return the names that can be imported from a package, by its own metadata."""
    for name in ("top_level.txt", "RECORD", "SOURCES.txt"):
        with suppress(OSError):
            path = Path(package.facts) / name
            with open(path, encoding="utf-8", errors="replace", opener=rundir.open_regular) as file:
                return set(_FIRST_NAME.findall(file.read(MAX_LIST)))
    return set()


def directories(command: Command, user_variables: Mapping[str, str], directory: Path) -> list[str] | None:
    """Return the directories of installed packages in sys.path's order; None if the command is not Python."""
    python = interpreter(command, user_variables.get("PATH"), directory)
    if python is None:
        return None
    search_path = [str(directory / entry) for entry in user_variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sites = list(_site_directories(python, user_variables))
    return [*search_path, *sites, *(path for site in sites for path in _linked(site))]


def _linked(site: str) -> Iterator[str]:
    """Yield the directories that .pth files of a package directory add to sys.path."""
    with suppress(OSError):
        for name in [name for name in sorted(os.listdir(site)) if name.endswith(".pth")][:MAX_DIRECTORIES]:
            for line in rundir.beginning(Path(site, name), MAX_LIST).splitlines():
                path = os.path.join(site, os.fsdecode(line.strip()))
                if not line.startswith((b"#", b"import ", b"import\t")) and os.path.isdir(path):
                    yield path


def interpreter(command: Command, search_path: str | None, directory: Path) -> Path | None:
    """Return the Python interpreter that the command is, or to which its #! lines lead; None if there is none."""
    with suppress(LaunchError):
        for path, _ in chain(command.program, command.arguments, search_path, directory):
            if _PYTHON.fullmatch(path.name):
                return path
    return None


def _site_directories(python: Path, user_variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the directories that site adds to sys.path: those of the virtual environment first, then its base's."""
    environment = python.parent.parent
    settings = _environment_settings(environment / "pyvenv.cfg")
    if settings is not None:
        yield from _package_directories(environment, settings.get("version", ""))
        if settings.get("include-system-site-packages", "").lower() != "true":
            return
    real = Path(os.path.realpath(python))
    match = _PYTHON.fullmatch(real.name)
    version = (match["version"] or "") if match else ""
    home = user_variables.get("HOME")
    if home and not user_variables.get("PYTHONNOUSERSITE"):
        yield from _package_directories(Path(home) / ".local", version)
    for prefix in dict.fromkeys([real.parent.parent, Path("/usr/local"), Path("/usr")]):
        if prefix == real.parent.parent or real.is_relative_to("/usr"):
            yield from _package_directories(prefix, version)


def _environment_settings(path: Path) -> dict[str, str] | None:
    """Return the settings in pyvenv.cfg; None if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    pairs = (line.partition("=") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _package_directories(prefix: Path, version: str) -> Iterator[str]:
    """Yield the package directories below lib: of this Python version, or of every version if it is unknown."""
    minor_version = ".".join(version.split(".")[:2])
    for library in (prefix / "lib", prefix / "lib64"):
        places = [library / f"python{minor_version}"] if "." in minor_version else sorted(library.glob("python3*"))
        yield from (str(place / site) for place in places for site in _SITES if (place / site).is_dir())
    if (shared := prefix / "lib" / "python3" / "dist-packages").is_dir():  # of Debian
        yield str(shared)
