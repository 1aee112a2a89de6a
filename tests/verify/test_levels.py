"""Each category has a level, from which the verdict says what was compared."""

from __future__ import annotations

import re
from pathlib import Path

from reprokit.core.difference import Verdict
from reprokit.gate.check import COMPARED
from reprokit.verify.comparison import Level
from reprokit.verify.facts import BY_NAME
from reprokit.verify.runs import compare
from reprokit.verify.verdict import verdict_line

from .runs import recording, training

VERIFY = Path(__file__).parents[2] / "reprokit" / "verify"


def test_every_category_has_a_level(tmp_path: Path) -> None:
    comparison = compare(training(tmp_path / "left").write(), training(tmp_path / "right").write())
    assert {category.name for category in comparison.tree.children} <= BY_NAME.keys()
    assert set(COMPARED) <= BY_NAME.keys()
    assert BY_NAME["times"].level is Level.BOOKKEEPING
    assert comparison.levels == {Level.EXECUTION, Level.TRAINING, Level.RESULT}


def test_without_bookkeeping_the_verdict_says_that_all_is_the_same(tmp_path: Path) -> None:
    comparison = compare(training(tmp_path / "left").write(), training(tmp_path / "right").write())
    assert comparison.verdict is Verdict.IDENTICAL
    assert verdict_line(comparison).startswith("identical: everything that was recorded and is compared is the same")


def test_a_training_alone_is_said_to_be_one(tmp_path: Path) -> None:
    sides = []
    for number in (1, 2):
        building = recording(tmp_path / f"run{number}")
        building.losses(0.5, 0.25)
        sides.append(building.write())
    assert compare(*sides).levels == {Level.EXECUTION, Level.TRAINING}


def test_only_one_module_of_verify_says_what_came_out() -> None:
    """A line that begins with a verdict is made in `verdict.py`, and nowhere else."""
    begins = re.compile(r"""f?"(?:identical|different|tolerated): """)
    modules = [path for path in VERIFY.rglob("*.py") if begins.search(path.read_text())]
    assert [path.name for path in modules] == ["verdict.py"]
