"""Steps that XLA compiles within fit of Keras: the state before a bad one is put back, whatever writes in between."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import Reprokit, training_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]

SCRIPT = training_text("keras_xla.py")


def trained(reprokit: Reprokit, run: str, bad: str, writes: str) -> tuple[list[str], list[dict[str, Any]], str]:
    """What the script printed, at last what the weights came to; the headers of the snapshots; and what was said."""
    script = reprokit.script("train.py", SCRIPT)
    options = ["--on-nan", "skip", "--max-snapshots", "9", "-o", run]
    done = reprokit.run("run", *options, "--", sys.executable, str(script), bad, writes)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("logs", "state"))]
    files = sorted((reprokit.directory / run / "snapshots").glob("step-*/snapshot.json"))
    return told, [json.loads(file.read_text()) for file in files], done.stderr


def digests(directory: Path) -> list[bytes]:
    """The tensors of all snapshots of a run."""
    return [file.read_bytes() for file in sorted(directory.glob("snapshots/step-*/tensors.safetensors"))]


@pytest.mark.extended
def test_it_is_the_state_that_is_held_before_each_step(reprokit: Reprokit) -> None:
    """Several steps at once are a graph that loops: what each updates is handed to the branch that puts it back."""
    bad = "0,20,40"
    steps = [0, 20, 40, 41, 61, 81]
    told, headers, said = trained(reprokit, "each", bad, "the rate")
    assert [header["step"] for header in headers] == steps
    assert "warning" not in said
    for run, writes in (("single", "nothing"), ("several", "several at once")):
        also_told, headers, said = trained(reprokit, run, bad, writes)
        assert [header["step"] for header in headers] == steps
        assert digests(reprokit.directory / run) == digests(reprokit.directory / "each")
        assert also_told[-1] == told[-1]
        assert "warning" not in said
        if run == "single":  # the script is given what a step that is skipped came to
            seen = [f"logs ['loss', 'mae'] [{one}, {one}]" for one in (False, True, False, True, False)]
            assert also_told[:-1] == told[:-1] == seen * 2


@pytest.mark.extended
def test_a_step_left_out_is_one_whose_state_the_script_puts_back(reprokit: Reprokit) -> None:
    """Seeds of dropout, statistics, metrics and the optimizer are as they were before it."""
    arguments = ["20", "the state before"]
    script = reprokit.script("bare.py", SCRIPT)
    bare = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=True)
    told, headers, _ = trained(reprokit, "run", *arguments)
    assert [header["step"] for header in headers] == [20, 61]
    assert told[-1] in bare.stdout
    also_told, _, _ = trained(reprokit, "nothing", "20", "nothing")
    assert also_told[-1] == told[-1]


@pytest.mark.extended
def test_a_checkpoint_that_is_restored_in_between_is_seen(reprokit: Reprokit) -> None:
    _, headers, said = trained(reprokit, "run", "20", "a checkpoint")
    assert [header["step"] for header in headers] == [20, 61]
    assert "warning" not in said


@pytest.mark.extended
def test_calls_of_other_functions_in_between_are_no_part_of_it(reprokit: Reprokit) -> None:
    """Single batches are compiled steps too, which eager code calls."""
    _, headers, said = trained(reprokit, "run", "20", "single batches")
    assert [header["step"] for header in headers] == [20, 61, 83, 104]
    assert "warning" not in said
