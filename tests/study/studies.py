"""Small studies of small trainings, run as a user runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from reprokit.study import store
from reprokit.study.results import RunResult
from tests.support import COMMAND, LIMIT, training_text

PYTHON = sys.executable
OUT = "out"

TRAINING = training_text("study_numpy.py")


def written(directory: Path, text: str, training: str = TRAINING) -> Path:
    """A study file with a training beside it."""
    (directory / "train.py").write_text(training)
    path = directory / "study.toml"
    path.write_text(f'name = "tiny"\ncommand = ["{PYTHON}", "train.py"]\n{text}')
    return path


def words(directory: Path, *options: str) -> list[str]:
    return [str(COMMAND), "study", str(directory / "study.toml"), "-o", str(directory / OUT), *options]


def run(directory: Path, *options: str, status: int = 0) -> str:
    """Run the study; what it said on stderr."""
    done = subprocess.run(words(directory, *options), cwd=directory, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    return done.stderr


def ended_by(directory: Path, number: signal.Signals, when: Callable[[], bool]) -> tuple[int, str]:
    """Run the study and send it, and nothing else, a signal at a certain moment; its status and what it said."""
    process = subprocess.Popen(words(directory), cwd=directory, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + LIMIT
    while not when():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=LIMIT)
    return process.returncode, said


def results_of(directory: Path) -> dict[tuple[str, str], RunResult]:
    """The results of a study of one pair a setup."""
    return {(one.setup, one.part): one for one in store.read_results(directory)}
