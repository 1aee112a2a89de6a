"""Whoever writes a file, and by whatever calls: it is an output if it is new or other at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from reprokit.run import outputs
from reprokit.run.outputs import ChangeSearch
from reprokit.run_files import names, rundir
from reprokit.run_files.rundir import RunDirectory
from tests.support import COMMAND, Reprokit, python

SOURCE = Path(__file__).with_name("written_past_the_shim.c")


@pytest.fixture(scope="module")
def static_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that no shim is loaded into."""
    program = tmp_path_factory.mktemp("programs") / "static"
    done = subprocess.run(["gcc", "-static", "-o", program, SOURCE], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("gcc cannot link statically here")
    return program


def listed(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "outputs.json").read_text())
    return content


def paths(run: Path) -> list[str]:
    return [file["path"] for file in listed(run)["files"]]


def verified(reprokit: Reprokit, *runs: str) -> tuple[int, dict[str, str], str]:
    """The exit status of verify, the verdicts of the outputs, and the headline."""
    done = reprokit.run("verify", *runs, "--json")
    shown = reprokit.run("verify", *runs).stdout
    categories = json.loads(done.stdout)["categories"]
    leaves = next(child for child in categories if child["name"] == "outputs")["children"]
    return done.returncode, {leaf["name"]: leaf["verdict"] for leaf in leaves}, shown.partition("\n")[0]


@pytest.mark.parametrize("options", [(), ("--no-supervisor",)])
def test_files_of_a_program_past_the_shim_are_compared(
    reprokit: Reprokit, static_program: Path, options: tuple[str, ...]
) -> None:
    for number, text in enumerate(["one", "two"]):
        for name in ("replaced", "changed", "untouched"):
            (reprokit.directory / name).write_text("of before" + " " * 4096)
        os.utime(reprokit.directory / "changed", ns=(1, 1))
        for name in ("new", "sub/dir/new", "renamed"):
            (reprokit.directory / name).unlink(missing_ok=True)
        command = [str(static_program), text]
        done = reprokit.run("record", "-q", *options, "-o", f"run-{number}", "--", *command)
        assert done.returncode == 0, done.stderr
        assert (reprokit.directory / "changed").stat().st_mtime_ns == 1
        expected = ["changed", "new", "renamed", "replaced", "sub/dir/new"]
        assert paths(reprokit.directory / f"run-{number}") == expected
    assert listed(reprokit.directory / "run-0")["directories"] == ["sub", "sub/dir"]
    status, verdicts, headline = verified(reprokit, "run-0", "run-1")
    assert status == 1
    assert {name for name, verdict in verdicts.items() if verdict == "different"} == set(expected)
    assert headline.startswith("different: ")


def test_a_rename_past_libc_is_followed_and_what_it_replaces_is_restored(
    reprokit: Reprokit, static_program: Path
) -> None:
    (reprokit.directory / "replaced").write_text("of an earlier run")
    command = ["sh", "-c", f"cat replaced > seen; {static_program}; cp renamed .tmp1; mv .tmp1 moved"]
    assert reprokit.run("record", "-q", "-o", "run", "--", *command).returncode == 0
    supervisor = RunDirectory(reprokit.directory / "run").run.supervisor
    if supervisor is None or not supervisor.is_on:
        pytest.skip("no supervisor can be started here")
    assert (
        f"{reprokit.directory}/.tmp2\\>{reprokit.directory}/replaced"
        in (reprokit.directory / "run" / "written.paths").read_text()
    )
    found = {file["path"]: file["kept"] is not None for file in listed(reprokit.directory / "run")["found"]}
    assert found == {"replaced": True}
    assert reprokit.run("replay", "-q", "run", "-o", "again").returncode == 0
    assert (reprokit.directory / "seen").read_text() == "of an earlier run"
    assert verified(reprokit, "run", "again")[0] == 0


def test_directories_that_the_command_names_are_looked_through(reprokit: Reprokit, static_program: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as elsewhere:
        place = Path(elsewhere)
        (reprokit.directory / "link").symlink_to(place)  # what it leads to is no temporary place
        writing = f"cd {place} && {static_program}"
        (place / "new").touch()
        for words in (["sh", str(place)], ["sh", f"--out={place}"], ["sh", "--out", str(place / "new")], []):
            done = reprokit.run("record", "-q", "--overwrite", "-o", "run", "--", "sh", "-c", writing, *words)
            assert done.returncode == 0, done.stderr
            new = {f"{place}/{name}" for name in ("new", "renamed")}
            assert new <= set(paths(reprokit.directory / "run"))


def test_where_a_link_leads_is_looked_through(reprokit: Reprokit, static_program: Path, tmp_path: Path) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "out").symlink_to(tmp_path / "elsewhere")
    command = ["sh", "-c", f"cd out && {static_program}"]
    rk = Reprokit(tmp_path / "here")
    assert rk.run("record", "-q", "-o", "run", "--", *command).returncode == 0
    assert f"{tmp_path}/elsewhere/new" in paths(tmp_path / "here" / "run")


def test_a_log_behind_a_pipe_and_edited_sources_are_no_outputs(reprokit: Reprokit) -> None:
    code = "import subprocess; open('seen', 'w').write('1'); print('done')"
    (reprokit.directory / "edited.py").write_text("print(1)")
    line = f'{COMMAND} record -o run -- {sys.executable} -c "{code}" 2>&1 | tee log | grep -v x > other-log'
    edit = "(sleep 0.3; echo 'print(2)' > edited.py) & (sleep 0.3; echo 1; sleep 3) > monitor &"
    subprocess.run(["sh", "-c", f"{edit} {line}"], cwd=reprokit.directory, check=True)
    assert paths(reprokit.directory / "run") == ["seen"]


def test_what_only_another_program_may_have_written_is_said(reprokit: Reprokit, static_program: Path) -> None:
    assert reprokit.run("record", "-q", "-o", "run", "--", str(static_program)).returncode == 0
    (reprokit.directory / "new").unlink()
    assert reprokit.run("record", "-q", "-o", "other", "--", "sh", "-c", "echo 1 > x").returncode == 0
    shown = reprokit.run("verify", "run", "other", "--all").stdout
    assert "only the left run wrote it; nothing was seen to write it: another program may have" in shown
    assert "only the right run wrote it\n" in shown


def test_what_a_run_opens_and_leaves_as_it_is_is_no_output(reprokit: Reprokit) -> None:
    for name in ("appended", "mapped", "both"):
        (reprokit.directory / name).write_text("x" * 4096)
    code = """
import mmap
open("appended", "a").close()
with open("mapped", "r+b") as file:
    mmap.mmap(file.fileno(), 0)[0]
with open("both", "r+b") as file:
    mmap.mmap(file.fileno(), 0)[0] = 121
"""
    assert reprokit.record(*python(code)).returncode == 0
    if not names._notes_mapped_writes(os.stat(reprokit.directory).st_dev):
        pytest.skip("this file system does not tell when a mapped file changed")
    assert paths(reprokit.last) == ["both"]
    assert [file["path"] for file in listed(reprokit.last)["found"]] == ["both"]


def not_read(run: Path, note: str) -> None:
    """Take the digest of an output away, as if it could not be read."""
    content = listed(run)
    del content["check"]
    content["files"][0].update(digest="", kept=None, note=note)
    rundir.write_json(run / "outputs.json", content)
    facts = RunDirectory(run).run
    facts.outputs = rundir.seal_file(run / "outputs.json")
    rundir.write_json(run / "run.json", facts)


@pytest.mark.parametrize("sides", [("run",), ("run", "again")])
def test_an_output_that_could_not_be_read_is_not_said_to_be_identical(
    reprokit: Reprokit, sides: tuple[str, ...]
) -> None:
    assert reprokit.run("record", "-q", "-o", "run", "--", "sh", "-c", "echo 1 > a; echo 1 > b").returncode == 0
    assert reprokit.run("replay", "-q", "run", "-o", "again").returncode == 0
    assert verified(reprokit, "run", "again")[0] == 0
    for side in sides:
        not_read(reprokit.directory / side, "it changed while it was read")
    status, verdicts, headline = verified(reprokit, "run", "again")
    assert (status, verdicts) == (3, {"a": "not-compared", "b": "identical"})
    assert headline.startswith(
        "not-compared: nothing that was compared differs, but both runs changed what could not be"
    )
    assert "a: 2 bytes" in headline
    report = reprokit.run("report", "run", "again", "--format", "json", "-o", "report.json")
    assert report.returncode == 0, report.stderr
    assert json.loads((reprokit.directory / "report.json").read_text())["verdict"]["outcome"] == "not-compared"


@pytest.mark.slow
def test_a_file_that_grows_while_it_is_read_is_not_compared(reprokit: Reprokit) -> None:
    writer = "exec >> growing; while [ -e growing ]; do echo more; done"  # which does not make it again
    program = f"truncate -s 400M growing; setsid sh -c '{writer}' > /dev/null 2>&1 & sleep 0.2; echo 1 > other"
    try:
        assert reprokit.run("record", "-q", "-o", "run", "--", "sh", "-c", program).returncode == 0
    finally:
        (reprokit.directory / "growing").unlink()
    (file,) = (file for file in listed(reprokit.directory / "run")["files"] if file["path"] == "growing")
    assert (file["digest"], file["note"]) == ("", "it changed while it was read")


def search(directory: Path, start: int) -> outputs.ChangedFiles:
    return ChangeSearch(start, lambda path: not path.endswith("left-out"), lambda: False).run([str(directory)], [])


def test_a_search_is_bounded_and_looks_first_where_something_was_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / "data" / str(number)).mkdir(parents=True)
        (tmp_path / "data" / str(number) / "x").touch()
    (tmp_path / "left-out").mkdir()
    (tmp_path / "z" / "deep").mkdir(parents=True)
    start = (tmp_path / "z" / "deep").stat().st_ctime_ns
    time.sleep(0.02)  # more than a tick of the clock of file systems
    (tmp_path / "z" / "deep" / "probe").touch()
    (tmp_path / "left-out" / "new").touch()
    os.utime(tmp_path / "data" / "7" / "x", ns=(1, 1))
    whole = search(tmp_path, start)
    assert whole.files == {str(tmp_path / name) for name in ("data/7/x", "z/deep/probe")}
    assert whole.cut == ""
    monkeypatch.setattr(outputs, "OFTEN", 1)
    monkeypatch.setattr(outputs, "MAX_LOOKED_AT", 26)
    cut = search(tmp_path, start)
    assert cut.files == {str(tmp_path / "z" / "deep" / "probe")}
    assert cut.cut.startswith(str(tmp_path / "data"))


def test_that_not_all_was_looked_at_is_said(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch) -> None:
    run = reprokit.directory / "run"
    run.mkdir()
    (run / "plan.json").touch()
    (reprokit.directory / "data").mkdir()
    (reprokit.directory / "data" / "x").touch()
    monkeypatch.setattr(outputs, "OFTEN", 1)
    monkeypatch.setattr(outputs, "MAX_LOOKED_AT", 0)
    found = outputs.collect(run, reprokit.directory, lambda: False)
    assert found.cut == "."
    assert "not all files below . were looked at" in found.not_compared[0]
