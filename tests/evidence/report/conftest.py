"""Runs to report on: built ones, and a real recording with its replay."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import Reprokit
from tests.verify.runs import Building, replayed, training

SCRIPT = """
import random, reprokit
loss = 2.0
for step in range(40):
    loss = loss * 0.95 + random.random() * 0.01
    reprokit.log(step=step, loss=loss)
open("model.bin", "wb").write(repr(loss).encode())
"""


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Building, Building]:
    """A full training and its faithful replay, not written yet."""
    left = training(tmp_path / "left")
    return left, replayed(left, tmp_path / "right")


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Reprokit:
    """A directory with a recording, a replay of it, and another recording."""
    reprokit = Reprokit(tmp_path_factory.mktemp("real"))
    reprokit.script("train.py", SCRIPT)
    command = ["--", sys.executable, "train.py"]
    assert reprokit.run("record", "-o", "other", *command).returncode == 0
    assert reprokit.run("record", "-o", "first", *command).returncode == 0
    assert reprokit.run("replay", "first", "-o", "second").returncode == 0
    return reprokit
