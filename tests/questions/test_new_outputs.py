"""Files of new names that an asked replay writes are removed, and nothing that could be somebody else's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.run_files.rundir import RunDirectory
from tests.questions.test_outputs_aside import files, outputs_aside
from tests.support import Reprokit

PROGRAM = Path(__file__).parents[1] / "trainings" / "new_names.py"


def recorded(directory: Path, *arguments: str) -> RunDirectory:
    """Record the program in this directory."""
    done = Reprokit(directory).run("record", "-q", "-o", "run", "--", sys.executable, str(PROGRAM), *arguments)
    assert done.returncode == 0, done.stderr
    return RunDirectory(directory / "run")


def replayed(recording: RunDirectory, meanwhile: Callable[[Path], object] = lambda _: None) -> None:
    """Replay it as a question does, and do something when the replay has ended."""
    directory = recording.path.parent
    with outputs_aside(recording, directory / "run-again"):
        done = Reprokit(directory).run("replay", "run", "-q", "-o", "run-again")
        assert done.returncode == 0, done.stderr
        meanwhile(directory)


def only(directory: Path, pattern: str, before: dict[str, bytes | None]) -> Path:
    """Return the one file of this pattern that was not there before."""
    (path,) = (path for path in directory.glob(pattern) if str(path.relative_to(directory)) not in before)
    return path


@pytest.mark.slow
def test_a_question_leaves_no_files_of_new_names(tmp_path: Path) -> None:
    recorded(tmp_path, "train")
    before = files(tmp_path)
    done = Reprokit(tmp_path).run("ask", "run", "weights")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(tmp_path) == before
    assert "stay" not in done.stderr


def test_names_of_all_kinds_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(tmp_path)
    before = files(tmp_path)
    replayed(recording, lambda directory: only(directory, "runs/*/events", before))
    assert files(tmp_path) == before
    assert capsys.readouterr().err == ""


def rewrite(path: Path) -> Path:
    path.write_text("of another program")
    return path


def replace_by_an_older_file(path: Path) -> Path:
    return path.with_name("mine.txt").replace(path)


def link_elsewhere(path: Path) -> Path:
    path.unlink()
    path.symlink_to("mine.txt")
    return path


def move_and_link_the_directory(path: Path) -> Path:
    moved = path.parent.rename(path.parents[1] / "kept")
    path.parent.symlink_to(moved)
    return moved / path.name


def test_an_empty_directory_of_another_program_stays(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "later")
    replayed(recording, lambda directory: (directory / "runs" / "other").mkdir())
    assert (tmp_path / "runs" / "other").is_dir()


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("-log-*", rewrite),
        ("-log-*", replace_by_an_older_file),
        ("latest-*", link_elsewhere),
        ("runs/*/events", move_and_link_the_directory),
    ],
)
def test_what_changed_since_the_replay_ended_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, change: Callable[[Path], Path]
) -> None:
    recording = recorded(tmp_path)
    (tmp_path / "mine.txt").write_text("written")
    before, path, data = files(tmp_path), Path(), b""

    def meanwhile(directory: Path) -> None:
        nonlocal path, data
        written = only(directory, pattern, before)
        path = change(written)
        data = path.read_bytes()

    replayed(recording, meanwhile)
    assert path.read_bytes() == data
    message = capsys.readouterr().err
    assert message.startswith("reprokit: the replay wrote files that stay, as they may be another program's too: ")
    assert message.count("\n") == 1


def test_a_new_directory_with_a_file_of_another_program_stays(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    before = files(tmp_path)
    replayed(
        recording, lambda directory: only(directory, "runs/*/events", before).with_name("other").write_text("mine")
    )
    other = only(tmp_path, "runs/*/other", before)
    assert [entry.name for entry in other.parent.iterdir()] == ["other"]


def test_a_file_that_somebody_may_still_write_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(tmp_path)
    before = files(tmp_path)
    with tempfile.TemporaryFile("w") as other:

        def append(directory: Path) -> None:
            os.dup2(os.open(only(directory, "-log-*", before), os.O_WRONLY | os.O_APPEND), other.fileno())

        replayed(recording, append)
        path = only(tmp_path, "-log-*", before)
    assert path.read_text() == "written"
    assert str(path) in capsys.readouterr().err


def test_files_that_were_there_before_stay_also_under_other_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = recorded(tmp_path)
    for name in ("mine", "my"):
        (tmp_path / name).mkdir()
    for name in ("mine/log", "mine.log", "mine.csv", "mine.txt", "my/data"):
        (tmp_path / name).write_text("mine")
    before = files(tmp_path)
    replayed(recording)
    new = {name: data for name, data in files(tmp_path).items() if before.get(name, b"") != data}
    kinds = {
        name.replace(name.partition("-")[2].partition("/")[0], "") if "-" in name else name: new[name] for name in new
    }
    assert kinds == {
        "mine/log": b"minewritten",
        "mine.log": b"minewritten",
        "mine/other": b"new",  # nobody knows what was in a directory that the recorded run did not write to
        "mine-": b"mine",
        "my-": None,
        "my-/data": b"mine",
        "mine.txt": b"replaced",
        "linked-": b"minewritten",
    }
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert message.endswith(" and 2 more\n")


def test_a_replay_that_was_cut_off_has_no_list_and_all_stays(tmp_path: Path) -> None:
    recording = recorded(tmp_path)
    before = files(tmp_path)
    replayed(recording, lambda directory: (directory / "run-again" / "run.json").unlink())
    assert only(tmp_path, "-log-*", before).read_text() == "written"
    assert files(tmp_path).items() >= before.items()


def test_a_file_system_that_knows_no_time_of_birth_keeps_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recorded(tmp_path)
    before = files(tmp_path)
    monkeypatch.setattr("reprokit.run.new_outputs.born", lambda _: 0)
    replayed(recording)
    assert only(tmp_path, "-log-*", before).read_text() == "written"
