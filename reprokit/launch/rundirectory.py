"""Makes a run directory, and puts an old one away only when the new one is there."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from reprokit import rundir
from reprokit.errors import CannotWriteRun, RunError, RunExists

HOME = ".reprokit"
LAST = "last"
NAMES = rundir.FILES | rundir.DIRECTORIES


class NewRun:
    """A run directory being made: takes its place when the launcher says so, or goes away again."""

    def __init__(self, output: Path | None, overwrite: bool, *, becomes_last: bool = True):
        self._becomes_last = output is None and becomes_last
        self._replaces = overwrite
        self.place = _own_place() if output is None else _asked_place(output, overwrite)
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


def shown(path: Path) -> str:
    """Return the path as short as it can be named from the current directory."""
    with suppress(ValueError, OSError):
        return str(path.relative_to(os.path.realpath(os.curdir)))
    return str(path)


def _random_hex() -> str:
    return os.urandom(2).hex()


def home(directory: Path) -> Path:
    """Return the place for runs of a directory, made where it is not there, and which git is told to ignore."""
    place = Path(os.path.realpath(directory / HOME))
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
        if not place.parent.is_dir():
            raise CannotWriteRun(f"{place.parent} is not a directory; make it first, or choose another with -o")
        return place
    if not overwrite:
        raise RunExists(f"{output} exists already; choose another directory, or add --overwrite")
    _require_deletable(place, output)
    return place


def _require_deletable(place: Path, output: Path) -> None:
    """Only a run, or nothing at all, is ever deleted."""
    if not place.is_dir():
        raise RunExists(f"{output} is not a directory and is not overwritten; choose another with -o")
    try:
        names = set(os.listdir(place))
    except OSError as error:
        raise CannotWriteRun(f"{output}: {error.strerror}; choose another directory with -o") from None
    foreign = sorted(name for name in names - NAMES if name.removesuffix(".partial") not in NAMES)
    if foreign or (names and rundir.RUN not in names):
        example = f" (it holds {foreign[0]})" if foreign else ""
        raise RunExists(f"{output} is not a run directory{example} and is not overwritten; choose another with -o")
    if names:
        _refuse_running(place)


def _refuse_running(place: Path) -> None:
    try:
        run = rundir.RunDirectory(place)
    except RunError:
        return  # a damaged run is no longer being written
    run.require_finished()


def _make_directory(path: Path, *, exist_ok: bool = False) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=exist_ok)
    except OSError as error:
        raise CannotWriteRun(
            f"{path.parent}: cannot make a run directory there: {error.strerror}; choose another place with -o"
        ) from None


def _point_last_to(place: Path) -> None:
    """Replace the link whole; without it only the name ``last`` is missing."""
    link = place.parent / LAST
    partial = place.parent / f"{LAST}.{_random_hex()}"
    with suppress(OSError):
        partial.symlink_to(place.name)
        os.replace(partial, link)
