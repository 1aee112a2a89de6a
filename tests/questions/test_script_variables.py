"""The agent names the variables that a script keeps itself, and sets them, in every Python that it works in."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from tests import interpreters
from tests.interpreters import ROOT

SCRIPT = ROOT / "tests" / "trainings" / "script_variables.py"
NAMES = [
    "Settings.rate", "callback.__self__.steps", "chosen", "closure.count", "curve", "flag", "generator", "history",
    "local in main()", "missing['best']", "nested['phases'][1]", "numbers.number", "pair", "table['b']", "trainer.best",
    "trainer.slotted.number", "trainer.steps", "window",
]  # fmt: skip


@pytest.mark.parametrize("version", interpreters.available())
def test_variables_of_all_kinds_are_named_and_set(version: str) -> None:
    done = subprocess.run(
        [interpreters.available()[version], SCRIPT, ROOT / "reprokit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["differing"] == [f"script_variables.py: {name}" for name in NAMES]
    assert result["still"] == []
    generator = random.Random(4)
    generator.random()
    assert result["seen"] == [
        1, 2, 2, generator.random(), [1.0, 3.0], [1, 3], 3, [1, 2, 3], {"a": 1, "b": 3},
        [["warmup", 1], ["long", "long", "3"]], [3, 2.5], [],
        ["d", 0.5, 1.5],
    ]  # fmt: skip


def test_only_the_named_variables_are_set() -> None:
    command = [sys.executable, str(SCRIPT), str(ROOT / "reprokit"), "others"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["still"] == ["script_variables.py: local in main()"]
    assert result["seen"][:2] == [2, 2]
