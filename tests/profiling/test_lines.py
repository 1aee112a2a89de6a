"""What agents wrote is read within bounds, whatever it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from reprokit.profiling import analyze
from reprokit.profiling.lines import MAX_FILES, MAX_LINE
from reprokit.run_files.rundir import PROFILE, RunDirectory
from tests.profiling.observed import operator, profiled

BAD = {
    "no JSON": b"what is this?\n",
    "binary": bytes(range(256)) * 4 + b"\n",
    "a list": b"[1, 2]\n",
    "an unknown kind": b'{"kind": "surprise"}\n',
    "no kind": b'{"name": "x"}\n',
    "a negative count": json.dumps({**operator(), "calls": -1}).encode() + b"\n",
    "a huge count": json.dumps({**operator(), "calls": 1 << 70}).encode() + b"\n",
    "a line of another kind": json.dumps({**operator(), "where": "here"}).encode() + b"\n",
    "a long name": json.dumps({**operator(), "name": "x" * 5000}).encode() + b"\n",
    "a long line": b'{"kind": "operator", "name": "' + b"x" * MAX_LINE + b'"}\n',
    "deep nesting": b'{"kind": "setting", "name": "x", "value": ' + b"[" * 30_000 + b"]" * 30_000 + b"}\n",
    "a line cut short": b'{"kind": "operator", "na',
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_counted_and_the_others_are_used(tmp_path: Path, bad: str) -> None:
    run = profiled(tmp_path / "run", [operator()]).write()
    with open(run / PROFILE / "100-0.jsonl", "ab") as file:
        file.write(BAD[bad])
    found = analyze(RunDirectory(run))
    assert [one.subject for one in found.findings] == ["aten::index_put"]
    assert any("could not be read" in note for note in found.notes)


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"/home/\xff/train.py")
    run = profiled(tmp_path / "run", [operator(where=[[name, 3, "f"]])]).write()
    found = analyze(RunDirectory(run))
    assert found.findings[0].where[0].file == name


def test_no_file_is_followed_out_of_the_run_or_waited_for(tmp_path: Path) -> None:
    run = profiled(tmp_path / "run", [operator()]).write()
    secret = tmp_path / "secret"
    secret.write_text(json.dumps(operator("aten::secret")) + "\n")
    (run / PROFILE / "1-0.jsonl").symlink_to(secret)
    os.mkfifo(run / PROFILE / "2-0.jsonl")
    (run / PROFILE / "3-0.jsonl").mkdir()
    found = analyze(RunDirectory(run))
    assert [one.subject for one in found.findings] == ["aten::index_put"]
    assert len([note for note in found.notes if ".jsonl" in note]) == 3


def test_a_profile_directory_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    run = profiled(tmp_path / "run", [operator()]).write()
    (run / PROFILE).rename(tmp_path / "elsewhere")
    (run / PROFILE).symlink_to(tmp_path / "elsewhere")
    found = analyze(RunDirectory(run))
    assert found.findings == []
    assert any("not a directory" in note for note in found.notes)


def test_more_processes_than_are_read_are_counted(tmp_path: Path) -> None:
    run = profiled(tmp_path / "run", *([operator()] for _ in range(MAX_FILES + 2))).write()
    (run / PROFILE / "more").write_bytes(b"." * 5)
    found = analyze(RunDirectory(run))
    assert found.findings[0].processes == MAX_FILES
    assert found.findings[0].calls == 20 * MAX_FILES
    assert f"2 processes beyond the first {MAX_FILES} are left out" in found.notes
    assert "5 further processes were not observed" in found.notes
