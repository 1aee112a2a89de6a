"""Keeps files aside in a directory beside the runs, with a list by which they are put back, also after a kill.

The list names every file before the first one is moved. The process that moved them holds a lock on the directory, so
that another one knows whether it is still at work.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from functools import cache
from pathlib import Path

import msgspec

from reprokit.core import untrusted_json
from reprokit.core.bounds import read_whole
from reprokit.core.errors import CannotCopy, CannotWriteRun, RunInProgress, reason
from reprokit.core.printable import printable
from reprokit.run import stragglers
from reprokit.run.rundirectory import remove
from reprokit.run_files import names

PREFIX, REPLACED = "aside-", "replaced-"
LIST, PART, LOCK = "paths.json", "paths.part", "lock"
FOUND = ".found"  # suffix of what the recording found, before it is put into its place
MAX_LIST = 256 << 20  # bytes
AT_FDCWD, RENAME_NOREPLACE = -100, 1

Resolve = Callable[[str], Path]  # of the name of an output: where it is now


class FileState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tells a file from another one at its path."""

    inode: int
    size: int
    modified: int  # nanoseconds since 1970


class AsideEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file, link or directory of a recording; its number in the list is its name in the directory."""

    path: str  # as outputs.json has it
    copied: FileState | None = None  # of a file that stays where it is; only a copy of it is aside
    restored: FileState | None = None  # of what the recording found, which takes its place


class AsideList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """paths.json"""

    directory: str  # the working directory
    replay: str  # the run that is to start without these files
    entries: list[AsideEntry]  # directories come first, the outermost before those in it
    made: list[str] = []  # directories that are made for what the recording found


class Settlement(Enum):
    """What becomes of a file that was aside, and of what is at its path now."""

    NEW_GOES = auto()  # the old one is put back
    NEW_IS_KEPT = auto()  # likewise; the new one is moved to where nothing is lost
    OLD_GOES = auto()  # the new one stays
    OLD_IS_KEPT = auto()


Settle = Callable[[AsideEntry, Path, Path], Settlement]  # of an entry, its file aside, and its path


class ReplacedFiles:
    """The directory of files that are no longer in their places, and that may be somebody's; made when needed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.path: Path | None = None
        self.names: list[str] = []

    def keep(self, source: Path, name: str) -> None:
        """Move a file there."""
        if self.path is None:
            self.path = _new_directory(self._home, REPLACED)
        target = self.path / "files" / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        move(source, target)
        self.names.append(name)


class AsidePlace:
    """A directory of files that were set aside."""

    def __init__(self, path: Path, entries: AsideList) -> None:
        self.path, self.list = path, entries
        self.replaced = ReplacedFiles(path.parent)

    def aside(self, number: int) -> Path:
        """Return the path of an entry's file in this directory."""
        return self.path / str(number)

    def found(self, number: int) -> Path:
        """Return the path of what the recording found, before it is put into its place."""
        return self.path / f"{number}{FOUND}"

    def write_list(self) -> None:
        """Write the list; from now on files may be moved."""
        (self.path / PART).write_text(json.dumps(msgspec.to_builtins(self.list)), encoding="ascii")
        os.rename(self.path / PART, self.path / LIST)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Show that this process is at work; children that it forks do not have this lock."""
        with open(self.path / LOCK, "xb") as file:
            with suppress(OSError):  # of network file systems that know no locks
                fcntl.lockf(file, fcntl.LOCK_EX)
            yield

    def settle(self, resolve: Resolve, settle: Settle) -> None:
        """Put back what is aside where its path is free, or is made free; then remove this directory."""
        for number, entry in enumerate(self.list.entries):
            self._settle_entry(entry, self.aside(number), resolve(entry.path), settle)
        for name in reversed(self.list.made):
            with suppress(OSError):  # it is not empty
                resolve(name).rmdir()
        (self.path / LIST).unlink(missing_ok=True)  # what is still here goes, whatever interrupts this
        remove(self.path)

    def _settle_entry(self, entry: AsideEntry, aside: Path, path: Path, settle: Settle) -> None:
        state = state_of(path)
        if state is not None and state == entry.restored:
            path.unlink()
        elif state is not None and state == entry.copied:
            return
        elif state is not None:
            settlement = _of_directory(aside) if is_directory(path) else settle(entry, aside, path)
            if settlement is Settlement.NEW_GOES:
                path.unlink()
            elif settlement is Settlement.NEW_IS_KEPT:
                self.replaced.keep(path, entry.path)
            elif settlement is Settlement.OLD_IS_KEPT:
                self.replaced.keep(aside, entry.path)
        if os.path.lexists(aside) and not os.path.lexists(path):
            self._put_back(entry, aside, path)

    def _put_back(self, entry: AsideEntry, aside: Path, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            move(aside, path)
        except (FileExistsError, NotADirectoryError):  # something else came meanwhile, perhaps in place of a directory
            self.replaced.keep(aside, entry.path)


def _of_directory(aside: Path) -> Settlement:
    """Return what becomes of a file that was aside and at whose path a directory is: only a directory is dropped."""
    is_dropped = is_directory(aside) or not os.path.lexists(aside)
    return Settlement.OLD_GOES if is_dropped else Settlement.OLD_IS_KEPT


def make_place(home: Path, entries: AsideList) -> AsidePlace:
    """Create a directory in a home that is locked."""
    return AsidePlace(_new_directory(home, PREFIX), entries)


def _new_directory(home: Path, prefix: str) -> Path:
    path = home / f"{prefix}{os.urandom(4).hex()}"
    path.mkdir(mode=0o700)
    return path


# Locks


@contextmanager
def home_locked(home: Path) -> Iterator[None]:
    """Hold the lock under which directories are made, listed and looked at; create their parent."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # of network file systems that know no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        home.mkdir(mode=0o700, exist_ok=True)  # another process may have removed it
        yield
    finally:
        os.close(descriptor)


def wait_for(place: Path) -> None:
    """Wait until the process at work on a directory has removed it, or has died."""
    with suppress(OSError), open(place / LOCK, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def set_aside_for(home: Path, directory: str, replay: Path, since: int) -> Iterator[tuple[Path, Path]]:
    """Yield the regular files below a directory that are aside for a run: where each is, and where it was.

    Lists that are older than the run, in nanoseconds since 1970, are another's.
    """
    for place in sorted(home.glob(f"{PREFIX}*")):
        entries = read_list(place)
        if entries is None or Path(entries.replay) != replay or (place / LIST).stat().st_ctime_ns < since:
            continue
        for number, entry in enumerate(entries.entries):
            aside, path = place / str(number), Path(os.path.normpath(os.path.join(directory, entry.path)))
            if aside.is_file() and not aside.is_symlink() and path.is_relative_to(directory):
                yield aside, path


def _is_locked(place: Path) -> bool:
    with suppress(OSError), open(place / LOCK, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # which of them depends on the system
            return True
    return False


# What others set aside


def in_use(home: Path, directory: str, known: set[str]) -> dict[str, Path]:
    """Return those of these names that processes at work have set aside, and where."""
    used = {}
    for place in sorted(home.glob(f"{PREFIX}*")):
        if _is_locked(place) and (entries := read_list(place)) and entries.directory == directory:
            used.update({entry.path: place for entry in entries.entries if entry.path in known})
    return used


def read_list(place: Path) -> AsideList | None:
    """Return the list of a directory; None before it was written, as nothing was moved then."""
    if not os.path.lexists(place / LIST):
        return None
    try:
        return msgspec.convert(untrusted_json.loads(read_whole(place / LIST, MAX_LIST, CannotCopy)), AsideList)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CannotCopy(f"{place / LIST}: {reason(error)}; move back what lies beside it, and remove it") from None


def put_back_leftovers(
    home: Path, directory: str, known: set[str], resolve: Resolve, recording: Path
) -> Iterator[Path]:
    """Put back what killed replays of the same recording left aside; other lists may be anybody's.

    What the recording itself had set aside, as it continues another one, goes where nothing is lost. Yield the
    directories that now have what is no longer in its place.
    """
    known = known | {str(parent) for name in known for parent in Path(name).parents}
    for place in sorted(home.glob(f"{PREFIX}*")):
        if _is_locked(place):
            continue
        entries = read_list(place)
        if entries is None:
            remove(place)
        elif entries.directory == directory and known.issuperset(
            [*(entry.path for entry in entries.entries), *entries.made]
        ):
            left = AsidePlace(place, entries)
            if Path(entries.replay) == recording:
                left.settle(resolve, _replaced_by_own)
                replaced = left.replaced.path
            else:
                replaced = _put_back_leftover(left, resolve)
            if replaced is not None:
                yield replaced


def _replaced_by_own(_entry: AsideEntry, aside: Path, path: Path) -> Settlement:
    if not os.path.lexists(aside) or has_same_bytes(aside, path):
        return Settlement.OLD_GOES
    return Settlement.OLD_IS_KEPT


def _put_back_leftover(place: AsidePlace, resolve: Resolve) -> Path | None:
    replay = Path(place.list.replay)
    _require_ended(replay)
    written = names.written(replay)
    names_written = written.opened | {after for _, after in written.placed}
    for number, entry in enumerate(place.list.entries):
        path, aside = resolve(entry.path), place.aside(number)
        is_taken = os.path.lexists(aside) and os.path.lexists(path) and not is_directory(path)
        is_known = state_of(path) in (entry.restored, entry.copied) or str(path) in names_written
        if is_taken and not (is_known or has_same_bytes(aside, path)):
            raise CannotCopy(
                f"{place.path} has outputs that were set aside for a replay, among them {printable(entry.path)}, which"
                f" is there again: move back what you need (its {LIST} lists the places), and remove this directory"
            )

    def settle(_entry: AsideEntry, aside: Path, path: Path) -> Settlement:
        if not os.path.lexists(aside):
            return Settlement.OLD_GOES
        return Settlement.NEW_GOES if has_same_bytes(aside, path) else Settlement.NEW_IS_KEPT

    place.settle(resolve, settle)
    return place.replaced.path


def _require_ended(replay: Path) -> None:
    """Refuse to move files while the training of a killed replay goes on."""
    with suppress(CannotWriteRun):  # no run has so long a path
        for process in stragglers.processes(replay):
            raise RunInProgress(f"{replay}: its launcher is gone, and process {process} of it still runs; end it first")


# Files


def state_of(path: Path) -> FileState | None:
    """Return the state of what is at a path; None if nothing is."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return FileState(status.st_ino, status.st_size, status.st_mtime_ns)


def is_directory(path: Path) -> bool:
    """Return whether a path is a directory, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def has_same_bytes(one: Path, other: Path) -> bool:
    """Return whether two regular files hold the same, or two links have the same text."""
    with suppress(OSError):
        if one.is_symlink() or other.is_symlink():
            return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
        from filecmp import cmp

        return one.is_file() and other.is_file() and cmp(one, other, shallow=False)
    return False


def move(source: Path, target: Path) -> None:
    """Move a file or directory to a path at which nothing is; raise FileExistsError if something is."""
    try:
        _rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy(source, target)
        source.unlink()


def copy(source: Path, target: Path) -> None:
    """Copy a file or a link; the target is there only once it is whole."""
    from shutil import copy2  # slow to load, and rarely needed before a replay has ended

    part = target.with_name(f"{target.name}.part")
    copy2(source, part, follow_symlinks=False)
    _rename(part, target)


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _rename(source: Path, target: Path) -> None:
    """Rename unless the target exists; Python knows no such call."""
    number = errno.ENOSYS
    with suppress(AttributeError):  # glibc before 2.28
        if not _library().renameat2(AT_FDCWD, bytes(source), AT_FDCWD, bytes(target), RENAME_NOREPLACE):
            return
        number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)
