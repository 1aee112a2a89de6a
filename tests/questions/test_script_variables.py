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
    "Settings.rate", "applied.args[0]", "callback.__self__.steps", "cell.value", "chosen", "closure.count",
    "context.value", "curve", "day", "flag", "generator", "history", "iterators[0].iterator 1",
    "iterators[1].iterator 0", "iterators[1].iterator 1", "iterators[2]", "iterators[3]", "iterators[4]",
    "iterators[5]", "layered.maps[0]['a']", "local in main()", "missing['best']", "nested['phases'][1]",
    "numbers.number", "own.rate", "packed", "pair", "phase", "price", "remembering.seen", "share", "shared.value",
    "table['b']", "trainer.best", "trainer.slotted.number", "trainer.steps", "waited", "waiting.queue", "window",
]  # fmt: skip


@pytest.mark.parametrize("version", interpreters.available())
def test_variables_of_all_kinds_are_named_and_set(version: str) -> None:
    done = subprocess.run(
        [interpreters.available()[version], SCRIPT, ROOT / "reprokit"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    has_cycles = tuple(map(int, version.split("."))) < (3, 12)  # later ones tell no position
    names = [name for name in NAMES if has_cycles or name != "iterators[5]"]
    assert result["differing"] == [f"script_variables.py: {name}" for name in names]
    assert result["of_library"] == [
        "LONG", "4.5 1 2026-01-03 00:00:00 3 days, 0:00:00", "0300", 1.5, 3.0, 3.0, [3], 3, [1, 3], 3, 2,
        1, ["b", 1], "b", 3, [1, "b"], "b" if has_cycles else "a",
    ]  # fmt: skip
    assert result["still"] == []
    assert result["kept_queues"] == []  # those of a keyframe: threads may wait for what is in them
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
