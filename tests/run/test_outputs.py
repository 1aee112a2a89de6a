"""The files that a run wrote: which are kept, and digests that time stamps do not change."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from pathlib import Path

import pytest

from reprokit.model.outputs import OutputFile, OutputsFile
from reprokit.run import output_places, outputs
from tests.support import Reprokit, python, rest_slow


def collect(run: Path, here: Path, *written: Path, interrupted: bool = False) -> OutputsFile:
    (run / "written.paths").write_bytes(b"".join(os.fsencode(path) + b"\n" for path in written))
    return outputs.collect(run, here, lambda: interrupted)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    place = tmp_path / "home" / ".reprokit" / "run"
    place.mkdir(parents=True)
    return place


@pytest.fixture
def here(run: Path) -> Path:
    return run.parent.parent


def archive(path: Path, year: int, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as container:
        for name, data in members.items():
            container.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), data, method)
    return path


def test_a_training_s_files_are_listed_with_their_digests(reprokit: Reprokit) -> None:
    code = """
import os, pathlib
pathlib.Path("model.bin").write_bytes(b"weights")
os.mkdir("logs")
pathlib.Path("logs/partial").write_text("log")
os.rename("logs/partial", "logs/train.log")
pathlib.Path("removed").write_text("x")
os.remove("removed")
open("only-read", "w").close()
open("new\\nline\\\\n", "w").close()
open("appended", "a").write("y")
"""
    (reprokit.directory / "appended").write_text("x")
    (reprokit.directory / "untouched").write_text("x")
    assert reprokit.record(*python(code)).returncode == 0
    files = {file["path"]: file for file in json.loads((reprokit.last / "outputs.json").read_text())["files"]}
    assert sorted(files) == ["appended", "logs/train.log", "model.bin", "new\nline\\n", "only-read"]
    assert files["model.bin"]["digest"] == f"sha256:{hashlib.sha256(b'weights').hexdigest()}"
    assert files["appended"]["size"] == 2


def test_only_results_are_kept(run: Path, here: Path, tmp_path: Path) -> None:
    wanted = [here / "model.pt", here / "deep" / "er" / "log", tmp_path / "home-2" / "elsewhere.txt"]
    unwanted = [
        run / "run.json",
        here / "__pycache__" / "a.pyc",
        here / "b.pyc",
        here / ".cache" / "data",
        here / "env" / "pyvenv.cfg",
        here / "env" / "lib" / "package" / "code.json",
        tmp_path / "home-2" / ".keras" / "data",
        here / ".ipython" / "profile_default" / "startup" / "README",
    ]
    for path in (*wanted, *unwanted):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (here / "directory").mkdir()
    os.mkfifo(here / "fifo")
    special = [Path("/dev/null"), Path("/proc/self/comm"), here / "directory", here / "fifo", here / "missing"]
    found = collect(run, here, *wanted, *unwanted, *special, *wanted)
    expected = [str(path.relative_to(here)) for path in wanted[:2]]
    system_is_tmp = str(tmp_path).startswith("/tmp/")
    assert sorted(file.path for file in found.files) == sorted(
        [*expected, *([] if system_is_tmp else [str(wanted[2])])]
    )


@pytest.mark.parametrize(("link", "others_before"), rest_slow([("runs/checkpoints", 0), ("checkpoints", 10_000)]))
def test_what_is_written_by_a_link_to_a_temporary_place_is_a_result(
    run: Path, here: Path, link: str, others_before: int
) -> None:
    (here / "data").mkdir()
    for number in range(others_before):
        (here / "data" / str(number)).touch()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
        (here / link).parent.mkdir(exist_ok=True)
        (here / link).symlink_to(temporary)
        (here / "last.pt").symlink_to(f"{temporary}-last.pt")
        written = [Path(temporary) / "model.pt", Path(f"{temporary}-last.pt")]
        others = [Path(f"{temporary}-2"), Path("/proc/self/comm")]
        with tempfile.TemporaryDirectory(dir="/var/tmp") as other_place:
            others.append(Path(other_place) / "__pycache__" / "generated.cpython-311.pyc")  # as TensorFlow leaves it
            others[-1].parent.mkdir()
            for path in (*written, others[0], others[-1]):
                path.write_text("weights")
            found = collect(run, here, *written, *others)
        assert found.temporary == [str(others[0])]
        for path in (written[1], others[0]):
            path.unlink()
    assert sorted(file.path for file in found.files) == sorted(map(str, written))


def test_memory_that_ranks_share_is_no_result(run: Path, here: Path) -> None:
    with tempfile.NamedTemporaryFile(prefix="sm_segment.", dir="/dev/shm") as segment:
        assert collect(run, here, Path(segment.name)).files == []


def test_that_not_every_link_was_looked_at_is_said(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_places, "MAX_LINKS", 3)
    for number in range(4):
        assert collect(run, here).not_compared == []
        (here / str(number)).touch()
    [said] = collect(run, here).not_compared
    assert "links beyond the first 100,000 files" in said


def only(found: OutputsFile) -> OutputFile:
    assert len(found.files) == 1
    return found.files[0]


def test_time_stamps_in_a_zip_container_do_not_change_its_content(run: Path, here: Path) -> None:
    members = {"weights": b"\1" * 5000, "config": b"{}"}
    first = only(collect(run, here, archive(here / "model.zip", 1999, members)))
    second = only(collect(run, here, archive(here / "model.zip", 2025, members, zipfile.ZIP_STORED)))
    other = only(collect(run, here, archive(here / "model.zip", 1999, {**members, "config": b"[]"})))
    assert first.container == "zip"
    assert first.digest != second.digest
    assert first.content == second.content != other.content


def test_names_and_contents_of_a_container_are_told_apart(run: Path, here: Path) -> None:
    first = only(collect(run, here, archive(here / "a.zip", 1999, {"ab": b"c"})))
    second = only(collect(run, here, archive(here / "a.zip", 1999, {"a": b"bc"})))
    assert first.content != second.content


def test_the_date_in_a_keras_file_does_not_change_its_content(run: Path, here: Path) -> None:
    digests = set()
    for date in ("2024-01-01@00:00:00", "2025-02-02@01:01:01"):
        metadata = json.dumps({"keras_version": "3.0", "date_saved": date}).encode()
        found = only(collect(run, here, archive(here / "m.keras", 2000, {"metadata.json": metadata, "w": b"1"})))
        assert found.container == "keras"
        digests.add(found.content)
    assert len(digests) == 1


@pytest.mark.parametrize("cut", [4, 10, 30, 60, -1, -10])
def test_a_broken_container_is_a_plain_file(run: Path, here: Path, cut: int) -> None:
    whole = archive(here / "m.zip", 2000, {"a": b"1" * 100}).read_bytes()
    (here / "m.zip").write_bytes(whole[:cut])
    found = only(collect(run, here, here / "m.zip"))
    assert found.digest.startswith("sha256:")
    assert (found.content, found.container) == ("", "")


def test_a_zip_bomb_is_not_unpacked(run: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MAX_UNPACKED", 1 << 20)
    found = only(collect(run, here, archive(here / "bomb.zip", 2000, {"a": bytes(8 << 20)})))
    assert found.digest
    assert found.content == ""


def test_beyond_the_bounds_files_are_counted_or_listed_without_a_digest(
    run: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [here / f"file{number}" for number in range(5)]
    for path in paths:
        path.write_bytes(bytes(10))
    monkeypatch.setattr(outputs, "MAX_FILES", 3)
    monkeypatch.setattr(outputs, "MAX_BYTES", 25)
    found = collect(run, here, *paths)
    assert found.left_out == 2
    assert [bool(file.digest) for file in found.files] == [True, True, False]
    assert found.files[2].note


def test_an_interruption_stops_the_reading_and_keeps_the_list(run: Path, here: Path) -> None:
    (here / "model").write_text("x")
    found = only(collect(run, here, here / "model", interrupted=True))
    assert found.digest == ""
    assert found.note == "not read: interrupted"


def test_names_of_any_bytes_are_kept(run: Path, here: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(here) + b"/\xff name"))
    path.write_text("x")
    found = only(collect(run, here, path))
    assert os.fsencode(found.path) == b"\xff name"


def test_no_list_at_all_is_no_trouble(run: Path, here: Path) -> None:
    assert outputs.collect(run, here, lambda: False).files == []


def test_what_weights_and_biases_writes_past_the_shim_is_found(run: Path, here: Path) -> None:
    home = here / "wandb" / "offline-run-20261121_175034-kci87lir"
    for name in ("logs/debug.log", "files/media.png", "files/wandb-summary.json", "run-kci87lir.wandb"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "other.wandb").symlink_to("/etc/hostname")
    (here / "elsewhere.wandb").write_text("of nobody")
    found = collect(run, here, home / "logs" / "debug.log").files
    assert [os.path.relpath(here / file.path, home) for file in found] == [
        "files/wandb-summary.json",
        "logs/debug.log",
        "run-kci87lir.wandb",
    ]
    assert all(file.digest for file in found)
