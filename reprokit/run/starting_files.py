"""Lets a replay start from the files that its recording found, and settles afterwards what is in their places.

What the recording created is set aside; what it changed, replaced or removed is restored, where its bytes were kept.
After a replay the directory has its outputs, and of the recording what the replay did not write again. After a question
it is as it was before.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from reprokit.core.errors import CannotCopy, ReprokitError, reason, refused_as
from reprokit.core.messages import say, warn
from reprokit.core.printable import listed, printable
from reprokit.model.outputs import FoundFile, OutputsFile
from reprokit.model.plan import Plan, ReplayStart
from reprokit.model.run import InPlaceFile, InPlaceReason, StartFiles
from reprokit.run import aside_place
from reprokit.run.aside_place import AsideEntry, AsideList, AsidePlace, FileState, Settlement, is_directory, state_of
from reprokit.run.interruption import WATCHED, Interrupted
from reprokit.run.process import die_by
from reprokit.run_files import home as run_home
from reprokit.run_files import names, rundir
from reprokit.run_files.home import HOME, home_of
from reprokit.run_files.names import NOISE, written_at
from reprokit.run_files.rundir import RunDirectory

if TYPE_CHECKING:
    from reprokit.run.new_outputs import NewOutputs

MAX_COPIED = 2 << 30  # bytes of files that stay and that a question must leave as they are; the rest is not copied
MAX_IN_PLACE = 100  # listed
MAX_NAMED = 3
MOVABLE = frozenset({"__pycache__", ".ipynb_checkpoints"})  # in a directory that the recording created
MAX_RUNS = 200  # that are looked at


@contextmanager
def for_launcher(plan: Plan, replay: Path) -> Iterator[StartFiles]:
    """Start from what the recording found, in the process that launches; a signal ends it once all is put back."""
    try:
        with _raising(), started_from(plan, replay) as start:
            yield start
    except Interrupted as interrupted:
        die_by(interrupted.number)


@contextmanager
def started_from(plan: Plan, replay: Path, checkpoint: Path | None = None) -> Iterator[StartFiles]:
    """Set the outputs of the recording aside, as the plan wants it, while a replay of it runs; settle them then.

    A checkpoint that the replay resumes stays in its place: a file, or a directory with all that is in it.
    """
    assert plan.replay_of is not None
    recording = RunDirectory(Path(plan.replay_of.path))
    files = RecordedFiles(recording, plan.working_directory, plan.moved, replay)
    leaves_all = plan.start is ReplayStart.FOUND_AND_BACK
    if not (files.is_listed or leaves_all):
        say("the recording has no list of the files that it wrote: the replay starts among what is there")
        yield StartFiles(here=True)
        return
    starting = StartingFiles(recording, files, replay, checkpoint, leaves_all=leaves_all)
    try:
        with _uninterrupted():
            starting.take()
        yield starting.facts
    finally:
        starting.settle()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let signals that end this process wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _raising() -> Iterator[None]:
    """Raise Interrupted at a signal that comes before the command has started, for which others are then installed."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    handled = [number for number in WATCHED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, handler)


class StartingFiles:
    """The files of one recording while a replay of it runs."""

    def __init__(
        self, recording: RunDirectory, files: RecordedFiles, replay: Path, checkpoint: Path | None, *, leaves_all: bool
    ) -> None:
        self._recording, self._files, self._replay, self._leaves_all = recording, files, replay, leaves_all
        self._checkpoint = None if checkpoint is None else Path(os.path.realpath(checkpoint))
        self._places: list[AsidePlace] = []
        self._held = ExitStack()  # locks, and what is to be removed at the end
        self._times: dict[Path, tuple[int, int]] = {}  # of directories that the recording created
        self._in_place: dict[str, InPlaceReason] = {}
        self._new: NewOutputs | None = None
        self._room = MAX_COPIED

    @property
    def facts(self) -> StartFiles:
        """Return what run.json says of it."""
        entries = [entry for place in self._places for entry in place.list.entries]
        in_place = self._in_place_files()
        return StartFiles(
            restored=[
                entry.path for entry in entries if entry.restored is not None and entry.path not in self._in_place
            ],
            in_place=in_place[:MAX_IN_PLACE],
            in_place_more=max(0, len(in_place) - MAX_IN_PLACE),
        )

    # Before

    def take(self) -> None:
        """Move the outputs away, and put what the recording found in their places."""
        try:
            with refused_as(CannotCopy, f"outputs of {self._recording.path} cannot be set aside while it is replayed"):
                homes, unreachable = self._files.by_home()
                self._in_place.update(dict.fromkeys(unreachable, "not-movable"))
                for home, paths in sorted(homes.items()):
                    self._take_from(home, paths)
        except BaseException:
            self.settle()
            raise
        if self._leaves_all:
            from reprokit.run.new_outputs import NewOutputs  # loads more than others should wait for

            self._new = NewOutputs(self._recording)
        self._say_in_place()

    def _take_from(self, home: Path, paths: list[str]) -> None:
        if _is_ours(home):
            self._held.callback(_remove_if_empty, home)
        try:
            place = self._prepared(home, paths)
        except OSError:
            if self._leaves_all:
                raise
            self._in_place.update(dict.fromkeys(filter(self._exists, paths), "not-movable"))
            return
        self._move(place)

    def _prepared(self, home: Path, paths: list[str]) -> AsidePlace:
        """Return a directory with the list of what will be moved to it; nothing was moved yet."""
        files = self._files
        while True:
            with aside_place.home_locked(home):
                recording = Path(os.path.realpath(self._recording.path))
                leftovers = aside_place.put_back_leftovers(home, files.directory, files.names, files.path_of, recording)
                for replaced in leftovers:
                    say(f"outputs that a killed run had set aside are put back; what was in their places: {replaced}")
                used = aside_place.in_use(home, files.directory, set(paths))
                if not (used and self._leaves_all):
                    return self._listed(home, paths, used)
            say("waiting for another replay or question of the same recording")
            aside_place.wait_for(next(iter(used.values())))

    def _listed(self, home: Path, paths: list[str], used: dict[str, Path]) -> AsidePlace:
        self._in_place.update(dict.fromkeys(used, "in-use"))
        empty = AsideList(directory=self._files.directory, replay=str(self._replay), entries=[])
        place = aside_place.make_place(home, empty)
        self._places.append(place)
        self._held.enter_context(place.locked())
        entries: list[AsideEntry] = []
        for path in (path for path in paths if path not in used):
            entry = self._entry(place, len(entries), path)
            if entry is not None:
                entries.append(entry)
        made = self._missing_directories(entries)
        place.list = AsideList(directory=empty.directory, replay=empty.replay, entries=entries, made=made)
        place.write_list()
        return place

    def _missing_directories(self, entries: list[AsideEntry]) -> list[str]:
        """Return the directories that the recording found and that are not there, the outermost first."""
        files = self._files
        needed = {entry.path for entry in entries if entry.restored is not None}
        missing = {str(parent) for name in needed for parent in Path(name).parents}
        missing |= {found.path for found in files.found.values() if found.kind == "directory"}
        return sorted(name for name in missing if not os.path.lexists(files.path_of(name)))

    def _entry(self, place: AsidePlace, number: int, name: str) -> AsideEntry | None:
        """Return the entry of a name, after what is to be put there was copied; None if it stays as it is."""
        path, found = self._files.path_of(name), self._files.found.get(name)
        if name in self._files.directories:
            self._times[path] = _times(path)
            return AsideEntry(path=name)
        why = self._why_in_place(path, name)
        if why is None and found is None:
            return AsideEntry(path=name)
        if why is None and found is not None:
            if found.kind == "directory" or self._files.is_as_found(path, found):
                return None
            restored = self._copy_found(found, place.found(number))
            if restored is not None:
                return AsideEntry(path=name, restored=restored)
        if self._leaves_all:
            return self._copied(path, name, place.aside(number))
        self._in_place[name] = why or "not-kept"
        return None

    def _why_in_place(self, path: Path, name: str) -> InPlaceReason | None:
        """Return why what is at a path stays there; None if it can be moved, or nothing is there."""
        found = self._files.found.get(name)
        if self._is_of_checkpoint(path):
            return "in-use"
        if name in self._files.unseen and os.path.lexists(path):
            return "unseen"
        if found is not None and not found.can_be_restored:
            return "not-kept"
        if os.path.realpath(path.parent) != str(path.parent):
            return "not-movable"
        with suppress(OSError):
            status = path.lstat()
            if is_directory(path):
                return None if found is not None and found.kind == "directory" else "not-movable"
            if found is not None and (status.st_nlink > 1 or status.st_uid != os.geteuid()):
                return "not-movable"
            if path.is_file() and _is_being_written(path):
                return "being-written"
        return None

    def _is_of_checkpoint(self, path: Path) -> bool:
        return self._checkpoint is not None and Path(os.path.realpath(path)).is_relative_to(self._checkpoint)

    def _copied(self, path: Path, name: str, target: Path) -> AsideEntry | None:
        """Copy a file that stays, so that it can be restored; return None if it is too large, and no checkpoint."""
        state, needs_copy = state_of(path), self._is_of_checkpoint(path)
        if state is None or is_directory(path) or (state.size > self._room and not needs_copy):
            return None
        self._room -= 0 if needs_copy else state.size
        aside_place.copy(path, target)
        return AsideEntry(path=name, copied=state)

    def _copy_found(self, found: FoundFile, target: Path) -> FileState | None:
        """Write what the recording found; return its state, or None if the copy in the run is damaged."""
        if found.kind == "link":
            target.symlink_to(found.target)
            return state_of(target)
        try:
            assert found.kept is not None
            with os.fdopen(self._recording.open_found(found.kept), "rb") as kept, open(target, "xb") as file:
                while block := kept.read(1 << 20):
                    file.write(block)
        except ReprokitError:
            return None
        sealed = rundir.seal_file(target)
        if sealed is None or sealed.digest != found.digest:
            return None
        os.chmod(target, found.mode)
        os.utime(target, ns=(found.modified, found.modified))
        return state_of(target)

    def _move(self, place: AsidePlace) -> None:
        """Move everything that is in the list, and put what the recording found in its place."""
        numbered = [(number, entry, self._files.path_of(entry.path)) for number, entry in enumerate(place.list.entries)]
        for number, entry, path in numbered:
            if entry.path not in self._files.directories and entry.copied is None and os.path.lexists(path):
                self._set_aside(path, place.aside(number), entry.path)
        for number, entry, path in reversed(numbered):
            if entry.path in self._files.directories and is_directory(path):
                self._set_directory_aside(path, place.aside(number), entry.path)
        for name in place.list.made:
            with suppress(OSError):
                self._files.path_of(name).mkdir(self._mode_of(name))
        for number, entry, path in numbered:
            if entry.restored is not None and entry.path not in self._in_place:
                path.parent.mkdir(parents=True, exist_ok=True)
                aside_place.move(place.found(number), path)

    def _set_aside(self, path: Path, aside: Path, name: str) -> None:
        try:
            aside_place.move(path, aside)
        except OSError:
            if self._leaves_all:
                raise
            self._in_place[name] = "not-movable"

    def _set_directory_aside(self, path: Path, aside: Path, name: str) -> None:
        with suppress(OSError):
            if MOVABLE.issuperset(os.listdir(path)):
                self._set_aside(path, aside, name)
                return
        if not any(inner.startswith(f"{name}/") for inner in self._in_place):
            self._in_place[name] = "not-empty"

    def _mode_of(self, directory: str) -> int:
        found = self._files.found.get(directory)
        return 0o777 if found is None else found.mode

    def _exists(self, name: str) -> bool:
        return os.path.lexists(self._files.path_of(name))

    def _say_in_place(self) -> None:
        if self._in_place and not self._leaves_all:
            files = [printable(file.words) for file in self._in_place_files()]
            words = "the replay finds these as they are now, and not as its recording did: "
            warn(words + listed(files, MAX_NAMED), "files-as-now")

    def _in_place_files(self) -> list[InPlaceFile]:
        return [InPlaceFile(path=path, reason=why) for path, why in sorted(self._in_place.items())]

    # Afterwards

    def settle(self) -> None:
        """Put back what belongs there; what may be somebody's is never removed. Further calls do nothing."""
        with _uninterrupted():
            try:
                if self._new is not None:
                    self._new.remove(self._replay)
                self._new = None
                self._leaves_all |= self._was_refused()
                problems = [problem for place in self._taken_places() if (problem := self._settle_place(place))]
                if self._leaves_all:
                    self._restore_times()
            finally:
                self._held.close()
        for problem in problems:
            warn(problem, "not-put-back")
        if problems and self._leaves_all:
            raise CannotCopy(problems[0])

    def _was_refused(self) -> bool:
        """Return whether this is a continued run that did not come to its keyframe."""
        from reprokit.run.skipped_steps import is_at_keyframe  # slow to load

        with suppress(ReprokitError):
            continued = RunDirectory(self._replay).run.continues
            return continued is not None and continued.step > 0 and not is_at_keyframe(self._replay)
        return False

    def _taken_places(self) -> list[AsidePlace]:
        places, self._places = self._places, []
        return places

    def _settle_place(self, place: AsidePlace) -> str:
        """Put back what is aside in a place; return what went wrong."""
        problem = ""
        try:
            place.settle(self._files.path_of, self._left if self._leaves_all else self._replaced)
        except OSError as error:
            problem = f"outputs cannot be put back, see {place.path}: {reason(error)}"
        if place.replaced.path is not None:
            kept = listed([printable(name) for name in place.replaced.names], MAX_NAMED)
            say(f"replaced files that may be needed are kept in {place.replaced.path}: {kept}")
        return problem

    def _replaced(self, entry: AsideEntry, aside: Path, path: Path) -> Settlement:
        """Decide after a replay, whose outputs stay."""
        if not os.path.lexists(aside):
            return Settlement.OLD_GOES
        if not self._written.has(entry.path, path):
            return Settlement.OLD_GOES if aside_place.has_same_bytes(aside, path) else Settlement.OLD_IS_KEPT
        if self._files.is_of_recording(aside, entry.path):
            is_needed = not (self._ended_alike or self._files.has_copy(entry.path))
            is_kept = is_needed and not aside_place.has_same_bytes(aside, path)
            return Settlement.OLD_IS_KEPT if is_kept else Settlement.OLD_GOES
        # What was there before the recording, and has changed since, is more than an output of it: a log, a database.
        return Settlement.NEW_IS_KEPT if entry.path in self._files.found else Settlement.OLD_IS_KEPT

    def _left(self, entry: AsideEntry, aside: Path, path: Path) -> Settlement:
        """Decide after a question, whose outputs go."""
        if self._written.is_certain(entry.path, path):
            return Settlement.NEW_GOES
        if not os.path.lexists(aside):
            return Settlement.OLD_GOES
        if aside_place.has_same_bytes(aside, path):
            return Settlement.NEW_GOES
        return Settlement.NEW_IS_KEPT if self._written.has(entry.path, path) else Settlement.OLD_IS_KEPT

    @cached_property
    def _ended_alike(self) -> bool:
        """Return whether the replay ended as its recording did: one that failed may have left half a file."""
        with suppress(ReprokitError):
            run, recorded = RunDirectory(self._replay).run, self._recording.run
            return (run.exit_code, run.signal) == (recorded.exit_code, recorded.signal)
        return False

    @cached_property
    def _written(self) -> WrittenFiles:
        return WrittenFiles(self._replay)

    def _restore_times(self) -> None:
        """Give directories the times that they had, as their names are the same again."""
        for path, times in self._times.items():
            with suppress(OSError):
                if times != (0, 0) and _times(path)[1] != times[1]:
                    os.utime(path, ns=times)


class WrittenFiles:
    """What a replay wrote, by its list, or by the names that the shim noted if it was cut off."""

    def __init__(self, replay: Path) -> None:
        try:
            outputs = RunDirectory(replay).outputs()
        except ReprokitError:
            outputs = None
        self._files = {file.path: file for file in outputs.files} if outputs is not None else {}
        self._links = {link.path: link for link in outputs.links} if outputs is not None else {}
        written = names.written(replay) if outputs is None else None
        self._noted = written.opened | {after for _, after in written.placed} if written is not None else set()

    def has(self, name: str, path: Path) -> bool:
        """Return whether the replay wrote a file, or what it did not see written changed meanwhile."""
        return name in self._files or name in self._links or str(path) in self._noted

    def is_certain(self, name: str, path: Path) -> bool:
        """Return whether a file is as the replay left it, which was seen to write it."""
        state, file, link = state_of(path), self._files.get(name), self._links.get(name)
        if file is not None and state is not None:
            return not file.unseen and (state.size, state.modified) == (file.size, file.modified)
        return str(path) in self._noted or (link is not None and not link.unseen and path.is_symlink())


def _is_ours(home: Path) -> bool:
    """Return whether a directory is not there yet, or was made by a killed replay for nothing else."""
    if not home.exists():
        return True
    entries = os.listdir(home)
    return bool(entries) and all(name.startswith(aside_place.PREFIX) for name in entries)


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _times(directory: Path) -> tuple[int, int]:
    """Return when a directory was read and changed last; zeros if it is not there."""
    try:
        status = directory.stat()
    except OSError:
        return 0, 0
    return status.st_atime_ns, status.st_mtime_ns


def _is_being_written(path: Path) -> bool:
    """Return whether a process has a file open for writing: then the kernel gives nobody a lease on it."""
    with suppress(OSError), open(path, "rb", opener=rundir.open_regular) as file:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # which by default does nothing
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except BlockingIOError:
            return True
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


class RecordedFiles:
    """The outputs of a recording, as names that are relative to its working directory where they are below it."""

    def __init__(self, recording: RunDirectory, directory: Path, moved: tuple[Path, Path] | None, replay: Path) -> None:
        outputs = recording.outputs() or _left_by_killed(recording, directory)
        self.is_listed = outputs is not None
        outputs = outputs or OutputsFile()
        self._recording, self._replay = recording, replay
        self._directory = os.path.realpath(directory)
        self._moved = None if moved is None else (os.path.realpath(moved[0]), os.path.realpath(moved[1]))
        self.directory = self._directory if self._moved is None else self._before(self._directory)
        self._files = {file.path: file for file in outputs.files if self._may_be_moved(file.path)}
        self._links = {link.path: link for link in outputs.links if self._may_be_moved(link.path)}
        # Perhaps another program's:
        unseen = {name for name, file in self._files.items() if file.unseen}
        unseen |= {name for name, link in self._links.items() if link.unseen}
        self.unseen = set() if outputs.past_the_shim else unseen
        self.found: dict[str, FoundFile] = {file.path: file for file in outputs.found if self._may_be_moved(file.path)}
        self.directories = set(filter(self._may_be_moved, outputs.directories)) - self.found.keys()
        self.names = {*self._files, *self._links, *self.found, *self.directories}
        if not recording.has(rundir.OUTPUTS) and recording.orphaned:
            self.names |= set(filter(self._may_be_moved, self._gone(written_at(recording.path))))

    def path_of(self, name: str) -> Path:
        """Return where a file is now."""
        path = os.path.normpath(os.path.join(self._directory, name))
        if self._moved is not None and os.path.isabs(name) and _is_below(name, self._moved[0]):
            path = os.path.normpath(os.path.join(self._moved[1], os.path.relpath(name, self._moved[0])))
        return Path(path)

    def _gone(self, written: Iterable[str]) -> Iterator[str]:
        """Yield names of files that are not in their places: perhaps another killed run has set them aside."""
        for path in written:
            if _is_below(path, self._directory) and not os.path.lexists(path):
                yield os.path.relpath(path, self._directory)

    def _before(self, path: str) -> str:
        """Return the path that a directory had in the recording, if it was moved."""
        assert self._moved is not None
        return os.path.normpath(os.path.join(self._moved[0], os.path.relpath(path, self._moved[1])))

    def _may_be_moved(self, name: str) -> bool:
        """Return whether a name is one that reprokit lists, and no part of a run."""
        parts = name.split("/")
        is_strange = not name or "\0" in name or ".." in parts or (os.path.isabs(name) and self._is_bundled)
        is_of_run = _is_below(str(self.path_of(name)), os.path.realpath(self._recording.path))
        return not (is_strange or is_of_run) and NOISE.isdisjoint(parts)

    @property
    def _is_bundled(self) -> bool:
        return self._recording.run.bundled is not None

    # Where they can be set aside

    def by_home(self) -> tuple[dict[Path, list[str]], list[str]]:
        """Return the names by a directory of reprokit's on their file system, and those that cannot be reached.

        Directories come first, from the outermost.
        """
        own_home, homes = home_of(Path(self._directory)), {}
        by_device: dict[int, list[str]] = {}
        unreachable: list[str] = []
        for name in (*sorted(self.directories), *sorted(self.names - self.directories)):
            try:
                by_device.setdefault(_device(self.path_of(name).parent), []).append(name)
            except OSError:
                unreachable.append(name)
        for device, of_device in by_device.items():
            homes[own_home if _device(own_home) == device else self._home_above(of_device)] = of_device
        return homes, unreachable

    def _home_above(self, names: list[str]) -> Path:
        """Return a place beside the outermost directory that was created for these files, on their file system."""
        shared = Path(os.path.commonpath([os.path.realpath(self.path_of(name).parent) for name in names]))
        created = {self.path_of(name) for name in self.directories}
        above = [path for path in (shared, *shared.parents) if path.exists() and _device(path) == _device(shared)]
        usable = (path for path in above if os.access(path, os.W_OK) and path not in created)
        return next(usable, shared) / HOME

    # Whose a file is

    def has_copy(self, name: str) -> bool:
        """Return whether the recording has a copy of a file, or all that a link is."""
        file = self._files.get(name)
        return name in self._links or (file is not None and file.kept is not None)

    def is_as_found(self, path: Path, found: FoundFile) -> bool:
        """Return whether what the recording found is there already, as in a fresh copy."""
        state = state_of(path)
        if found.kind == "link" or state is None or is_directory(path):
            return False
        return (state.size, state.modified) == (found.size, found.modified) and _digest(path) == found.digest

    def is_of_recording(self, path: Path, name: str) -> bool:
        """Return whether a file holds what the recording or an earlier replay left, or another run has a copy of."""
        state, file, link = state_of(path), self._files.get(name), self._links.get(name)
        if link is not None and path.is_symlink():
            return os.readlink(path) in (link.target, os.path.join(self.directory, link.target))
        if file is None or state is None or path.is_symlink():
            return is_directory(path)
        if (state.size, state.modified) == (file.size, file.modified):
            return True
        is_same = state.size == file.size and _digest(path) == file.digest
        return is_same or (state.size, state.modified) in self._of_other_runs.get(name, ())

    @cached_property
    def _of_other_runs(self) -> dict[str, set[tuple[int, int]]]:
        """Sizes and times of what other runs left: replays of the recording, and those that have a copy of it."""
        states: dict[str, set[tuple[int, int]]] = {}
        for run in self._other_runs():
            asked = run.run.replay_of
            is_replay = asked is not None and asked.run_id == self._recording.run.run_id
            with suppress(ReprokitError):
                for file in (run.outputs() or OutputsFile()).files:
                    if is_replay or file.kept is not None:
                        states.setdefault(file.path, set()).add((file.size, file.modified))
        return states

    def _other_runs(self) -> Iterator[RunDirectory]:
        places = self._recording.path.resolve().parent, self._replay.parent, home_of(Path(self._directory))
        runs = [run for place in dict.fromkeys(places) if place.is_dir() for run in run_home.newest_first(place)]
        yield from (run for run in runs[:MAX_RUNS] if os.path.realpath(run.run.working_directory) == self.directory)


def _left_by_killed(recording: RunDirectory, directory: Path) -> OutputsFile | None:
    """Return the files that a recording left whose launcher was killed before it could list them; None for others."""
    if not recording.orphaned:
        return None
    from reprokit.run import outputs

    listed = outputs.collect(recording.path, directory, lambda: False, command=recording.run.command)
    files = [file for file in listed.files if not file.unseen]  # what else has changed since is another program's
    links = [link for link in listed.links if not link.unseen]
    left = [*(file.path for file in files), *(link.path for link in links)]
    above = {str(parent) for path in left for parent in Path(path).parents}
    created = [name for name in listed.directories if name in above]
    return msgspec.structs.replace(listed, files=files, links=links, directories=created)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(os.path.join(directory, ""))


def _device(path: Path) -> int:
    """Return the file system on which a directory is, or would be made."""
    return next(parent.stat().st_dev for parent in (path, *path.parents) if parent.exists())


def _digest(path: Path) -> str:
    sealed = rundir.seal_file(path)
    return "" if sealed is None else sealed.digest
