"""Children are known by what they were started with: a helper more or less renames none of the others."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.support import Reprokit

TRAINING = str(Path(__file__).parent.parent / "trainings" / "started_helpers.py")
WAYS = ["empty start", "filled start", "empty fork", "filled fork", "reordered start"]


def drawn(output: str) -> dict[str, str]:
    """What each child printed, by its name, of which process ids are no part."""
    return dict(re.sub(r"tmp\d+", "tmp", line).split() for line in output.splitlines())


def compare(reprokit: Reprokit, command: list[str], way: str) -> None:
    """Record with an empty cache, replay twice with a full one."""
    recorded = reprokit.run("record", "-o", "recorded", "--", *command, TRAINING, *way.split(), "cache")
    assert recorded.returncode == 0, recorded.stderr
    for number in range(2):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert drawn(replayed.stdout) == drawn(recorded.stdout), replayed.stderr
        fidelity = reprokit.facts(f"replayed{number}")["fidelity"]
        assert fidelity["moved"] == 0
        assert bool(fidelity["derived"]) == way.startswith("filled")  # the helper's own, which nobody recorded
        assert bool(fidelity["unused"]) == way.startswith("empty")
    again = reprokit.run("record", "-o", "again", "--", *command, TRAINING, *way.split(), "cache")
    assert not set(drawn(again.stdout).values()) & set(drawn(recorded.stdout).values())


@pytest.mark.parametrize("way", WAYS)
def test_helpers(reprokit: Reprokit, way: str) -> None:
    compare(reprokit, [sys.executable], way)


@pytest.mark.slow
@pytest.mark.parametrize("version", [pytest.param("3.10", marks=pytest.mark.extended), "3.13"])
@pytest.mark.parametrize("way", WAYS)
def test_helpers_of_other_pythons(reprokit: Reprokit, version: str, way: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    compare(reprokit, [path], way)
