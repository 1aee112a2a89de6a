"""Makes the directory in which a question's replays lie, and removes those of questions that were killed."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reprokit.core.errors import ReprokitError
from reprokit.run.rundirectory import remove
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory

KINDS = (".ask-", ".take-", ".debug-", ".rules-", ".locate-")
LOCK = "lock"  # a file that is locked as long as the question or its launcher lives, and says on which host
MAX_HOST = 1000  # bytes


@contextmanager
def scratch(kind: str, directory: Path, recording: RunDirectory) -> Iterator[Path]:
    """Make a temporary directory for replays of a recording; once they are made, remove those that were left.

    Before that, a replay that puts back what a killed one had set aside looks into its directory.
    """
    with tempfile.TemporaryDirectory(prefix=kind, dir=directory, ignore_cleanup_errors=True) as name:
        place = Path(name)
        with open(place / LOCK, "xb") as lock:
            with suppress(OSError):  # of file systems that know no locks, on which nothing is removed
                fcntl.flock(lock, fcntl.LOCK_EX)  # the launcher, a forked child, holds it too
                lock.write(_host())
                lock.flush()
            yield place
            _remove_left(directory, recording)


def _host() -> bytes:
    return os.fsencode(os.uname().nodename)


def _remove_left(directory: Path, recording: RunDirectory) -> None:
    """Remove what this user's questions to a recording left, of which no process on this host is alive."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(KINDS) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError), open(Path(entry.path, LOCK), "r+b", opener=rundir.open_regular) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    is_ours = os.fstat(lock.fileno()).st_uid == os.geteuid() and lock.read(MAX_HOST) == _host()
                    if is_ours and all(_is_replay(path, recording) for path in Path(entry.path).iterdir()):
                        remove(Path(entry.path))


def _is_replay(path: Path, recording: RunDirectory) -> bool:
    """Return whether a path is a replay of this recording, or no run at all."""
    if not os.path.lexists(path / rundir.RUN):
        return True
    try:
        replay_of = RunDirectory(path).run.replay_of
    except ReprokitError:
        return False
    return replay_of is not None and replay_of.run_id == recording.run.run_id
