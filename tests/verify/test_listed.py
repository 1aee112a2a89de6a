"""The list of runs: each in a line, whatever state it is in."""

from __future__ import annotations

import json
import os
import platform
import pty
import subprocess
from pathlib import Path

import psutil
import pytest

from reprokit.model.run import RUNNING
from reprokit.rundir import RUN
from tests.support import COMMAND, Reprokit

from .runs import recording, replayed


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A recording, a newer replay of it, one whose launcher died, one that is damaged, and what is no run."""
    left = recording(tmp_path / "first")
    replayed(left, tmp_path / "second").write()
    left.write()
    dead = recording(tmp_path / "dead")
    dead.run.status, dead.run.exit_code, dead.run.ended, dead.run.started = RUNNING, None, None, "2025-01-01T00:00:00Z"
    dead.write()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / RUN).write_text("{\x1b[31m")
    (tmp_path / "outputs").mkdir()
    (tmp_path / "last").symlink_to("second")
    return tmp_path


def test_runs_are_listed_the_newest_first(home: Path, reprokit: Reprokit) -> None:
    done = reprokit.run("ls", str(home))
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"{home}: 4 runs"
    assert lines[1].split() == ["name", "when", "command", "status", "of", "verdict", "size"]
    assert [line.split()[0] for line in lines[2:6]] == ["second", "first", "dead", "damaged"]
    assert "  first  " in lines[2], "what it replayed"
    assert "exit 0" in lines[3]
    assert "no end" in lines[4]
    assert lines[6].startswith(f"{home / 'damaged' / RUN}"), "why it cannot be read"
    assert all(len(line) <= 80 for line in lines[1:6])
    assert "\x1b" not in done.stdout
    assert len(reprokit.run("ls", str(home), "--limit", "2").stdout.splitlines()) == 4


def test_the_document_has_what_programs_need(home: Path, reprokit: Reprokit) -> None:
    found = json.loads(reprokit.run("ls", str(home), "--json").stdout)["runs"]
    assert [one.get("kind") for one in found] == ["replay", "record", "record", None]
    assert found[0]["replay_of"] == found[1]["run_id"]
    assert [one["name"] for one in found] == ["second", "first", "dead", "damaged"]
    assert found[0]["verdict"] is None
    assert found[1]["size"] == sum(path.stat().st_size for path in (home / "first").rglob("*") if path.is_file())
    assert "problem" in found[3]


def test_no_runs_and_no_directory(reprokit: Reprokit) -> None:
    assert reprokit.run("ls", ".").stdout == ".: 0 runs\n"
    done = reprokit.run("ls")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_hostile_names_and_a_running_run_in_a_pipe_and_on_a_terminal(tmp_path: Path, reprokit: Reprokit) -> None:
    hostile = "\x1b]0;owned\x07\u202e<b>[bold]"
    building = recording(tmp_path / f"run{hostile}")
    building.run.command, building.run.host = ["python", hostile], platform.node()
    building.run.status, building.run.exit_code, building.run.ended = RUNNING, None, None
    process = psutil.Process()
    building.run.launcher_pid, building.run.launcher_started = process.pid, process.create_time()
    building.write()
    piped = [reprokit.run("ls", "."), reprokit.run("show", f"run{hostile}")]
    on_terminal = [on_a_terminal(tmp_path, "ls", "."), on_a_terminal(tmp_path, "show", f"run{hostile}")]
    for text in [*(done.stdout for done in piped), *on_terminal]:
        assert "in progress" in text
        assert "\\x1b]0;owned\\x07\\u202e<b>[bold]" in "".join(text.split())
        assert "\x1b]" not in text
        assert "\u202e" not in text
    assert piped[1].stdout.splitlines()[0].endswith(f": in progress (process {process.pid})")


def on_a_terminal(directory: Path, *arguments: str) -> str:
    """What is written to a terminal of 400 columns."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "COLUMNS": "400", "TERM": "xterm-256color"}
    with subprocess.Popen([COMMAND, *arguments], cwd=directory, env=environment, stdout=writer) as process:
        os.close(writer)
        text = b""
        while block := read_or_end(reader):
            text += block
    os.close(reader)
    assert process.returncode == 0
    return text.decode()


def read_or_end(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 16)
    except OSError:  # Linux says so that nobody writes any more
        return b""
