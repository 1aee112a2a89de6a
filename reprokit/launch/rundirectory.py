"""Makes a run directory, and puts an old one away only when the new one is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from reprokit import run_home, rundir
from reprokit.errors import CannotWriteRun, RunError, RunExists, RunNotFound, refused_as
from reprokit.run_home import LAST, home_of

NAMES = rundir.FILES | rundir.DIRECTORIES


class NewRun:
    """A run directory being made: takes its place when the launcher says so, or goes away again."""

    def __init__(self, output: Path | None, overwrite: bool, *, becomes_last: bool = True):
        self._replaces = overwrite
        self.place = _own_place() if output is None else _asked_place(output, overwrite)
        self._becomes_last = becomes_last and self.place.parent == home_of(Path())
        self.path = self.place.with_name(f"{self.place.name}.new-{_random_hex()}")
        _make_directory(self.path)

    def take_place(self) -> Path:
        """Move to the name asked for; what an overwritten run held is deleted only now."""
        old = self.place.with_name(f"{self.place.name}.old-{_random_hex()}")
        try:
            if self._replaces:
                with suppress(FileNotFoundError):
                    os.rename(self.place, old)
            os.rename(self.path, self.place)  # fails where somebody else was faster
        except OSError as error:
            with suppress(OSError):
                os.rename(old, self.place)
            self.discard()
            raise CannotWriteRun(f"{self.place}: {error.strerror}; choose another directory with -o") from None
        if self._replaces:
            remove(old)
        self.path = self.place
        if self._becomes_last:
            _point_last_to(self.place)
        return self.place

    def discard(self) -> None:
        """Remove what was made; the place asked for stays as it was."""
        remove(self.path)


def remove(path: Path) -> None:
    """Remove a run directory, as far as that is possible."""
    with suppress(ImportError, OSError):  # no descriptor is free
        import shutil  # most runs remove nothing, and it takes long to load

        shutil.rmtree(path, ignore_errors=True)


def new_directory(place: Path) -> Path:
    """Make a directory for several runs, new and empty."""
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        raise RunExists(f"{place} exists already; choose another directory with -o") from None
    except OSError as error:
        raise CannotWriteRun(f"{place}: {error.strerror}; choose another place with -o") from None
    return place


def shown(path: Path) -> str:
    """Return the path as short as it can be named from the current directory."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(os.path.realpath(os.curdir)))
    return str(path)


def _random_hex() -> str:
    return os.urandom(2).hex()


def home(directory: Path) -> Path:
    """Return the place for runs of a directory, made where there is none, and which git is told to ignore."""
    place = home_of(directory)
    if not place.is_dir():
        _make_directory(place, exist_ok=True)  # another launcher may be faster
    ignore = place / ".gitignore"
    with suppress(OSError):
        if not ignore.exists():
            ignore.write_text("*\n")
    return place


def _own_place() -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return home(Path()) / f"{stamp}-{_random_hex()}"


def _asked_place(output: Path, overwrite: bool) -> Path:
    place = Path(os.path.realpath(output))
    if not os.path.lexists(place):
        if place.parent == home_of(Path()):
            home(Path())
        if place.parent.name == rundir.HOSTS and place.parent.parent.parent.is_dir():
            for part in (place.parent.parent, place.parent):  # other hosts make them as well
                _make_directory(part, exist_ok=True)
        if not place.parent.is_dir():
            raise CannotWriteRun(f"{place.parent} is not a directory; make it first, or choose another with -o")
        return place
    if not overwrite:
        raise RunExists(f"{output} exists already; choose another directory, or add --overwrite")
    _require_deletable(place, output)
    return place


def _require_deletable(place: Path, output: Path) -> None:
    """Only a run, or nothing at all, is ever deleted."""
    if why := _no_run(place):
        raise RunExists(f"{output} {why} and is not overwritten; choose another with -o")
    _refuse_running(place)


def _no_run(place: Path) -> str:
    """Say why a place is neither a run directory nor an empty one; empty text where it is."""
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
        return  # a damaged run is no longer being written
    run.require_finished()


def require_run(path: Path) -> None:
    """Refuse what must not be deleted: a link, what is no run directory, and a run in progress."""
    if why := _no_run(path) or ("" if os.path.lexists(path / rundir.RUN) else "is not a run directory"):
        raise RunNotFound(f"{path} {why} and is not removed")
    _refuse_running(path)


def delete(path: Path) -> None:
    """Delete a run directory at once for every reader; `last` then names the newest that is still there."""
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
    what = f"{path.parent}: cannot make a run directory there"
    with refused_as(CannotWriteRun, what, "choose another place with -o"):
        path.mkdir(mode=0o700, exist_ok=exist_ok)


def _point_last_to(place: Path) -> None:
    """Replace the link whole; without it only the name ``last`` is missing."""
    link = place.parent / LAST
    partial = place.parent / f"{LAST}.{_random_hex()}"
    with suppress(OSError):
        partial.symlink_to(place.name)
        os.replace(partial, link)
