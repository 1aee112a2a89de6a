"""doctor says what there is, what is missing, and what that means."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.core import native
from tests.support import COMMAND

PAGE = Path(__file__).parents[2] / "docs" / "commands" / "doctor.md"
NEEDED = ("reprokit", "platform", "C library", "shim", "preload", "current directory", "Python on PATH")

# Keeps a seccomp listener, as a container does, while the command behind it runs.
WITH_A_LISTENER = """
import subprocess, sys
from reprokit.run import machine
outcome = machine._listen()
sys.exit(77 if outcome else subprocess.call(sys.argv[1:]))
"""


def doctor(*, path: str | None = None, before: tuple[str, ...] = ()) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit status, and each line's state and text by its name."""
    beside = os.fspath(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": path if path is not None else f"{beside}:{os.environ['PATH']}"}
    done = subprocess.run([*before, COMMAND, "doctor"], env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    lines = (line[4:].split(": ", 1) for line in done.stdout.splitlines())
    states = [line[:2] for line in done.stdout.splitlines()]
    return done.returncode, {name: (state, text) for state, (name, text) in zip(states, lines, strict=True)}


def tools(directory: Path, *names: str) -> Path:
    """A directory for PATH with these programs only."""
    directory.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (directory / name).symlink_to(found)
    return directory


def test_everything_needed_is_found_where_the_tests_run() -> None:
    status, lines = doctor()
    assert {lines[name][0] for name in NEEDED} == {"ok"}
    assert f"ABI {native.constants().RK_ABI}" in lines["preload"][1]
    assert "getrandom from " in lines["trial recording"][1]
    assert status == (2 if "no" in {state for state, _ in lines.values()} else 0)


def test_every_line_is_explained() -> None:
    page = PAGE.read_text()
    for name in doctor()[1]:
        assert f"| {name} |" in page


def test_what_only_some_runs_need_may_be_absent(tmp_path: Path) -> None:
    status, lines = doctor(path=str(tools(tmp_path / "bin", "true", "env")))
    assert lines["strace"] == (
        "--", "--prove needs strace, which is not on PATH; install it, or record without --prove"
    )  # fmt: skip
    assert lines["Python on PATH"][0] == "no"
    assert status == 2


@pytest.mark.slow
def test_an_isolated_python_is_recorded_without_the_agent(tmp_path: Path) -> None:
    directory = tools(tmp_path / "bin", "strace", "true") if shutil.which("strace") else tools(tmp_path / "bin", "true")
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    python.chmod(0o755)
    status, lines = doctor(path=str(directory))
    state, text = lines["trial recording"]
    assert state == "--"
    assert "its requests are recorded" in text
    assert "the agent was not loaded" in text
    assert status == (2 if "no" in {state for state, _ in lines.values()} else 0)


@pytest.mark.slow
def test_a_listener_that_is_there_already_is_said() -> None:
    if doctor()[1]["supervisor"][0] != "ok":
        pytest.skip("seccomp's user notification does not work here at all")
    _, lines = doctor(before=(sys.executable, "-c", WITH_A_LISTENER))
    state, text = lines["supervisor"]
    assert state == "--"
    assert "a listener is there already" in text
