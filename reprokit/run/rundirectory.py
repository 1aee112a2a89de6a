"""Creates a run directory, and removes an overwritten one only once the new one is in place."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

from reprokit.core.errors import CannotWriteRun, RunError, RunExists, RunNotFound, refused_as
from reprokit.run_files import home as run_home
from reprokit.run_files import rundir
from reprokit.run_files.home import LAST, home_of

NAMES = rundir.FILES | rundir.DIRECTORIES


class NewRun:
    """A run directory under a temporary name, which is later moved to its path or discarded."""

    def __init__(self, output: Path | None, overwrite: bool, *, becomes_last: bool = True):
        self._overwrites = overwrite
        self.place = _default_path() if output is None else _requested_path(output, overwrite)
        self._updates_last = becomes_last and self.place.parent == home_of(Path())
        self.path = self.place.with_name(f"{self.place.name}.new-{_random_hex()}")
        _make_directory(self.path)

    def take_place(self) -> Path:
        """Move the directory to its path; an overwritten run is deleted only now."""
        old = self.place.with_name(f"{self.place.name}.old-{_random_hex()}")
        try:
            if self._overwrites:
                _refuse_running(self.place)  # another rank of a job may have begun there meanwhile
                with suppress(FileNotFoundError):
                    os.rename(self.place, old)
            os.rename(self.path, self.place)  # fails if another process created it meanwhile
        except RunError:
            self.discard()
            raise
        except OSError as error:
            with suppress(OSError):
                os.rename(old, self.place)
            self.discard()
            raise CannotWriteRun(f"{self.place}: {error.strerror}; choose another directory with -o") from None
        if self._overwrites:
            remove(old)
        self.path = self.place
        if self._updates_last:
            _point_last_to(self.place)
        return self.place

    def discard(self) -> None:
        """Remove the new directory; whatever is at the requested path remains."""
        remove(self.path)


def remove(path: Path) -> None:
    """Remove a run directory as far as possible."""
    with suppress(ImportError, OSError):  # fails if no descriptor is free
        import shutil  # imported late: slow to load, and most runs remove nothing

        shutil.rmtree(path, ignore_errors=True)


def new_directory(place: Path) -> Path:
    """Create a new, empty directory for several runs."""
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        raise RunExists(f"{place} exists already; choose another directory with -o") from None
    except OSError as error:
        raise CannotWriteRun(f"{place}: {error.strerror}; choose another place with -o") from None
    return place


def next_directory(place: Path, name: str) -> Path:
    """Create a directory of this name in a place; if the name is taken, NAME+2, NAME+3 and so on."""
    for number in count(1):
        path = place / (name if number == 1 else f"{name}+{number}")
        with suppress(FileExistsError):
            path.mkdir(mode=0o700, parents=True)
            return path
    raise AssertionError("numbers do not end")


def shown(path: Path) -> str:
    """Return the path as it is shown to the user: relative to the current directory if it is below it."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(os.path.realpath(os.curdir)))
    return str(path)


def _random_hex() -> str:
    return os.urandom(2).hex()


def home(directory: Path) -> Path:
    """Return the directory for runs of a project; creates it, ignored by git, if it is missing."""
    runs_directory = home_of(directory)
    if not runs_directory.is_dir():
        _make_directory(runs_directory, exist_ok=True)  # another launcher may create it meanwhile
    gitignore = runs_directory / ".gitignore"
    with suppress(OSError):
        if not gitignore.exists():
            gitignore.write_text("*\n")
    return runs_directory


def _default_path() -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return home(Path()) / f"{stamp}-{_random_hex()}"


def _requested_path(output: Path, overwrite: bool) -> Path:
    path = Path(os.path.realpath(output))
    if not os.path.lexists(path):
        if path.parent == home_of(Path()):
            home(Path())
        if path.parent.name == rundir.HOSTS and path.parent.parent.parent.is_dir():
            for part in (path.parent.parent, path.parent):  # other hosts create them as well
                _make_directory(part, exist_ok=True)
        if not path.parent.is_dir():
            raise CannotWriteRun(f"{path.parent} is not a directory; make it first, or choose another with -o")
        return path
    if not overwrite:
        raise RunExists(f"{output} exists already; choose another directory, or add --overwrite")
    _require_deletable(path, output)
    return path


def _require_deletable(place: Path, output: Path) -> None:
    """Raise RunExists unless this is a finished run or an empty directory, which may be deleted."""
    if reason := _not_a_run(place):
        raise RunExists(f"{output} {reason} and is not overwritten; choose another with -o")
    _refuse_running(place)


def _not_a_run(place: Path) -> str:
    """Return why this is neither a run directory nor an empty one; empty if it is one of them."""
    if not place.is_dir() or place.is_symlink():
        return "is a link" if place.is_symlink() else "is not a directory"
    with refused_as(CannotWriteRun, place, "choose another directory with -o"):
        names = set(os.listdir(place))
    foreign = sorted(name for name in names - NAMES if name.removesuffix(".partial") not in NAMES)
    if foreign or (names and rundir.RUN not in names):
        return "is not a run directory" + (f" (it holds {foreign[0]})" if foreign else "")
    return ""


def _refuse_running(place: Path) -> None:
    try:
        run = rundir.RunDirectory(place)
    except RunError:
        return  # a damaged run is not in progress
    run.require_finished()


def require_run(path: Path) -> None:
    """Raise unless this may be deleted: links, other directories and runs in progress may not."""
    if reason := _not_a_run(path) or ("" if os.path.lexists(path / rundir.RUN) else "is not a run directory"):
        raise RunNotFound(f"{path} {reason} and is not removed")
    _refuse_running(path)


def delete(path: Path) -> None:
    """Delete a run directory atomically for readers; `last` then points to the newest remaining run."""
    old = path.with_name(f"{path.name}.old-{_random_hex()}")
    with refused_as(CannotWriteRun, f"{path} cannot be removed"):
        os.rename(path, old)
    remove(old)
    if old.exists():
        raise CannotWriteRun(f"{old} cannot be removed whole; remove it as its owner")
    link = path.parent / LAST
    if link.is_symlink() and not link.exists():
        newest = run_home.last(path.parent)
        if newest is None:
            link.unlink(missing_ok=True)
        else:
            _point_last_to(newest)


def _make_directory(path: Path, *, exist_ok: bool = False) -> None:
    problem = f"{path.parent}: cannot make a run directory there"
    with refused_as(CannotWriteRun, problem, "choose another place with -o"):
        path.mkdir(mode=0o700, exist_ok=exist_ok)


def _point_last_to(place: Path) -> None:
    """Replace the link atomically; on failure only the name `last` is missing or old."""
    link = place.parent / LAST
    new_link = place.parent / f"{LAST}.{_random_hex()}"
    with suppress(OSError):
        new_link.symlink_to(place.name)
        os.replace(new_link, link)
