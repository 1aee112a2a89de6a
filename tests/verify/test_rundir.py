"""run.json and its companions: what is written is read back, sealed against damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reprokit.core.errors import CannotWriteRun, RunDamaged
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory, padded, seal_file, write_json

from .runs import recording, training


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    building = training(tmp_path / "run")
    directory = RunDirectory(building.write())
    assert directory.run == building.run
    outputs = directory.outputs()
    assert outputs is not None
    assert outputs.files == building.outputs
    assert directory.environment() == building.environment
    assert list(directory.metrics()) == building.lines


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    path = recording(tmp_path / "run").write()
    assert (path / rundir.RUN).stat().st_mode & 0o777 == 0o600


def test_a_changed_fact_is_noticed(tmp_path: Path) -> None:
    path = recording(tmp_path / "run").write() / rundir.RUN
    content = json.loads(path.read_text())
    content["exit_code"] = 1
    path.write_text(json.dumps(content) + "\n")
    with pytest.raises(RunDamaged, match="was altered: its check does not fit"):
        RunDirectory(path.parent)


def test_the_check_does_not_depend_on_layout(tmp_path: Path) -> None:
    path = recording(tmp_path / "run").write() / rundir.RUN
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True) + "\n")
    assert RunDirectory(path.parent).run.exit_code == 0


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = recording(tmp_path / "run").write() / rundir.RUN
    before = path.read_bytes()
    (path.parent / "run.json.partial").mkdir()
    with pytest.raises(CannotWriteRun):
        write_json(path, {})
    assert path.read_bytes() == before


def test_a_file_that_is_not_there_has_no_seal(tmp_path: Path) -> None:
    assert seal_file(tmp_path / "nothing") is None


def test_paths_are_padded_to_one_length(tmp_path: Path) -> None:
    text = padded(tmp_path, 512)
    assert len(text) == 512
    assert Path(text).samefile(tmp_path)


@pytest.mark.parametrize("path", [Path("relative"), Path("/" + "x" * 600)])
def test_paths_that_cannot_be_padded(path: Path) -> None:
    with pytest.raises(CannotWriteRun, match="choose a shorter one with -o"):
        padded(path, 512)
