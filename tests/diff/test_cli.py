"""reprokit diff: exit codes, the screen, the document, directories, and what stands on its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

from reprokit.cli.main import reprokit
from reprokit.core.errors import ArtifactDamaged, ArtifactNotReadable
from reprokit.diff.formats import FORMATS
from reprokit.diff.sources import FileSource
from tests.diff import samples
from tests.support import Reprokit

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "reprokit" / "schemas" / "diff.schema.json").read_text())


def diff(*arguments: object) -> Any:
    return CliRunner().invoke(reprokit, ["diff", *map(str, arguments)], prog_name="reprokit", terminal_width=78)


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories, equal but for a tensor, a text and a link."""
    content = samples.arrays()
    other = {**content, "flags": ~content["flags"]}
    for name, arrays, text in (("a", content, "one\n"), ("b", other, "two\n")):
        directory = tmp_path / name
        (directory / "deep").mkdir(parents=True)
        (directory / "deep" / "m.npz").write_bytes(samples.npz(arrays))
        (directory / "log.txt").write_text(text)
        (directory / "same.bin").write_bytes(bytes(100))
        (directory / "empty").mkdir()
        (directory / "link").symlink_to(text.strip())
        os.mkfifo(directory / "pipe")
    return tmp_path / "a", tmp_path / "b"


def test_identical_files_exit_with_0_and_others_with_1(tmp_path: Path) -> None:
    left, right, other = (tmp_path / name for name in ("a.npy", "b.npy", "c.npy"))
    left.write_bytes(samples.npy(np.zeros((2, 2))))
    right.write_bytes(samples.npy(np.zeros((2, 2), order="F")))
    other.write_bytes(samples.npy(np.eye(2)))
    for file, code, first in ((left, 0, "identical: "), (right, 0, "identical: "), (other, 1, "different: ")):
        done = diff(left, file)
        assert (done.exit_code, done.output[:11]) == (code, first)
        found = json.loads(diff(left, file, "--json").output)
        jsonschema.validate(found, SCHEMA)
        assert (found["verdict"] == "different") == bool(code) == (found["first_difference"] is not None)


def test_of_two_runs_the_next_command_is_said(sides: tuple[Path, Path]) -> None:
    assert diff(*sides).stderr == ""
    for side in sides:
        (side / "run.json").write_text("{}")
    assert diff(*sides).stderr == f"reprokit: next: reprokit verify {sides[0]} {sides[1]}\n"
    assert diff(*sides, "--json").stderr == ""


def test_directories_are_compared_file_by_file(sides: tuple[Path, Path]) -> None:
    done = diff(*sides, "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)
    jsonschema.validate(found, SCHEMA)
    verdicts = {child["name"]: child["verdict"] for child in found["tree"]["children"]}
    assert verdicts == {
        "deep": "identical",
        "deep/m.npz": "different",
        "empty": "identical",
        "link": "different",
        "log.txt": "different",
        "pipe": "not-recorded",
        "same.bin": "identical",
    }
    assert found["first_difference"]["name"] == "deep/m.npz/flags"


def test_what_only_one_directory_has_is_missing(sides: tuple[Path, Path]) -> None:
    (sides[0] / "more").write_text("x")
    (sides[1] / "same.bin").unlink()
    output = diff(*sides).output
    assert re.search(r"more +missing +file \| - +only the left directory has it", output)
    assert re.search(r"same.bin +missing +file \| - ", output)


def test_the_verdict_names_the_tensor_whatever_its_numbers_are(tmp_path: Path) -> None:
    for name, number in (("a.npz", 1), ("b.npz", 0)):
        (tmp_path / name).write_bytes(samples.npz({"bias": np.array([number, 2])}))
    output = diff(tmp_path / "a.npz", tmp_path / "b.npz").output
    assert output.startswith("different: a.npz/bias: 1 against 0: 1 of 2 elements of int64 [2] differs")


def test_a_zero_of_another_sign_is_named_with_tensor_count_and_place(tmp_path: Path) -> None:
    for name, zero in (("a.npz", 0.0), ("b.npz", -0.0)):
        (tmp_path / name).write_bytes(samples.npz({"bias": np.array([1, zero, zero], np.float32)}))
    output = diff(tmp_path / "a.npz", tmp_path / "b.npz").output
    assert output.startswith(
        "different: a.npz/bias: 0 against -0: 2 of 3 elements of float32 [3] differ, first at [1]; 2 "
    )


def test_all_shows_the_histogram(tmp_path: Path) -> None:
    left, right = tmp_path / "a.npy", tmp_path / "b.npy"
    one = np.ones(100, np.float32)
    left.write_bytes(samples.npy(one))
    right.write_bytes(samples.npy(one + np.arange(100, dtype=np.float32) * np.finfo(np.float32).eps))
    assert re.search(r"33-64 ULP +32 #{20,}", diff(left, right, "--all").output)
    assert "###" not in diff(left, right).output


def test_the_screen_holds_what_differs_most_and_says_that_there_is_more(tmp_path: Path) -> None:
    for name, number in (("a", 0), ("b", 1)):
        (tmp_path / f"{name}.npz").write_bytes(samples.npz({f"w{i}": np.array([number]) for i in range(50)}))
    output = diff(tmp_path / "a.npz", tmp_path / "b.npz").output
    assert len(output.splitlines()) < 30
    assert "more lines: --all shows them" in output
    assert len(diff(tmp_path / "a.npz", tmp_path / "b.npz", "--all").output.splitlines()) > 100


def test_names_and_values_of_files_cannot_command_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\u202e[red]"
    left, right = tmp_path / f"{evil}.npz", tmp_path / "b.npz"
    for path, number in ((left, 1), (right, 2)):
        path.write_bytes(samples.zipped({evil: f'{{"{number}": "\x1b[2J"}}'.encode()}))
    for options in ([], ["--all"], ["--json"]):
        done = diff(left, right, *options)
        assert done.exit_code == 1
        assert not {"\x1b", "\x07", "\u202e"} & set(done.output)


def test_a_file_that_is_cut_short_is_different_and_said_to_be_damaged(tmp_path: Path) -> None:
    whole = samples.safetensors({"w": np.zeros(4)})
    (tmp_path / "a.safetensors").write_bytes(whole)
    (tmp_path / "b.safetensors").write_bytes(whole[:-1])
    done = diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert done.exit_code == 1
    assert "cannot be read as safetensors (the right one: 'w' ends at byte" in done.output


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return Reprokit(Path.cwd()).run("diff", *map(str, arguments))


def test_what_cannot_be_compared_exits_with_2_and_one_line(sides: tuple[Path, Path], tmp_path: Path) -> None:
    missing, directory, file, fifo = tmp_path / "missing", sides[0], sides[0] / "log.txt", sides[0] / "pipe"
    for left, right in ((missing, file), (file, missing), (directory, file), (fifo, fifo)):
        done = run(left, right)
        assert (done.returncode, done.stdout) == (2, "")
        slug = "artifact-not-readable"
        words = rf"reprokit: {slug}: .+(; name .+|cannot be compared) \(reprokit help {slug}\)\n"
        assert re.fullmatch(words, done.stderr)


def test_a_file_that_may_not_be_read_is_no_difference(
    sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise ArtifactNotReadable(f"{path}: Permission denied; name a file")

    monkeypatch.setattr("reprokit.diff.files.open_file", refuse)
    assert isinstance(diff(*sides).exception, ArtifactNotReadable)


def test_a_file_that_shrinks_while_it_is_read_ends_with_one_line(
    sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [directory / "same.bin" for directory in sides]

    def shrink(self: FileSource, offset: int, target: memoryview) -> int:
        os.truncate(files[0], 10)
        return os.preadv(self.fd, [target], offset)

    monkeypatch.setattr(FileSource, "read_into", shrink)
    error = diff(*files).exception
    assert isinstance(error, ArtifactDamaged)
    assert "changed while it was read" in str(error)


def test_every_format_is_on_the_page_of_formats() -> None:
    page = (ROOT / "docs" / "artifacts.md").read_text()
    assert [format_.name for format_ in FORMATS if f"| {format_.name}" not in page] == []


def test_comparing_imports_no_framework_and_no_numpy(tmp_path: Path) -> None:
    for name, data in (("a", samples.npz(samples.arrays())), ("b", samples.npz({"x": np.zeros(1)}))):
        (tmp_path / f"{name}.npz").write_bytes(data)
    code = """
import sys
from pathlib import Path
from reprokit.diff.files import diff
diff(Path(sys.argv[1]), Path(sys.argv[2]))
print(*sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint({"numpy", "h5py", "torch", "tensorflow", "google", "onnx", "rich", "click"})
