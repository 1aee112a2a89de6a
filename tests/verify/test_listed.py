"""The list of runs: each in a line, whatever state it is in."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from reprokit.model.run import RUNNING
from reprokit.run_files.rundir import RUN
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


WIDE = "訓練データを読み込む"  # each character takes two columns of a terminal


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs whose commands are long, wide, and of several lines."""
    home = tmp_path_factory.mktemp("wide")
    commands = {"latin": "x = 1; " * 20, "lines": "x = 1\n" * 20, WIDE[:2]: WIDE * 5, "short": WIDE}
    for name, command in commands.items():
        building = recording(home / name)
        building.run.command = ["python", "-c", command]
        building.losses(0.5)
        building.write()
    return home


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_each_run_is_one_line_of_a_terminal(wide: Path, columns: int) -> None:
    headline, headings, *lines = plain(on_a_terminal(wide, "ls", ".", columns=columns))
    assert headline == ".: 4 runs"
    assert headings.split()[0] == "name"
    assert ("size" in headings) == (columns > 40), "what is left out of a line that is too short"
    assert sorted(line.split()[0] for line in lines) == sorted(["latin", "lines", WIDE[:2], "short"])
    assert all(cell_len(line) <= columns for line in lines)
    assert all("exit 0" in line for line in lines)
    assert sum("…" in line for line in lines) == {40: 4, 80: 3, 200: 1}[columns]
    assert max(map(cell_len, lines)) > columns - 12, "a line is not cut before its end"


def test_wide_characters_keep_columns_in_line_in_a_pipe(wide: Path, reprokit: Reprokit) -> None:
    lines = reprokit.run("ls", str(wide)).stdout.splitlines()[1:]
    place = cell_len(lines[0].partition("status")[0])
    assert [cell_len(line.partition("exit 0")[0]) for line in lines[1:]] == [place] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "kept"),
    [
        (f"show {WIDE[:2]}", ["environment", WIDE[:9]]),
        ("verify lines short", ["evaluation", "process", "metrics", "states", "different"]),
    ],
)
def test_cells_that_do_not_fit_are_folded_and_not_cut(wide: Path, command: str, kept: list[str]) -> None:
    for columns in (40, 80):
        lines = plain(on_a_terminal(wide, *command.split(), columns=columns))
        assert max(map(cell_len, lines)) <= columns
        assert not [word for word in kept if not any(word in line for line in lines)]


def plain(text: str) -> list[str]:
    """The lines without colors and the spaces at their ends."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]


def on_a_terminal(directory: Path, *arguments: str, columns: int = 400) -> str:
    """What is written to a terminal of so many columns."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 50, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen([COMMAND, *arguments], cwd=directory, env=environment, stdout=writer) as process:
        os.close(writer)
        text = b""
        while block := read_or_end(reader):
            text += block
    os.close(reader)
    assert process.returncode in (0, 1)
    return text.decode()


def read_or_end(reader: int) -> bytes:
    try:
        return os.read(reader, 1 << 16)
    except OSError:  # Linux says so that nobody writes any more
        return b""
