"""Outputs that are put in place: by renamed directories, links and symbolic links, in any process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reprokit.launch import outputs
from tests.support import COMMAND, Reprokit, python, training_text

WRITTEN = training_text("placed_outputs.py")


def listed(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "outputs.json").read_text())
    return content


def test_what_is_renamed_and_linked_is_an_output_and_what_is_gone_is_said(reprokit: Reprokit) -> None:
    for name, fresh in ("first", "0"), ("second", "1"):
        (reprokit.directory / "cut").write_text("longer")
        done = reprokit.run("record", "-o", name, "--", *python(WRITTEN), environment={"FRESH": fresh})
        assert done.returncode == 0, done.stderr
        assert "1 file that was written is not there at the end, first removed" in done.stderr
        if name == "first":
            for path in reprokit.directory.iterdir():
                if path.name != "first":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    found = listed(reprokit.directory / "first")
    other = {"a/second", "b/first", "c/second", "d/first"}
    assert {file["path"] for file in found["files"]} == {
        *("checkpoint/deeper/model", "checkpoint.tmp/again", "child/model", "moved/model", "linked", "unnamed"),
        *("step-1/model", "step-2/model", "cut", *other),
    }
    assert found["links"] == [{"path": "latest", "target": "step-2"}]
    assert found["gone"] == ["removed"]
    compared = json.loads(reprokit.run("verify", "first", "second", "--json").stdout)
    leaves = next(child for child in compared["categories"] if child["name"] == "outputs")["children"]
    assert {leaf["name"] for leaf in leaves if leaf["verdict"] == "different"} == {
        *("checkpoint/deeper/model", "child/model", "moved/model", "linked", "unnamed", "latest", "b/first", "d/first"),
    }
    assert "not compared: in both runs 1 file that was written is not there at the end, first removed" in " ".join(
        compared["notes"]
    )
    shown = reprokit.run("show", "first").stdout
    assert "latest -> step-2" in shown
    assert "1 file that was written is not there" in shown


@pytest.mark.parametrize(
    ("lines", "gone"),
    [
        ("/H/a.tmp/x\n/H/a.tmp\\>/H/a\n", ["a"]),  # and /H/a is gone
        ("/H/a.tmp/x\n/H/a.tmp\\>/tmp/a\n", ["a.tmp/x"]),  # to where results are not looked for
        ("/H/x\n/H/sub/x\n/H/sub\\>/H/there\n", ["x"]),
        ("\\>/H/link\n", ["link"]),
        ("/tmp/x\n/H/x.pyc\n", []),
    ],
)
def test_names_that_are_gone_are_counted(tmp_path: Path, lines: str, gone: list[str]) -> None:
    run, here = tmp_path / "run", tmp_path / "home"
    (here / "there").mkdir(parents=True)
    run.mkdir()
    (run / "written.paths").write_text(lines.replace("/H/", f"{here}/"))
    assert outputs.collect(run, here, lambda: False).gone == gone


def test_names_with_backslashes_are_put_in_place(reprokit: Reprokit) -> None:
    code = r"""
import os
os.mkdir("a\\>\n")
open("a\\>\n/x", "w").close()
os.rename("a\\>\n", "b\\>\n\\")
"""
    assert reprokit.record(*python(code)).returncode == 0
    assert [file["path"] for file in listed(reprokit.last)["files"]] == ["b\\>\n\\/x"]
    assert listed(reprokit.last)["gone"] == []


def test_files_that_change_past_the_shim_are_said_and_not_compared(reprokit: Reprokit) -> None:
    code = """
import ctypes, os
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o600, 0)
fd = ctypes.CDLL(None).syscall(437, -100, b"raw", how, 24)  # openat2
os.write(fd, str(os.getpid()).encode())
open("seen", "w").close()
print("done")
"""
    (reprokit.directory / "old").write_text("untouched")
    (reprokit.directory / "other").mkdir()
    (reprokit.directory / "other" / "run.json").write_text("of another run")
    for name in "one", "two":
        with open(reprokit.directory / "log", "w") as log:
            command = [COMMAND, "record", "-o", name, "--", *python(code)]
            done = subprocess.run(command, cwd=reprokit.directory, stdout=log, stderr=subprocess.PIPE, text=True)
        words = "1 file in the working directory was changed meanwhile by what was not seen, first raw"
        assert f"reprokit: outputs: {words}\n" in done.stderr
        found = listed(reprokit.directory / name)
        assert ([file["path"] for file in found["files"]], found["unseen"]) == (["seen"], ["raw"])
    done = reprokit.run("verify", "one", "two")
    assert done.returncode == 0
    assert f"note: not compared: in both runs {words}\n" in done.stdout


def test_what_is_put_in_place_past_the_shim_is_a_result_where_all_beside_it_is(reprokit: Reprokit) -> None:
    code = """
import ctypes, os
how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, 0o600, 0)
for directory in "new", "users":
    os.makedirs(directory, exist_ok=True)
    open(f"{directory}/part", "w").close()
    ctypes.CDLL(None).syscall(437, -100, f"{directory}/whole".encode(), how, 24)  # openat2
    os.remove(f"{directory}/part")
open("new/other", "w").close()
"""
    (reprokit.directory / "users").mkdir()
    (reprokit.directory / "users" / "notes").touch()
    assert reprokit.record(*python(code)).returncode == 0
    found = listed(reprokit.last)
    assert [file["path"] for file in found["files"]] == ["new/other", "new/whole"]
    assert found["unseen"] == ["users/whole"]
