"""Outputs that are put in place: by renamed directories, links and symbolic links, in any process."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.support import Reprokit, python, training_text

WRITTEN = training_text("placed_outputs.py")


def listed(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "outputs.json").read_text())
    return content


def test_what_is_renamed_and_linked_is_an_output_and_what_is_gone_is_none(reprokit: Reprokit) -> None:
    for name, fresh in ("first", "0"), ("second", "1"):
        (reprokit.directory / "cut").write_text("longer")
        done = reprokit.run("record", "-o", name, "--", *python(WRITTEN), environment={"FRESH": fresh})
        assert done.returncode == 0, done.stderr
        assert "first removed" not in done.stderr
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
    compared = json.loads(reprokit.run("verify", "first", "second", "--json").stdout)
    leaves = next(child for child in compared["categories"] if child["name"] == "outputs")["children"]
    assert {leaf["name"] for leaf in leaves if leaf["verdict"] == "different"} == {
        *("checkpoint/deeper/model", "child/model", "moved/model", "linked", "unnamed", "latest", "b/first", "d/first"),
    }
    shown = reprokit.run("show", "first").stdout
    assert "latest -> step-2" in shown
    assert not any("first removed" in text for text in (shown, *compared["notes"]))


def test_a_directory_of_results_that_was_moved_to_a_temporary_place_is_counted(reprokit: Reprokit) -> None:
    code = """
import os, sys
os.makedirs("built/deep")
open("built/deep/model", "w").write("weights")
os.rename("built", sys.argv[1])
"""
    with tempfile.TemporaryDirectory() as place:
        done = reprokit.record(*python(code), f"{place}/moved")
        assert done.returncode == 0, done.stderr
        assert f"1 file was written to a temporary place, first {place}/moved/deep/model" in done.stderr


def test_names_with_backslashes_are_put_in_place(reprokit: Reprokit) -> None:
    code = r"""
import os
os.mkdir("a\\>\n")
open("a\\>\n/x", "w").close()
os.rename("a\\>\n", "b\\>\n\\")
"""
    assert reprokit.record(*python(code)).returncode == 0
    assert [file["path"] for file in listed(reprokit.last)["files"]] == ["b\\>\n\\/x"]
