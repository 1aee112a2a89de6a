"""One result of a training is changed, and locate names the operator and the line: seeded mutants of nine trainings."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from reprokit.questions.locate import LocateOptions, locate
from reprokit.run.interruption import Interruption
from reprokit.run_files.rundir import RunDirectory
from tests.questions.test_locate import MUTANTS, record
from tests.support import Reprokit

COUNT = int(os.environ.get("REPROKIT_MUTANTS", "100"))
MODELS = "mnist", "vae", "dcgan", "gat", "lstm", "unet", "policy", "graph", "experts"
KINDS = "ulp", "sign", "swap", "zero"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("originals")
    for model in MODELS:
        record(directory, model, MUTANTS, model)
    return directory


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_mutant_is_named(originals: Path, tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    model, kind, step, number = drawn.choice(MODELS), drawn.choice(KINDS), drawn.randrange(6), drawn.randrange(20)
    record(tmp_path, "mutant", MUTANTS, model, str(step), str(number), kind)
    if not (tmp_path / "mutated").exists():
        pytest.skip("no result of that step could be changed so")
    runs = RunDirectory(originals / model), RunDirectory(tmp_path / "mutant")
    with Interruption() as interruption:
        first = locate(*runs, LocateOptions(pairs=1, outputs=False), interruption, print).processes[0]
    assert (first.kind, first.varying, first.call.step) == ("result", 1, step)
    assert first.call.operator == (tmp_path / "mutated").read_text()
    assert first.call.where[0][0] == str(MUTANTS)
    print(f"named: seed {seed}, {model}, {kind}: {first.call.operator}, line {first.call.where[0][1]}")


@pytest.mark.extended
@pytest.mark.parametrize("model", MODELS)
def test_what_does_not_part_names_nothing(originals: Path, model: str) -> None:
    done = Reprokit(originals).run("locate", model, "--pairs", "2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["processes"] == []
