"""Trainings under ``record --clock``: seeded from the time of day, they run as ever and replay equal."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support import Reprokit, python

TRAININGS = Path(__file__).parent / "trainings"
SEEDED = """
import runpy, sys, time
sys.argv = {arguments!r}
{seeding}
print(time.time_ns())
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def reproduces(reprokit: Reprokit, seeding: str, *arguments: str) -> None:
    script = SEEDED.format(seeding=seeding, arguments=[str(TRAININGS / arguments[0]), *arguments[1:]])
    variables = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    recorded = reprokit.run(
        "record", "--clock", "-o", "recorded", "--", sys.executable, "-c", script, environment=variables
    )
    assert recorded.returncode == 0, recorded.stderr[-2000:]
    replayed = reprokit.run("replay", "recorded", "-o", "replayed", environment=variables)
    assert (replayed.returncode, replayed.stdout) == (0, recorded.stdout), replayed.stderr[-2000:]
    assert reprokit.facts("replayed")["fidelity"]["clock"] > 0
    verified = reprokit.run("verify", "recorded", "replayed")
    assert verified.returncode == 0, verified.stdout[-4000:]


@pytest.mark.extended
@pytest.mark.torch
def test_pytorch_with_workers(reprokit: Reprokit) -> None:
    reproduces(reprokit, "import torch; torch.manual_seed(time.time_ns() % 2**63)", "pytorch_workers.py", "2", "fork")


@pytest.mark.extended
@pytest.mark.tensorflow
def test_keras(reprokit: Reprokit) -> None:
    seeding = "import keras; keras.utils.set_random_seed(time.time_ns() % 2**32)"
    reproduces(reprokit, seeding, "keras_lstm.py")


@pytest.mark.slow
def test_a_seed_from_the_clock_in_native_code_is_told(reprokit: Reprokit) -> None:
    script = str(TRAININGS / "native_clock.py")
    recorded = reprokit.run("record", "--no-calendar", "-o", "recorded", "--", sys.executable, script)
    assert "native code reads the clock (" in recorded.stderr
    assert [source["source"] for source in reprokit.facts("recorded")["uncovered"]].count("clock") == 1
    assert reprokit.facts("recorded")["calendar"] is False
    assert reprokit.run("replay", "recorded", "-o", "other").returncode == 0
    assert reprokit.run("verify", "recorded", "other").returncode == 1
    told = reprokit.run("record", "-o", "told", "--", sys.executable, script)
    assert "reads the clock" not in told.stderr
    assert reprokit.run("replay", "told", "-o", "replayed").returncode == 0
    assert reprokit.run("verify", "told", "replayed").returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("polars") is None, reason="polars is not installed")
def test_polars(reprokit: Reprokit) -> None:
    """Its hash tables are seeded from the clock; with two threads, by whoever reads it first."""
    command = [sys.executable, str(TRAININGS / "polars_groups.py")]
    recorded = reprokit.run("record", "--no-calendar", "--patch", "threads=1", "-o", "unclocked", "--", *command)
    assert "polars seeds hash tables from the clock" in recorded.stderr
    assert reprokit.run("replay", "unclocked", "-o", "other").stdout != recorded.stdout != ""
    recorded = reprokit.run("record", "--clock", "--patch", "threads=1", "-o", "recorded", "--", *command)
    assert "polars seeds" not in recorded.stderr
    for number in range(2):
        assert reprokit.run("replay", "recorded", "-o", f"replayed{number}").stdout == recorded.stdout != ""


@pytest.mark.slow
@pytest.mark.skipif(None in map(find_spec, ("polars", "catboost")), reason="polars or catboost is not installed")
def test_polars_that_only_another_library_imports_is_not_mentioned(reprokit: Reprokit) -> None:
    fit = "catboost.CatBoostRegressor(iterations=3, verbose=0).fit(numpy.eye(20), numpy.arange(20.0))"
    recorded = reprokit.run("record", "-o", "run", "--", *python(f"import catboost, numpy; {fit}"))
    assert recorded.returncode == 0
    assert "polars" in json.loads((reprokit.directory / "run" / "environment.json").read_text())["imported"]
    assert "polars" not in recorded.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_workers_of_pytorch_know_that_their_parent_ends_them(reprokit: Reprokit) -> None:
    """Their handler of SIGTERM compares the sender with getppid()."""
    recorded = reprokit.run(
        "record", "--clock", "-o", "recorded", "--", sys.executable, str(TRAININGS / "pytorch_ended_worker.py")
    )
    assert (recorded.returncode, recorded.stdout) == (0, "0 True\n")
