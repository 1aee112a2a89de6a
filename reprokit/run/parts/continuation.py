"""Hands a run that goes on from a recording what it needs of that, and puts in what it skipped up to a keyframe."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from reprokit.core.bounds import open_file
from reprokit.core.errors import CannotWriteRun, KeyframeRefused, refused_as
from reprokit.core.printable import listed, printable
from reprokit.model.run import Continued
from reprokit.run import aside_place
from reprokit.run.file_times import born
from reprokit.run.part import Closing, Preparation, RunPart
from reprokit.run_files import names, rundir
from reprokit.run_files.home import home_of
from reprokit.run_files.names import NOISE
from reprokit.run_files.rundir import RunDirectory

CHILDREN = f"{rundir.ENTROPY}/children.entropy"
CHILD = 128  # bytes of a child
MAX_CHILDREN = 1 << 20  # that the shim reads
FILES, RETURNED = f"{rundir.ANSWERS}/files", f"{rundir.ANSWERS}/returned"  # of agent/state/earlier_files.py
MAX_RETURNED = 64 << 20
MAX_NAMED = 10


class ContinuationPart(RunPart):
    """What a continued run has of its recording. The shim copies each process's entropy once that asks for some."""

    def prepare(self, preparation: Preparation) -> None:
        """Copy the names of the recorded children, beside which the shim writes further ones."""
        continued = self._plan.continues
        assert self._plan.replay_of is not None
        assert continued is not None
        if continued.step:
            self._list_files(preparation, continued)
        recorded, path = Path(self._plan.replay_of.path) / CHILDREN, preparation.new_run.path / CHILDREN
        if not recorded.exists():
            return
        with os.fdopen(open_file(recorded), "rb") as file:
            children = file.read(MAX_CHILDREN * CHILD)
        with refused_as(CannotWriteRun, path):
            rundir.write_whole(path, children[: len(children) // CHILD * CHILD])

    def _list_files(self, preparation: Preparation, continued: Continued) -> None:
        """List the files that the first run had written by its keyframe, which the agent puts back at that."""
        directory, place = os.path.realpath(self._plan.working_directory), preparation.new_run.place
        aside_files = aside_place.set_aside_for(
            home_of(Path(directory)), directory, place, born(preparation.new_run.path)
        )
        placed = names.written(Path(continued.path)).placed
        files = {str(path): aside for aside, path in aside_files}
        moved = {after: before for before, after in placed if before != after and files.keys() >= {before, after}}
        is_old = {path: aside.stat().st_mtime_ns < continued.moment for path, aside in files.items()}
        # If the file that has the first name now is old, the name was free before: nothing was renamed since.
        first_names = {path: first for path in moved if not is_old[first := _first_name(path, moved)]}
        listed = [(str(aside), path, is_old[path], first_names.get(path, "")) for path, aside in files.items()]
        with refused_as(CannotWriteRun, place):
            rundir.write_whole(preparation.new_run.path / FILES, json.dumps(listed).encode())

    def finish(self, closing: Closing) -> None:
        continued = self._plan.continues
        if (closing.path / rundir.ORDERS).exists():
            turns = "turns of threads and processes were given again as far as they were written before the cut"
            closing.warn(f"{turns}; later ones are not recorded", "turns-not-recorded")
        if continued is None or not continued.step:
            return
        from reprokit.run import skipped_steps

        if not skipped_steps.is_at_keyframe(closing.path):
            closing.failure = _refusal(closing.path, skipped_steps.answer(closing.path), continued)
        elif not closing.is_over:
            words = f"what comes before step {continued.step:,} is missing in this run"
            closing.warn(f"{words}: a process that outlived the command may still write to it", "steps-missing")
        else:
            if not closing.attempt(lambda: skipped_steps.fill_in(RunDirectory(closing.path), continued)):
                closing.warn(f"what comes before step {continued.step:,} is missing in this run", "steps-missing")
            if self._plan.question is not None and self._plan.question.tensors is not None:
                judged = ", and rules judge from there on" if self._plan.rules is not None else ""
                closing.warn(
                    f"tensors before step {continued.step:,} are in {continued.path} alone{judged}", "earlier-tensors"
                )
            stale = list(_written_while_skipping(closing.path, self._plan.working_directory))
            if stale:
                words = f"before step {continued.step:,} these were written, and may hold what was not computed: "
                closing.warn(words + listed(list(map(printable, stale)), MAX_NAMED), "written-while-skipping")


def _refusal(run: Path, why: str, continued: Continued) -> KeyframeRefused:
    place = f"from the keyframe of step {continued.step:,}"
    why = printable(why) or "the script ended before it"
    failure = KeyframeRefused(f"the run does not go on {place}: {why}; --from-start goes on without it")
    failure.run = run
    return failure


def _first_name(path: str, moved: dict[str, str]) -> str:
    """Return the first name of a file that was renamed, and whose earlier names are those of other files now."""
    first, seen = "", {path}
    while (path := moved.get(path, "")) and path not in seen:
        first = path
        seen.add(path)
    return first


def _written_while_skipping(run: Path, directory: Path) -> Iterator[str]:
    """Yield the files that were written before the keyframe was put in, and are still there, by their last names."""
    from reprokit.run import skipped_steps

    restored, returned = max(each.moment for each in skipped_steps.positions(run).values()), set[tuple[int, ...]]()
    with suppress(ValueError, TypeError, LookupError):
        for line in rundir.beginning(run / RETURNED, MAX_RETURNED).splitlines():
            returned.update(tuple(map(int, identity)) for _, *identity in json.loads(line)[0])
    here, stamp = os.path.realpath(directory), os.stat(run / skipped_steps.POSITION)
    renamed = {after for _, after in names.written(run).placed}
    for path, moment in sorted(names.written_at(run).items()):
        name = os.path.relpath(path, here)
        is_result = not name.startswith("..") and NOISE.isdisjoint(name.split(os.sep))
        if is_result and (moment < restored or path in renamed) and os.path.isfile(path):
            status = os.stat(path)
            is_younger = status.st_dev == stamp.st_dev and born(path) > stamp.st_mtime_ns
            if not is_younger and (status.st_dev, status.st_ino) not in returned:
                yield name


PART = ContinuationPart
