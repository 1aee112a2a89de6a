"""The page of a study in a real browser: small and large studies, hostile names, on any screen and on paper."""

from __future__ import annotations

import math
import random
import re
import subprocess
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from reprokit.pages import drawing
from reprokit.study import page, plots
from reprokit.study.answers import answers
from reprokit.study.description import Setup
from tests.browser import HOME, browser, picture, violations

from .results import Making, classified, making, regressed, series

in_browser = pytest.mark.skipif(not (HOME / "chrome").exists(), reason="no browser: make test fetches one by npm")
TAG = "<script>alert(1)</script><b>&"
TEN = (
    Setup(name="untouched", observe=False),
    Setup(name="G1"),
    Setup(name="G2", patches=("auto",)),
    Setup(name="G3", seeds=(0, 1, 2, 5)),
    Setup(name="G4", seeds=(0, 1, 2, 5), patches=("auto",)),
    Setup(name="G5", entropy="replayed"),
    Setup(name="G6", entropy="replayed", patches=("auto",)),
    Setup(name="G7-" + "x" * 61),
    Setup(name="G8", entropy="replayed", patches=("threads=1",)),
    Setup(name="G9", patches=("threads=1",)),
)
BASES = {"untouched": 9.0, "bare": 9.2, "seeded": 9.2, "patched": 12.0, "recorded": 9.4}


def busy(path: Path, setups: Sequence[Setup], runs: int, values: int = 30, name: str = "evaluate") -> Making:
    """A study in which bare runs vary much, seeded ones a little, and recorded ones not at all."""
    made = making(path, *setups, runs=runs)
    path.mkdir()
    chance = random.Random(1)
    for setup in setups:
        for pair in range(1, runs // 2 + 1):
            own = chance.random()
            for part in ("first", "second"):
                _run(made, setup, pair, part, own, chance, values, name)
            held = setup.entropy == "replayed"
            made.pair(setup.name, pair, None if not setup.observe else held, inconsistent=0 if held else 7, predictions=100)
    return made


def _run(
    made: Making, setup: Setup, pair: int, part: str, own: float, chance: random.Random, values: int, name: str
) -> None:
    kind = "recorded" if setup.entropy == "replayed" else "patched" if setup.patches else "bare"
    kind = kind if setup.observe else "untouched"
    seconds = BASES[kind] + chance.gauss(0, 0.15) + 2.5 * bool(setup.patches)
    noise = 0.0 if setup.entropy == "replayed" else 0.02 if setup.seeds else 0.2
    luck = own + noise * chance.random()
    course = [2.3 * math.exp(-step / values * (2 + luck)) + 0.05 * luck for step in range(values)]
    right = 90 + round(8 * (luck % 1))
    facts: dict[str, Any] = {}
    if setup.observe:
        labels = {str(label): (right % 10 + 1, 11) for label in range(10)}
        facts["series"] = [series(*course, name="fit#0 loss"), series(*reversed(course), name="fit#0 accuracy")]
        facts["evaluations"] = [classified(right, 100, name=name, classes=labels), regressed(luck, f"{name} error")]
        facts["stored"] = 2_400_000 if kind == "recorded" else 400_000
        facts["profile"] = 60_000 if kind == "recorded" else 0
    made.run(setup.name, pair, part, seconds, **facts)
