"""Keyed runs from the command line: one key instead of a recording, or a text instead of the key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support import Reprokit, python, training_text

TRAININGS = Path(__file__).parent.parent / "trainings"
TRAINING = training_text("numpy_unseeded.py")


def verified(reprokit: Reprokit, *runs: str) -> str:
    done = reprokit.run("verify", *runs)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_same_text_repeats_a_training_without_a_recording(reprokit: Reprokit) -> None:
    command = python(TRAINING)
    outputs = {}
    for name, text in (("one", "abc"), ("two", "abc"), ("three", "abd")):
        done = reprokit.run("record", "-o", name, "--seed", text, "--", *command)
        assert done.returncode == 0, done.stderr
        outputs[name] = done.stdout
    assert outputs["one"] == outputs["two"] != outputs["three"]
    assert reprokit.run("verify", "one", "two").returncode == 0
    assert "keyed: " in verified(reprokit, "one", "two")
    assert reprokit.run("verify", "one", "three").returncode == 1
    facts = reprokit.facts("one")
    assert facts["keyed"]
    assert facts["key"] not in verified(reprokit, "one", "two")


def test_a_keyed_run_is_replayed_from_its_key(reprokit: Reprokit) -> None:
    script = "import os, random; print(os.urandom(8).hex(), random.random(), hash('a'))"
    recorded = reprokit.run("record", "-o", "run", "--keyed", "--", *python(script))
    again = reprokit.run("record", "-o", "again", "--keyed", "--", *python(script))
    assert recorded.stdout != again.stdout
    replayed = reprokit.run("replay", "run", "-o", "replayed", "--policy", "strict")
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout)
    fidelity = reprokit.facts("replayed")["fidelity"]
    assert fidelity["exact"] == reprokit.facts("run")["profile"]["events"] > 0
    assert (fidelity["derived"], fidelity["live"], fidelity["unused"]) == (0, 0, 0)
    shown = reprokit.run("show", "run").stdout
    assert "from a 256-bit key; nothing else is stored but the time of day" in shown
    reprokit.run("record", "-o", "timeless", "--keyed", "--no-calendar", "--", *python(script))
    assert "nothing else is stored but" not in reprokit.run("show", "timeless").stdout
    size = sum(path.stat().st_size for path in (reprokit.directory / "timeless" / "entropy").iterdir())
    assert size == 1024 * reprokit.facts("timeless")["profile"]["files"]


def test_the_clock_of_a_keyed_run_is_recorded_all_the_same(reprokit: Reprokit) -> None:
    reprokit.run("record", "-o", "run", "--keyed", "--clock", "--", *python("import os; print(os.urandom(8))"))
    assert reprokit.run("replay", "run").returncode == 0
    assert json.loads((reprokit.directory / "run" / "run.json").read_text())["clock"]


@pytest.mark.extended
@pytest.mark.torch
def test_a_pytorch_training_repeats_from_a_text(reprokit: Reprokit) -> None:
    command = [sys.executable, str(TRAININGS / "pytorch_unseeded.py")]
    runs = [reprokit.run("record", "-o", name, "--seed", "lenet", "--", *command) for name in ("one", "two")]
    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[0].stdout == runs[1].stdout
    assert reprokit.run("verify", "one", "two").returncode == 0
