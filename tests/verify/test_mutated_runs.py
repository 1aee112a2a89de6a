"""Real runs in which one thing was changed: verify calls every one of them different, or damaged, and says where.

Two hundred pairs, or as many as REPROKIT_MUTATIONS says (`make mutations`: a thousand).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.core.difference import Difference
from reprokit.core.errors import NothingComparable, ReprokitError, RunError
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare, require_whole
from tests.support import Reprokit, training_text

from . import mutated
from .mutated import EVERYWHERE, WITH_A_TRAIL, Mutant, Mutation, NothingToChangeError

pytestmark = pytest.mark.slow

COUNT = int(os.environ.get("REPROKIT_MUTATIONS", "200"))

TORCH = training_text("pytorch_predicted.py")

SKLEARN = training_text("sklearn_predicted.py")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Records a script once."""
    known: dict[str, Path] = {}

    def record(script: str) -> Path:
        if script not in known:
            directory = tmp_path_factory.mktemp("recorded")
            (directory / "train.py").write_text(script)
            done = Reprokit(directory).run("record", "-o", "run", "--", sys.executable, "train.py")
            assert done.returncode == 0, done.stderr
            known[script] = directory / "run"
        return known[script]

    return record


def verified(left: Path, right: Path) -> Comparison:
    """As the command does it."""
    require_whole(right)
    return compare(left, right)


def named(comparison: Comparison, category: str, name: str) -> bool:
    """Whether the category differs, by a leaf that says what was changed."""
    found: list[Difference] = [leaf for child in comparison.tree.children if category in ("", child.name)
                               for leaf in child.leaves() if leaf.verdict.differs]  # fmt: skip
    return any(name in f"{leaf.name} {leaf.detail}" for leaf in found)


def one(run: Path, place: Path, mutation: Mutation, number: int) -> str:
    """What is wrong with the verdict on one mutant; empty if it is right."""
    chance = random.Random(f"{run.parent.name[:8]} {mutation.__name__} {number}")
    for _ in range(50):
        shutil.copytree(run, place)
        try:
            category, name = mutation(Mutant(place, chance))
            break
        except NothingToChangeError:
            shutil.rmtree(place)
    else:
        return f"{mutation.__name__} {number}: nothing to change"
    try:
        comparison = verified(run, place)
    except NothingComparable:
        return ""
    except ReprokitError as error:
        return f"{mutation.__name__} {number}: refused: {error}"
    finally:
        shutil.rmtree(place)
    if comparison.identical or not named(comparison, category, name):
        first = comparison.tree.first()
        return f"{mutation.__name__} {number}: {category}, {name}: {first.name if first else 'identical'}"
    return ""


@pytest.mark.parametrize(
    ("script", "mutations", "share"),
    [
        pytest.param(TORCH, EVERYWHERE + WITH_A_TRAIL, 0.5, marks=pytest.mark.torch, id="torch"),
        pytest.param(SKLEARN, EVERYWHERE, 0.25, id="sklearn"),
    ],
)
def test_every_mutant_is_different_and_named(
    recorded: Callable[[str], Path], tmp_path: Path, script: str, mutations: tuple[Mutation, ...], share: float
) -> None:
    run = recorded(script)
    assert compare(run, run).identical
    chosen = [mutations[number % len(mutations)] for number in range(int(COUNT * share))]
    problems = [one(run, tmp_path / "mutant", mutation, number) for number, mutation in enumerate(chosen)]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize(
    "script", [pytest.param(TORCH, marks=pytest.mark.torch, id="torch"), pytest.param(SKLEARN, id="sklearn")]
)
def test_every_damage_is_found(recorded: Callable[[str], Path], tmp_path: Path, script: str) -> None:
    run = recorded(script)
    problems = []
    for number in range(COUNT // 8):
        place = tmp_path / "damaged"
        shutil.copytree(run, place)
        name = mutated.damage(Mutant(place, random.Random(number)))
        if mutated.content(place) == mutated.content(run):
            continue
        try:
            verified(run, place)
            problems.append(f"{number}: {name} was not found damaged")
        except RunError:
            pass
        finally:
            shutil.rmtree(place)
    assert problems == []
