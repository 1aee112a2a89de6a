"""The place for runs, .reprokit, found upwards as git finds its own, and the names by which its runs are found there.

NAME            a directory of .reprokit, as `reprokit ls` prints it, or any unique beginning of it
last, last~N    the newest run, and the N-th before it
RUN:recording   what RUN replayed; RUN itself if it is a recording
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from reprokit.core.bounds import open_file
from reprokit.core.errors import ReprokitError, RunError, RunNotFound, UsageError
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RUN, RunDirectory

HOME = ".reprokit"
LAST = "last"
RESERVED = frozenset({LAST, "studies", "gates"})
STAMPED = re.compile(r"\d{8}T\d{6}Z-([0-9a-f]{4})")  # a run that has no name of its own
PASSING = re.compile(r"\.(new|old)-[0-9a-f]{4}$")  # being made or removed
OF_RECORDING = ":recording"
VERDICTS = "verdicts.json"  # what verify last said of replays, by their run ids
MAX_VERDICTS = 1000
MAX_RUNS = 100_000


def home_of(directory: Path) -> Path:
    """Return the nearest .reprokit of a directory or above it; the directory's own where there is none.

    One above must belong to this user: nobody else shall get what is recorded, nor choose what is read.
    """
    own = Path(os.path.realpath(directory / HOME))
    for above in (own, *(parent / HOME for parent in own.parent.parents)):
        with suppress(OSError):
            status = os.stat(above)
            if stat.S_ISDIR(status.st_mode) and (above == own or status.st_uid == os.geteuid()):
                return Path(os.path.realpath(above))
    return own


def named(name: str) -> Path:
    """Return the place of a run that --name names."""
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._-]{0,39}", name) or name in RESERVED:
        rules = "1 to 40 letters, digits, dots, dashes and underscores, and not " + ", ".join(sorted(RESERVED))
        raise UsageError(f"--name {name!r}: a name has {rules}")
    return home_of(Path()) / name


def names(home: Path) -> list[str]:
    """Return the directories right below a place that hold a run, links left out."""
    with os.scandir(home) as entries:
        directories = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return [name for name in directories[:MAX_RUNS] if not PASSING.search(name) and os.path.lexists(home / name / RUN)]


def newest_first(home: Path) -> list[RunDirectory]:
    """Return the runs of a place that can be read."""
    runs = []
    for name in names(home):
        with suppress(RunError):
            runs.append(RunDirectory(home / name))
    return sorted(runs, key=_age, reverse=True)


def _age(directory: RunDirectory) -> tuple[str, float, str]:
    run = directory.run
    return run.started, run.launcher_started, directory.path.name


def short(name: str, among: list[str]) -> str:
    """Return the shortest text that ls prints for a run and that finds it again."""
    stamped = STAMPED.fullmatch(name)
    return stamped[1] if stamped and _matching(stamped[1], among) == [name] else name


def _matching(text: str, among: list[str]) -> list[str]:
    """Return the names that a text may mean: the very name, the whole end of a stamped one, or its beginning."""
    if text in among:
        return [text]
    ends = {name: stamped[1] for name in among if (stamped := STAMPED.fullmatch(name))}
    whole = [name for name, end in ends.items() if end == text]
    return whole or [name for name in among if name.startswith(text) or ends.get(name, "").startswith(text)]


def resolve(text: str) -> Path:
    """Return the run directory that a text names: a path, or a name in the nearest .reprokit."""
    if text.endswith(OF_RECORDING) and not os.path.lexists(text):
        return recording_of(RunDirectory(resolve(text.removesuffix(OF_RECORDING))))
    home = home_of(Path())
    if any(os.path.lexists(Path(text, name)) for name in (RUN, rundir.HOSTS)) or "/" in text or text in ("", ".", ".."):
        return Path(text)
    before = re.fullmatch(f"{LAST}(?:~([0-9]{{1,6}}))?", text)
    if before:
        return _last(home, int(before[1] or 0))
    matching = _matching(text, names(home)) if home.is_dir() else []
    if len(matching) == 1:
        return home / matching[0]
    if matching:
        listed = ", ".join(matching[:4]) + (", ..." if len(matching) > 4 else "")
        raise RunNotFound(f"{text} names {len(matching)} runs: {listed}; give more of the name")
    if os.path.lexists(text):
        return Path(text)
    raise RunNotFound(f"{text} does not exist, and no run of {home} begins so; {_advice(text, home)}")


def _advice(text: str, home: Path) -> str:
    """Return which run may be meant by a name that no run has."""
    import difflib

    near = difflib.get_close_matches(text, [LAST, *(names(home) if home.is_dir() else ())], n=2)
    return f"did you mean {' or '.join(near)}?" if near else "'reprokit ls' lists them"


def _last(home: Path, before: int) -> Path:
    """Return the N-th run before the last one; the newest is last where that was deleted."""
    newest = last(home)
    if newest is None:
        raise RunNotFound(f"there is no last run: {home} holds none; name a run directory")
    if not before:
        return newest
    places = [directory.path for directory in newest_first(home)]
    position = (places.index(newest) if newest in places else 0) + before
    if position >= len(places):
        raise RunNotFound(f"there is no {LAST}~{before}: {home} holds {len(places)} in all; 'reprokit ls' lists them")
    return places[position]


def last(home: Path) -> Path | None:
    """Return the run that was made last and is still there."""
    with suppress(OSError):
        name = os.readlink(home / LAST)
        if name in names(home):
            return home / name
    runs = newest_first(home) if home.is_dir() else []
    return runs[0].path if runs else None


def recording_of(directory: RunDirectory) -> Path:
    """Return what a replay replayed, where it was or beside the replay; a recording itself."""
    asked = directory.run.replay_of
    if asked is None:
        return directory.path
    place = Path(asked.path)
    for path in (place, directory.path.parent / place.name):
        with suppress(RunError):
            if RunDirectory(path).run.run_id == asked.run_id:
                return path
    raise RunNotFound(f"the recording of {directory.path} is not at {place} any more; give its path too")


def pair_of(directory: RunDirectory) -> tuple[Path, Path]:
    """Return a replay's recording and the replay; of a recording its newest replay beside it or in .reprokit."""
    if directory.run.replay_of is not None:
        return recording_of(directory), directory.path
    replay = newest_replay(directory)
    if replay is None:
        raise RunNotFound(f"no replay of {directory.path} is here; make one: reprokit replay {directory.path}")
    return directory.path, replay


def newest_replay(directory: RunDirectory) -> Path | None:
    """Return the newest replay of a recording, beside it or in .reprokit."""
    for home in dict.fromkeys((directory.path.resolve().parent, home_of(Path()))):
        for other in newest_first(home) if home.is_dir() else ():
            if other.run.replay_of is not None and other.run.replay_of.run_id == directory.run.run_id:
                return other.path
    return None


def last_replay() -> RunDirectory:
    """Return the newest replay in the nearest .reprokit."""
    home = home_of(Path())
    for directory in newest_first(home) if home.is_dir() else ():
        if directory.run.replay_of is not None:
            return directory
    raise RunNotFound(f"there is no replay in {home}; make one: reprokit replay last")


# Verdicts


def verdicts(home: Path) -> dict[str, str]:
    """Return what verify last said of replays and their recordings."""
    try:
        with os.fdopen(open_file(home / VERDICTS), "rb") as file:
            return msgspec.json.decode(file.read(rundir.MAX_TEXT), type=dict[str, str])
    except (OSError, ReprokitError, msgspec.MsgspecError, RecursionError):
        return {}


def keep_verdict(left: RunDirectory, right: RunDirectory, verdict: str) -> None:
    """Keep what verify said, if one run is the other's replay and stands in a .reprokit."""
    for recording, replay in ((left, right), (right, left)):
        home, asked = Path(os.path.realpath(replay.path)).parent, replay.run.replay_of
        if (
            asked is not None
            and asked.run_id == recording.run.run_id
            and (home.name == HOME or home == home_of(Path()))
        ):
            all_verdicts = {**verdicts(home), replay.run.run_id: verdict}
            with suppress(OSError):
                rundir.write_whole(
                    home / VERDICTS, msgspec.json.encode(dict(list(all_verdicts.items())[-MAX_VERDICTS:]))
                )
