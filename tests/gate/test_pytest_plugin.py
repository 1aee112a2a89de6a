"""The pytest plugin, in projects of its own: each test here starts a pytest, as its users do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = ["-p", "reprokit.pytest_plugin"]
TESTS = """
import os, random, time, unittest
import pytest

@pytest.mark.reproducible
def test_repeats(reprokit, tmp_path):
    assert reprokit.watched
    for step in range(3):
        reprokit.log(step=step, loss=random.random() + len(os.urandom(4)))

@pytest.mark.reproducible(fidelity=True)
@pytest.mark.parametrize("size", [8, 16])
def test_with_parameters(reprokit, size):
    reprokit.log(step=0, loss=float.fromhex(os.urandom(size).hex()[:8]))

@pytest.mark.reproducible
def test_varies(reprokit):
    reprokit.log(step=0, loss=time.monotonic())

@pytest.mark.reproducible
def test_says_nothing():
    pass

@pytest.mark.reproducible
def test_fails(reprokit):
    assert False, "of itself"

@pytest.mark.reproducible(pair=2)
def test_misspelt():
    pass

@pytest.mark.reproducible(vary="moon")
def test_unknown_surroundings():
    pass

class TestUnit(unittest.TestCase):
    @pytest.mark.reproducible
    def test_of_unittest(self):
        pass

def test_plain(reprokit):
    assert not reprokit.watched
    reprokit.log(step=0, loss=1.0)
"""


VARIED = """
import pytest, socket

@pytest.mark.reproducible(vary=["all"])
def test_sound(reprokit):
    reprokit.log(step=0, loss=1.0)

@pytest.mark.reproducible(vary="host-name")
def test_host(reprokit):
    reprokit.log(step=0, loss=float(len(socket.gethostname())))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nreprokit_goldens = goldens\n")
    return tmp_path


def run(project: Path, *options: str) -> tuple[str, int]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        *PLUGIN,
        *(["-p", "xdist.plugin"] if "-n" in options else []),
        "-rA",
        *options,
    ]
    environment = {**_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # those of others take a second each
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode


def _environment() -> dict[str, str]:
    """Without what this very pytest has told its tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}


def outcomes(output: str) -> dict[str, str]:
    words = [line.split() for line in output.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR "))]
    return {line[1].partition("::")[2]: line[0] for line in words}


def test_marked_tests_are_run_twice_and_compared(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    output, status = run(project)
    assert status == 1
    assert outcomes(output) == {
        "test_repeats": "PASSED",
        "test_with_parameters[8]": "PASSED",
        "test_with_parameters[16]": "PASSED",
        "test_plain": "PASSED",
        "test_varies": "FAILED",
        "test_fails": "FAILED",
        "test_misspelt": "FAILED",
        "test_unknown_surroundings": "FAILED",
        "TestUnit::test_of_unittest": "ERROR",
    }
    assert "tests that must repeat bit by bit: 3 identical, 1 different, 4 not checked" in output
    assert re.search(
        r"^SKIPPED \[1\].*reprokit: neither run recorded metrics, weights or outputs", output, re.MULTILINE
    )
    assert "unexpected keyword argument 'pair'" in output
    assert "vary knows no 'moon'" in output
    assert "not for those of unittest" in output
    assert "process metrics: log loss" in output
    assert "the training ended with exit status 1" in output


@pytest.mark.extended
def test_goldens_and_workers(project: Path) -> None:
    """In two workers of xdist, which report to one terminal."""
    chosen = ["-k", "repeats", "-n", "2"]
    output, status = run(project, *chosen)
    assert status == 1
    assert "no golden for this machine" in output
    output, status = run(project, *chosen, "--reprokit-update")
    assert status == 0, output
    output, status = run(project, *chosen)
    assert status == 0, output
    assert "tests that must repeat bit by bit: 1 identical" in output
    (project / "test_it.py").write_text(TESTS.replace("len(os.urandom(4))", "len(os.urandom(4)) + 1"))
    output, status = run(project, *chosen, "--reprokit-keep", "runs")
    assert outcomes(output)["test_repeats"] == "FAILED"
    assert "golden: process metrics" in output
    assert list((project / "runs").glob("reprokit-pytest-*/*/replay-of-golden/run.json"))


@pytest.mark.extended
def test_other_surroundings(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_it.py").write_text(VARIED)
    output, status = run(project)
    assert outcomes(output) == {"test_sound": "PASSED", "test_host": "FAILED"}, output
    assert "varied: host-name: this variation makes the training differ" in output
    assert status == 1


def test_goldens_are_updated_where_there_are_some(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\n")
    output, status = run(project, "--reprokit-update")
    assert (status, "needs reprokit_goldens" in output) == (4, True)


def test_without_a_marker_or_with_skip_nothing_is_started(project: Path) -> None:
    output, status = run(project, "-k", "says or varies", "--reprokit-skip")
    assert (status, "reprokit" in output.partition("short test summary")[2]) == (0, False)
    assert "reproducible(pairs=1" in run(project, "--markers")[0]
    assert "--reprokit-update" in run(project, "--help")[0]
