"""Finds files that a run of a gate reads although another run, of this gate or before it, left them behind.

Files of the gate's own runs are known by name. Files of earlier runs are known by their content, from run directories
below .reprokit and from the lists of outputs that gates save there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from reprokit.core.errors import ReprokitError
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.run.outputs import MAX_FILES
from reprokit.run.rundirectory import home
from reprokit.run_files import rundir, state_files
from reprokit.run_files.home import home_of
from reprokit.run_files.rundir import OUTPUTS, RunDirectory

LEFT: Final = "gates"  # directory below .reprokit with a list of left files per training
MAX_EARLIER = 200  # runs below .reprokit that are considered, the newest first
PATIENCE = 60.0  # timeout of git, in seconds


class LeftoverFiles:
    """The files that runs of one training leave for later ones."""

    def __init__(self, training: str, directory: Path, data: Collection[str]) -> None:
        self._home = home_of(directory)
        # Lists hold paths relative to the directory of the gate, so each directory has lists of its own.
        self._list = self._home / LEFT / os.path.relpath(directory, self._home.parent) / f"{training}.json"
        self._directory = directory
        self._data = tuple(os.path.realpath(path) for path in data)
        self._earlier: dict[str, list[OutputFile]] | None = None
        self._runs: list[tuple[str, Path]] = []  # names and directories of this gate's runs
        self._problems: list[str] = []  # since the last pop_problems()

    def pop_problems(self) -> list[str]:
        """Return sentences about left files that runs have read since the last call."""
        problems, self._problems = self._problems, []
        return problems

    def examine(self, name: str, run: RunDirectory) -> None:
        """Examine a run of this gate; runs must be passed in their order."""
        first = {path for path in state_files.read_first(run) if not self._is_data(path)}
        reasons = dict.fromkeys(state_files.written(run.path, first), " before it wrote it")
        for path in first - reasons.keys():
            if self._is_left_by_earlier(path, state_files.shown(path, run.run.working_directory)):
                reasons[path] = ", which an earlier run left"
        for other, place in self._runs:
            seen = {path for path in first if not state_files.is_fresh(path, run)}
            reasons |= dict.fromkeys(state_files.written(place, seen), f", which {other} wrote")
        self._runs.append((name, run.path))
        directory = run.run.working_directory
        self._problems += [
            f"{name} read {state_files.shown(path, directory)}{why}" for path, why in sorted(reasons.items())
        ]

    def save_list(self, runs: Path, *, in_copies: bool) -> None:
        """Save a list of the files that these runs left, for later gates: the run directories may be removed.

        Runs in fresh copies leave only the files that they wrote outside of the copy.
        """
        left = {file.path: file for file in _listed(self._list)}
        for path in sorted(runs.glob("*"), key=lambda path: path.stat().st_mtime):
            outputs = _outputs(path)
            if outputs is not None:
                files = (*outputs.files, *_hidden_files(outputs, self._directory))
                left |= {file.path: file for file in files if not in_copies or file.path.startswith("/")}
        if left:
            with suppress(OSError, ReprokitError):  # the directory may be another user's
                home(self._directory)
                self._list.parent.mkdir(parents=True, exist_ok=True)
                self._list.write_bytes(msgspec.json.encode(list(left.values())[-MAX_FILES:]))

    def _is_data(self, path: str) -> bool:
        return any(path == place or path.startswith(place + "/") for place in self._data)

    def _is_left_by_earlier(self, path: str, name: str) -> bool:
        """Return whether a file equals one that an earlier run left, and is not tracked by git."""
        if self._earlier is None:
            self._earlier = self._all_earlier()
        same_size = [file for file in self._earlier.get(name, ()) if file.size == _size(path) and file.digest]
        return bool(same_size) and _digest(path) in {file.digest for file in same_size} and not self._is_tracked(name)

    def _all_earlier(self) -> dict[str, list[OutputFile]]:
        by_path: dict[str, list[OutputFile]] = {}
        runs = sorted(self._home.glob(f"*/{OUTPUTS}"), reverse=True)[:MAX_EARLIER]
        every = [_listed(path) for path in self._list.parent.glob("*.json")]
        every += [outputs.files for path in runs if (outputs := _outputs(path.parent, self._directory))]
        for file in (file for files in every for file in files):
            by_path.setdefault(file.path, []).append(file)
        return by_path

    def _is_tracked(self, name: str) -> bool:
        command = ["git", "-C", str(self._directory), "ls-files", "--error-unmatch", "--", name]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
        return False


def _hidden_files(outputs: OutputsFile, directory: Path) -> Iterator[OutputFile]:
    """Yield what a run wrote to caches and hidden places, as it is now: it is no output, and can be state."""
    for name in outputs.hidden:
        sealed = rundir.seal_file(directory / name)
        if sealed is not None:
            yield OutputFile(path=name, size=sealed.size, digest=sealed.digest)


def _listed(path: Path) -> list[OutputFile]:
    """Return the files in a list of an earlier gate."""
    try:
        return msgspec.json.decode(rundir.beginning(path, rundir.MAX_JSON), type=list[OutputFile])
    except msgspec.MsgspecError:
        return []


def _outputs(run: Path, directory: Path | None = None) -> OutputsFile | None:
    """Return the outputs of a run; none if it worked in another directory."""
    with suppress(ReprokitError):
        opened = RunDirectory(run)
        if directory is None or opened.run.working_directory == str(directory):
            return opened.outputs()
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _digest(path: str) -> str:
    sealed = rundir.seal_file(Path(path))
    return "" if sealed is None else sealed.digest
