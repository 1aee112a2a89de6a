"""What a side of a gate starts from that another side, or an earlier run, has left behind.

What the gate's own runs wrote is known by name. What earlier runs left is known by its content: run directories below
.reprokit, and the lists that gates leave there of what their last runs wrote.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from reprokit import rundir, state_files
from reprokit.errors import ReprokitError
from reprokit.launch.outputs import MAX_FILES
from reprokit.launch.rundirectory import home
from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.run_home import home_of
from reprokit.rundir import OUTPUTS, RunDirectory

LEFT: Final = "gates"  # below .reprokit: for each training a list of what its runs left
MAX_EARLIER = 200  # runs below .reprokit that are looked at, the newest first
PATIENCE = 60.0  # seconds for git


class State:
    """The files that runs of one training leave for later ones."""

    def __init__(self, training: str, directory: Path, data: Collection[str]) -> None:
        self._home = home_of(directory)
        # Lists hold paths relative to the gate's directory: another one beside the same .reprokit has its own lists.
        self._list = self._home / LEFT / os.path.relpath(directory, self._home.parent) / f"{training}.json"
        self._directory = directory
        self._data = tuple(os.path.realpath(path) for path in data)
        self._earlier: dict[str, list[OutputFile]] | None = None
        self._runs: list[tuple[str, Path]] = []  # of this gate: names and directories
        self._found: list[str] = []  # since that was last said

    def said(self) -> list[str]:
        """Describe the files that the last runs started from."""
        found, self._found = self._found, []
        return found

    def take(self, name: str, run: RunDirectory) -> None:
        """Examine a run of this gate; runs come in their order."""
        first = {path for path in state_files.read_first(run) if not self._is_data(path)}
        found = dict.fromkeys(state_files.written(run.path, first), " before it wrote it")
        for path in first - found.keys():
            if self._is_left_by_earlier(path, state_files.shown(path, run.run.working_directory)):
                found[path] = ", which an earlier run left"
        for other, place in self._runs:
            seen = {path for path in first if not state_files.is_fresh(path, run)}
            found |= dict.fromkeys(state_files.written(place, seen), f", which {other} wrote")
        self._runs.append((name, run.path))
        directory = run.run.working_directory
        self._found += [f"{name} read {state_files.shown(path, directory)}{why}" for path, why in sorted(found.items())]

    def keep(self, runs: Path, *, in_copies: bool) -> None:
        """Leave a list of what the runs in a directory left, for later gates: their run directories may be removed.

        Of copies nothing is left but what was written outside of them.
        """
        left = {file.path: file for file in _listed(self._list)}
        for path in sorted(runs.glob("*"), key=lambda path: path.stat().st_mtime):
            outputs = _outputs(path)
            if outputs is not None:
                left |= {file.path: file for file in outputs.files if not in_copies or file.path.startswith("/")}
        if left:
            with suppress(OSError, ReprokitError):  # the directory may be another user's
                home(self._directory)
                self._list.parent.mkdir(parents=True, exist_ok=True)
                self._list.write_bytes(msgspec.json.encode(list(left.values())[-MAX_FILES:]))

    def _is_data(self, path: str) -> bool:
        return any(path == place or path.startswith(place + "/") for place in self._data)

    def _is_left_by_earlier(self, path: str, name: str) -> bool:
        """Return whether it is, byte for byte, what an earlier run left, and nobody has made it a source since."""
        if self._earlier is None:
            self._earlier = self._all_earlier()
        same_size = [file for file in self._earlier.get(name, ()) if file.size == _size(path) and file.digest]
        return bool(same_size) and _digest(path) in {file.digest for file in same_size} and not self._is_tracked(name)

    def _all_earlier(self) -> dict[str, list[OutputFile]]:
        found: dict[str, list[OutputFile]] = {}
        runs = sorted(self._home.glob(f"*/{OUTPUTS}"), reverse=True)[:MAX_EARLIER]
        every = [_listed(path) for path in self._list.parent.glob("*.json")]
        every += [outputs.files for path in runs if (outputs := _outputs(path.parent, self._directory))]
        for file in (file for files in every for file in files):
            found.setdefault(file.path, []).append(file)
        return found

    def _is_tracked(self, name: str) -> bool:
        command = ["git", "-C", str(self._directory), "ls-files", "--error-unmatch", "--", name]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
        return False


def _listed(path: Path) -> list[OutputFile]:
    """Return the files that earlier gates of a training left."""
    try:
        return msgspec.json.decode(rundir.beginning(path, rundir.MAX_JSON), type=list[OutputFile])
    except msgspec.MsgspecError:
        return []


def _outputs(run: Path, directory: Path | None = None) -> OutputsFile | None:
    """Return the outputs of a run; none if it worked in another directory."""
    with suppress(ReprokitError):
        found = RunDirectory(run)
        if directory is None or found.run.working_directory == str(directory):
            return found.outputs()
    return None


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _digest(path: str) -> str:
    sealed = rundir.seal_file(Path(path))
    return "" if sealed is None else sealed.digest
