"""Where a run is kept: its own directory, -o, --overwrite, last; nothing else is ever deleted."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from reprokit.core.errors import RunInProgress
from reprokit.run.rundirectory import NAMES, NewRun
from tests.support import COMMAND, LIMIT, Reprokit, wait_until

FORMAT = Path(__file__).parent.parent.parent / "docs" / "format.md"


def test_each_run_has_a_directory_of_its_own_that_git_ignores(reprokit: Reprokit) -> None:
    names = []
    for _ in range(3):
        assert reprokit.record("true").returncode == 0
        names.append(reprokit.last.name)
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{4}", name) for name in names)
    home = reprokit.directory / ".reprokit"
    assert sorted(path.name for path in home.iterdir()) == sorted([".gitignore", "last", *names])
    assert (home / ".gitignore").read_text() == "*\n"


def test_runs_may_begin_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them finds no directory of runs, and then another is faster in making it."""
    monkeypatch.chdir(tmp_path)
    is_there = Path.is_dir

    def is_made_late(path: Path) -> bool:
        found = is_there(path)
        with suppress(FileExistsError):
            os.mkdir(path)
        return found

    monkeypatch.setattr(Path, "is_dir", is_made_late)
    runs = [NewRun(None, overwrite=False).take_place() for _ in range(2)]
    assert sorted(path for path in (tmp_path / ".reprokit").iterdir() if path.name != ".gitignore") == sorted(
        [*runs, tmp_path / ".reprokit" / "last"]
    )


def test_last_names_the_newest(reprokit: Reprokit) -> None:
    reprokit.record("sh", "-c", "exit 1")
    reprokit.record("sh", "-c", "exit 2")
    assert reprokit.run("replay", "last").returncode == 2
    assert reprokit.facts()["kind"] == "replay"
    assert reprokit.run("replay", "last").returncode == 2, "the last recording, though the last run is a replay"


def test_last_without_any_run_says_so(reprokit: Reprokit) -> None:
    done = reprokit.run("replay", "last")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: run-not-found: there is no last run")


def test_the_directory_asked_for_is_made(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "-o", "my run", "--", "true")
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["reprokit: run: my run", "reprokit: next: reprokit replay 'my run'"]
    assert reprokit.facts("my run")["exit_code"] == 0
    assert not (reprokit.directory / ".reprokit").exists()


def test_a_run_is_not_overwritten_silently(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "run", "--", "true")
    before = (reprokit.directory / "run" / "run.json").read_bytes()
    done = reprokit.run("record", "-o", "run", "--", "touch", "started")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: run-exists: ")
    assert (reprokit.directory / "run" / "run.json").read_bytes() == before
    assert not (reprokit.directory / "started").exists()


def test_overwrite_replaces_a_run_and_leaves_nothing_beside_it(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "run", "--", "true")
    assert reprokit.run("record", "-o", "run", "--overwrite", "--", "sh", "-c", "exit 5").returncode == 5
    assert reprokit.facts("run")["exit_code"] == 5
    assert os.listdir(reprokit.directory) == ["run"]


def test_all_that_a_run_may_hold_may_be_overwritten() -> None:
    table = FORMAT.read_text().partition("## Versions")[0]
    rows = re.findall(r"^\|(.*?)\|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^/`]+)[^`]*`", row)} == NAMES


def test_an_empty_directory_may_be_overwritten(reprokit: Reprokit) -> None:
    (reprokit.directory / "run").mkdir()
    assert reprokit.run("record", "-o", "run", "--", "true").returncode == 125
    assert reprokit.run("record", "-o", "run", "--overwrite", "--", "true").returncode == 0


@pytest.mark.parametrize("arguments", [["nosuchprogram"], ["/"], [""]])
def test_an_overwritten_run_stays_when_the_new_one_cannot_start(reprokit: Reprokit, arguments: list[str]) -> None:
    reprokit.run("record", "-o", "run", "--", "true")
    before = reprokit.facts("run")
    assert reprokit.run("record", "-o", "run", "--overwrite", "--", *arguments).returncode >= 125
    assert reprokit.facts("run") == before
    assert os.listdir(reprokit.directory) == ["run"]


@pytest.mark.parametrize("has_run", [False, True])
def test_a_directory_with_anything_else_in_it_is_never_deleted(reprokit: Reprokit, has_run: bool) -> None:
    if has_run:
        reprokit.run("record", "-o", "run", "--", "true")
    else:
        (reprokit.directory / "run").mkdir()
    thesis = reprokit.directory / "run" / "thesis.tex"
    thesis.write_text("years of work")
    done = reprokit.run("record", "-o", "run", "--overwrite", "--", "true")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: run-exists: run is not a run directory (it holds thesis.tex)")
    assert thesis.read_text() == "years of work"


def test_a_run_that_another_rank_began_meanwhile_is_not_overwritten(reprokit: Reprokit) -> None:
    """As `srun -n2 reprokit record -o run --overwrite` would: both find no run there, and one is the first."""
    late = NewRun(reprokit.directory / "run", overwrite=True)
    first = reprokit.start(
        "record", "-o", "run", "--overwrite", "--", "sh", "-c", "until test -e go; do sleep 0.05; done"
    )
    wait_until((reprokit.directory / "run" / "run.json").exists, "the first run")
    with pytest.raises(RunInProgress):
        late.take_place()
    (reprokit.directory / "go").touch()
    first.communicate(timeout=LIMIT)
    assert reprokit.facts("run")["exit_code"] == 0
    assert [path.name for path in reprokit.directory.glob("run*")] == ["run"]


def test_a_file_is_never_overwritten(reprokit: Reprokit) -> None:
    (reprokit.directory / "run").write_text("a file")
    for options in ([], ["--overwrite"]):
        done = reprokit.run("record", "-o", "run", *options, "--", "true")
        assert done.returncode == 125
        assert done.stderr.startswith("reprokit: run-exists: ")
    assert (reprokit.directory / "run").read_text() == "a file"


def test_the_current_directory_is_not_overwritten(reprokit: Reprokit) -> None:
    (reprokit.directory / "train.py").write_text("pass")
    assert reprokit.run("record", "-o", ".", "--overwrite", "--", "true").returncode == 125
    assert os.listdir(reprokit.directory) == ["train.py"]


def test_a_deleted_current_directory_is_one_clear_line(reprokit: Reprokit) -> None:
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$0" record -- true'
    done = subprocess.run(["sh", "-c", script, COMMAND], cwd=reprokit.directory, capture_output=True, text=True)
    assert done.returncode == 125
    assert done.stderr.splitlines()[-1].startswith("reprokit: working-directory: ")


def test_a_missing_parent_is_pointed_out(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "-o", "no/such/place", "--", "true")
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: cannot-write-run: ")
    assert "is not a directory; make it first" in done.stderr


def test_a_path_too_long_for_the_shim_is_refused(reprokit: Reprokit) -> None:
    place = reprokit.directory
    while len(str(place)) < 500:
        place /= "d" * 100
    place.mkdir(parents=True)
    done = reprokit.run("record", "-o", str(place / "run"), "--", "true")
    assert done.returncode == 125
    assert "at most 512 bytes" in done.stderr
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc", "/sys"])
def test_a_place_that_cannot_be_written_is_refused_before_the_start(reprokit: Reprokit, place: str) -> None:
    for done in (
        reprokit.run("record", "-o", f"{place}/run", "--", "touch", str(reprokit.directory / "started")),
        reprokit.record("touch", str(reprokit.directory / "started"), directory=Path(place)),
    ):
        assert done.returncode == 125
        assert done.stderr.startswith("reprokit: cannot-write-run: ")
        assert done.stderr.count("\n") == 1
    assert not (reprokit.directory / "started").exists()
