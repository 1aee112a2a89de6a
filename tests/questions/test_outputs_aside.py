"""A question leaves the outputs of the run as they are, and its replay starts without them."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reprokit.core.errors import CannotCopy
from reprokit.model.plan import ReplayStart
from reprokit.run.replay_plan import replay_plan
from reprokit.run.starting_files import started_from
from reprokit.run_files.rundir import RunDirectory
from tests.support import Reprokit, wait_until

TRAINING = Path(__file__).parents[1] / "trainings" / "pytorch_checkpoints.py"
INTERRUPTED = TRAINING.with_name("pytorch_saved_on_interrupt.py")


@contextmanager
def outputs_aside(recording: RunDirectory, replay: Path) -> Iterator[None]:
    """Leave everything as it is, as a question does."""
    with started_from(replay_plan(recording, replay, start=ReplayStart.FOUND_AND_BACK), replay):
        yield


@pytest.fixture
def recorded(tmp_path: Path) -> RunDirectory:
    """A run whose data was there before, and whose working directory has another file."""
    (tmp_path / "notes.txt").write_text("a line\n")
    done = Reprokit(tmp_path).run("record", "-q", "-o", "run", "--", sys.executable, str(TRAINING), "40")
    assert done.returncode == 0, done.stderr
    (tmp_path / "own.txt").write_text("of the user")
    return RunDirectory(tmp_path / "run")


def files(directory: Path) -> dict[str, bytes | None]:
    """All files and directories but the run's and reprokit's own, with their contents."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
        if path.relative_to(directory).parts[0].partition("-")[0] not in ("run", ".reprokit", ".ask")
    }


@pytest.mark.slow
def test_questions_leave_outputs_as_they_are_and_start_without_checkpoints(
    tmp_path: Path, recorded: RunDirectory
) -> None:
    before = files(tmp_path)
    assert {"last.pt", "checkpoints/040/model.pt", "notes.txt", "data.pt"} <= before.keys()
    for question in (("ask", "run", "weights", "--steps", "12"), ("locate", "run", "--pairs", "1")):
        done = Reprokit(tmp_path).run(*question)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "resumed at" not in done.stdout
        assert files(tmp_path) == before
        assert not (tmp_path / ".reprokit").exists()


@pytest.mark.slow
def test_what_a_handler_of_interrupts_writes_is_removed_and_what_it_changes_is_said(tmp_path: Path) -> None:
    (tmp_path / "older.txt").write_text("of the user")
    rk = Reprokit(tmp_path)
    training = str(INTERRUPTED)
    assert rk.run("record", "-q", "-o", "run", "--", sys.executable, training).returncode == 0
    before = files(tmp_path)
    done = rk.run("ask", "run", "weights", "--steps", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert files(tmp_path) == {**before, "older.txt": b"of the userinterrupted"}
    assert (
        f"the replay wrote files that stay, as they may be another program's too: {tmp_path / 'older.txt'}"
        in done.stderr
    )


@pytest.mark.slow
def test_an_interrupted_question_puts_them_back(tmp_path: Path, recorded: RunDirectory) -> None:
    before = files(tmp_path)
    process = Reprokit(tmp_path).start("ask", "run", "weights")
    wait_until(lambda: not (tmp_path / "checkpoints").exists(), "outputs to be set aside")
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate()
    assert (process.returncode, files(tmp_path)) == (128 + signal.SIGTERM, before)
    assert messages.endswith("reprokit: interrupted; nothing was added to run\n")


@pytest.mark.slow
def test_what_a_killed_question_set_aside_is_put_back_by_the_next(tmp_path: Path, recorded: RunDirectory) -> None:
    before = files(tmp_path)
    process = Reprokit(tmp_path).start("ask", "run", "weights")
    wait_until(lambda: not (tmp_path / "checkpoints" / "040").exists(), "outputs to be set aside")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (tmp_path / "notes.txt").unlink()  # in which the killed replay may have written
    (tmp_path / "last.pt").write_text("of a later training")
    again = pytest.raises(CannotCopy, match=r"last.pt, which is there again: move back")
    with again, outputs_aside(recorded, tmp_path / "replay"):
        pytest.fail("which of both is needed, only the user knows")
    (tmp_path / "last.pt").unlink()
    with outputs_aside(recorded, tmp_path / "replay"):
        assert not (tmp_path / "last.pt").exists()
    assert files(tmp_path) == before


@pytest.mark.slow
def test_lists_of_others_move_nothing_and_damaged_ones_are_refused(tmp_path: Path, recorded: RunDirectory) -> None:
    place = tmp_path / ".reprokit" / "aside-planted"
    place.mkdir(parents=True)
    (place / "0").write_text("planted")
    planted = {"directory": str(tmp_path), "replay": str(recorded.path), "entries": [{"path": "elsewhere"}]}
    (place / "paths.json").write_text(json.dumps(planted))
    with outputs_aside(recorded, tmp_path / "replay"):
        assert not (tmp_path / "last.pt").exists()
    assert (tmp_path / "last.pt").exists()
    assert not (tmp_path / "elsewhere").exists()
    (place / "paths.json").write_text("[")
    with (
        pytest.raises(CannotCopy, match=r"paths.json: .*; move back what lies beside it"),
        outputs_aside(recorded, tmp_path / "replay"),
    ):
        pytest.fail("what was set aside is not known")


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no other file system")
def test_outputs_on_another_file_system_stay_on_it(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        program = f"import os, time; time.sleep(1.1); os.makedirs('{place}/out/last')\n"
        program += f"with open('{place}/out/last/model', 'w') as file: file.write('weights')"
        done = Reprokit(tmp_path).run("record", "-q", "-o", "run", "--", sys.executable, "-c", program)
        assert done.returncode == 0, done.stderr
        before = files(Path(place))
        with outputs_aside(RunDirectory(tmp_path / "run"), tmp_path / "replay"):
            assert [path.name for path in Path(place).iterdir()] == [".reprokit"]
            aside = [path for path in Path(place, ".reprokit").glob("aside-*/[0-9]") if path.is_file()]
            assert [path.read_text() for path in aside] == ["weights"]
        assert files(Path(place)) == before
        assert [path.name for path in Path(place).iterdir()] == ["out"]


def test_an_output_that_cannot_be_moved_refuses_the_question_and_nothing_is_lost(
    tmp_path: Path, recorded: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(tmp_path)

    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reprokit.run.aside_place.move", full)
    refused = pytest.raises(CannotCopy, match=r"run cannot be set aside while it is replayed: No space left on device")
    with refused, outputs_aside(recorded, tmp_path / "replay"):
        pytest.fail("the outputs would be overwritten")
    assert files(tmp_path) == before
