"""Outputs that are put in place: by renamed directories, links and symbolic links, in any process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from reprokit.launch import outputs
from tests.support import Reprokit, python, training_text

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
