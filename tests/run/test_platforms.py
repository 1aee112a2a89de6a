"""On other platforms recording says so in one line; the rest of the command line works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.interpreters import ROOT, interpreter
from tests.support import rest_slow, training_text

# Another platform as far as Python code can tell: its name, and what its standard library lacks.
ELSEWHERE = training_text("other_platforms.py")


def run(kind: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", ELSEWHERE, kind, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("kind", ["windows", "macos", "musl", "riscv"])
@pytest.mark.parametrize("arguments", [["record", "--", "true"], ["replay", "."]])
def test_recording_is_refused_in_one_line(kind: str, arguments: list[str]) -> None:
    done = run(kind, *arguments)
    assert done.returncode == 125
    assert done.stderr.startswith("reprokit: not-supported: recording and replaying need ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["windows", "macos", "musl", "riscv"])
def test_the_rest_of_the_command_line_is_there(kind: str) -> None:
    assert run(kind, "--help").returncode == 0
    done = run(kind, "show", "no-such-run")
    assert done.returncode == 2
    assert done.stderr.startswith("reprokit: run-not-found: ")


@pytest.mark.parametrize("kind", rest_slow(["windows", "macos", "musl"]))
def test_doctor_says_what_is_missing(kind: str) -> None:
    done = run(kind, "doctor")
    assert done.returncode == 2
    assert "no  platform: recording and replaying need " in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["3.7", "3.8", "3.9"])
def test_a_python_that_is_too_old_is_one_line(version: str) -> None:
    old = interpreter(version)
    if old is None:
        pytest.skip(f"there is no Python {version}")
    done = subprocess.run([old, "-m", "reprokit", "ls"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"reprokit: Python {version} is too old: reprokit needs 3.10 or newer\n"
