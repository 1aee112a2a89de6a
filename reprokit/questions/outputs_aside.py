"""Sets the outputs of a recording aside while a question replays it, and puts them back.

A replay that a question ends early would leave earlier checkpoints in their places, and one that found them would go on
from there. So it starts without the files that the recorded run wrote and never read. Those that it read too, such as
data that it downloaded, stay where they are and are copied. Files of new names are removed by new_outputs.py.
"""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from reprokit import names, untrusted_json
from reprokit.bounds import read_whole
from reprokit.errors import CannotCopy, reason, refused_as
from reprokit.model.run import RunFile
from reprokit.questions.new_outputs import NewOutputs, born, remove_empty
from reprokit.run_home import HOME, home_of
from reprokit.rundir import RunDirectory

PREFIX, LIST, PART = "aside-", "paths.json", "paths.part"
MAX_LIST = 256 << 20  # bytes
MAX_DIRECTORIES = 10_000  # that may be removed while they are empty
MAX_COPIED = 2 << 30  # bytes of all copies; larger files are left as they are, the largest first


@contextmanager
def outputs_aside(recording: RunDirectory, replay: Path) -> Iterator[None]:
    """Leave the recorded outputs as they are, whatever the replay writes meanwhile; one question at a time."""
    with ExitStack() as stack:
        with refused_as(CannotCopy, f"outputs of {recording.path} cannot be set aside while it is replayed"):
            for home, paths in sorted(_by_home(recording).items()):
                if not home.exists():
                    stack.callback(remove_empty, [home])
                stack.enter_context(_locked(home))
                _put_back_leftovers(home, paths)
                outputs = AsideOutputs(recording, paths, home)
                stack.callback(outputs.put_back)
                outputs.take()
            stack.callback(NewOutputs(recording).remove, replay)
        yield


def _by_home(recording: RunDirectory) -> dict[Path, list[Path]]:
    """Return the outputs by the directory of reprokit's to which they can be moved without being copied."""
    outputs, directory = recording.outputs(), recording.run.working_directory
    if outputs is None:
        return {}
    own_home, homes = home_of(Path(directory)), {}
    by_device: dict[int, list[Path]] = {}
    for name in [*(file.path for file in outputs.files), *(link.path for link in outputs.links)]:
        path = Path(os.path.abspath(os.path.join(directory, name)))
        by_device.setdefault(_device(path.parent), []).append(path)
    for device, paths in by_device.items():
        homes[own_home if _device(own_home) == device else _home_above(paths, recording.run)] = paths
    return homes


def _home_above(paths: list[Path], run: RunFile) -> Path:
    """Return a place beside the outermost directory that the run made for these files, on the same file system."""
    shared = Path(os.path.commonpath([os.path.realpath(path.parent) for path in paths]))
    above = [
        path for path in (shared, *shared.parents) if _device(path) == _device(shared) and os.access(path, os.W_OK)
    ]
    made = set(_made_meanwhile(above, run))
    return next((path for path in above if path not in made), shared) / HOME


def _device(path: Path) -> int:
    """Return the file system on which a directory is, or would be made."""
    return next(parent.stat().st_dev for parent in (path, *path.parents) if parent.exists())


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # of network file systems that know no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        home.mkdir(mode=0o700, exist_ok=True)  # another question may have removed it
        yield
    finally:
        os.close(descriptor)


class AsideOutputs:
    """The outputs of one recording, moved to a directory of their own."""

    def __init__(self, recording: RunDirectory, paths: list[Path], home: Path) -> None:
        self._run, self._paths, self._home = recording.run, paths, home
        self._read = names.read_at(recording.path)
        self._made_parents: list[Path] = []  # directories that are not there when the replay starts
        self._place: Path | None = None
        self._free: list[Path] = []  # where nothing is when the replay starts
        self._copied: dict[Path, tuple[Path, tuple[int, ...]]] = {}  # what the recorded run read too: copy, state

    def take(self) -> None:
        """Move the outputs that the recorded run never read, and copy the others."""
        self._free = [path for path in self._paths if not os.path.lexists(path)]
        files = sorted(set(self._paths).difference(self._free), key=lambda path: (path.lstat().st_size, path))
        parents = {parent for path in self._paths for parent in path.parents}
        self._made_parents = [parent for parent in parents if not parent.exists()]
        directories = list(_made_meanwhile(parents.difference(self._made_parents), self._run))
        place = self._place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._home))
        (place / PART).write_text(json.dumps([str(path) for path in (*directories, *files)]))
        os.rename(place / PART, place / LIST)
        room = MAX_COPIED
        for number, path in enumerate(files, len(directories)):
            if str(path) not in self._read:
                _move(path, place / str(number))
                self._free.append(path)
                continue
            state = _state(path)
            room -= path.lstat().st_size
            if room >= 0:
                _copy(path, place / str(number))
                self._copied[path] = place / str(number), state
        for number, path in reversed([*enumerate(directories)]):
            if not os.listdir(path):
                os.rename(path, place / str(number))
                self._made_parents.append(path)

    def put_back(self) -> None:
        """Remove what the replay has written in these places, and put back what was there."""
        with refused_as(CannotCopy, f"outputs cannot be put back, see {self._place}"):
            self._put_back()

    def _put_back(self) -> None:
        changed = []
        for path, (copy, state) in self._copied.items():
            if _state(path) == state:
                copy.unlink()
            else:
                changed.append(path)
        for path in (*self._free, *changed):
            with suppress(OSError):
                path.unlink()
        remove_empty(self._made_parents)
        if self._place is not None:
            _put_back(self._place)


def _move(path: Path, target: Path) -> None:
    try:
        os.rename(path, target)
    except OSError:  # of another file system
        _copy(path, target)
        path.unlink()


def _copy(path: Path, target: Path) -> None:
    """Copy a file or a link; the target is there only once it is whole."""
    part = target.with_name(f"{target.name}.part")
    shutil.copy2(path, part, follow_symlinks=False)
    os.rename(part, target)


def _put_back(place: Path) -> None:
    """Move all files back; refuse those whose places are not free."""
    for number, name in enumerate(_listed(place)):
        source, path = place / str(number), Path(name)
        if path.is_file() and source.is_file() and filecmp.cmp(source, path, shallow=False):
            source.unlink()
        elif os.path.lexists(source) and not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _move(source, path)
        elif os.path.lexists(source) and not source.is_dir():
            raise CannotCopy(
                f"{place} has outputs that were set aside for a question, among them {name}, which is there again: move"
                f" back what you need (its {LIST} lists the places), and remove this directory"
            )
    shutil.rmtree(place)


def _listed(place: Path) -> list[str]:
    """Return the places of the files; none before the list was written, as nothing was moved then."""
    if not (place / LIST).exists():
        return []
    try:
        return msgspec.convert(untrusted_json.loads(read_whole(place / LIST, MAX_LIST, CannotCopy)), list[str])
    except (ValueError, msgspec.MsgspecError) as error:
        raise CannotCopy(f"{place / LIST}: {reason(error)}; move back what lies beside it, and remove it") from None


def _put_back_leftovers(home: Path, outputs: Iterable[Path]) -> None:
    """Put back what a question of the same run has left aside when it was killed; other lists may be anybody's."""
    known = {str(path) for output in outputs for path in (output, *output.parents)}
    for place in sorted(home.glob(f"{PREFIX}*")):
        if known.issuperset(_listed(place)):
            _put_back(place)


def _state(path: Path) -> tuple[int, ...]:
    if not os.path.lexists(path):
        return ()
    status = path.lstat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _made_meanwhile(directories: Iterable[Path], run: RunFile) -> Iterator[Path]:
    """Yield the directories that were made during a run, as far as the file system knows; the outermost first.

    The run begins within the second that it names, so that of its first second nothing is known.
    """
    if run.ended is None:
        return
    started, ended = (datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (run.started, run.ended))
    for path in sorted(directories)[:MAX_DIRECTORIES]:
        if started.timestamp() < born(path) // 1_000_000_000 <= ended.timestamp() + 1:
            yield path
