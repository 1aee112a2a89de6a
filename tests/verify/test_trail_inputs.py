"""What verify says of model inputs: that they are the cause, that they are none, or that they were not seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.core.errors import RunNotReadable
from reprokit.run_files.trails import Trail
from reprokit.verify.comparison import Comparison
from reprokit.verify.runs import compare
from tests.trails import INPUTS_PARTIAL, INPUTS_SEVERAL, Table, write

from .runs import recording, replayed, trail

RESULTS = ("loss", "gradients", "parameters")


def table(*changes: tuple[int, str], flags: int = 0, without: tuple[str, ...] = ()) -> Table:
    """Forty steps, in which from these on these quantities are others."""
    result = trail(40)
    result.kept = {}
    for number, step in enumerate(result.steps):
        step.update(inputs=9000 + number, flags=flags)
        for first, name in changes:
            step[name] += number >= first
        for name in without:
            del step[name]
    return result


def results(step: int) -> tuple[tuple[int, str], ...]:
    """The results differ from this step on."""
    return tuple((step, name) for name in RESULTS)


def compared(directory: Path, left: Table, right: Table) -> Comparison:
    """A recording and its replay with these trails."""
    one = recording(directory / "left")
    one.start()
    one.losses(0.75)
    one.add("end")
    other = replayed(one, directory / "right")
    for building, found in ((one, left), (other, right)):
        building.tables = {"0": [found]}
        building.write()
    return compare(one.path, other.path)


def first(comparison: Comparison) -> Difference:
    found = comparison.tree.first()
    assert found is not None
    return found


BATCH = "what the script makes of the batch"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, f"; batch and random state of that step are equal, so the cause is in {BATCH} before the model gets it; "),
        (
            {"flags": INPUTS_SEVERAL},
            f"the cause is in {BATCH} before the model gets it, or in what another call of a model gave it; ",
        ),
        ({"without": ("batch",)}, "the cause is in the data or what is made of them before the model gets it; "),
    ],
)
def test_model_inputs_that_differ_with_the_results_are_the_cause(tmp_path: Path, options: Any, words: str) -> None:
    comparison = compared(tmp_path, table(**options), table((7, "inputs"), *results(7), **options))
    leaf = first(comparison)
    assert (leaf.figures["step"], leaf.figures["quantity"]) == (7, "model inputs")
    assert leaf.detail.startswith("model inputs of optimizer#0 of process 0: identical for 7 steps; at step 7 ")
    assert words in leaf.detail


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, f"batch, random state and model inputs of that step are equal, so {{}}, buffers, {BATCH} for the loss; "),
        ({"flags": INPUTS_PARTIAL}, f"buffers, some of the model inputs, {BATCH} for the loss; "),
        ({"without": ("inputs",)}, f"batch and random state of that step are equal, so {{}}, buffers, {BATCH} before"),
    ],
)
def test_model_inputs_that_are_equal_leave_the_forward_computation(tmp_path: Path, options: Any, words: str) -> None:
    leaf = first(compared(tmp_path, table(**options), table(*results(7), **options)))
    assert leaf.figures["quantity"] == "loss"
    cause = "the cause is in the forward computation: a non-deterministic operation, or state that it reads; not seen: "
    assert words.format(cause + "the parameters before the step") in leaf.detail


def test_nothing_is_left_unseen_of_a_backward_computation(tmp_path: Path) -> None:
    leaf = first(compared(tmp_path, table(), table((7, "gradients"), (7, "parameters"))))
    assert "random state, model inputs and loss of that step are equal, so the cause is in the backward" in leaf.detail
    assert "not seen: the parameters before the step, buffers; " in leaf.detail


def test_model_inputs_that_change_no_result_are_no_difference(tmp_path: Path) -> None:
    comparison = compared(tmp_path, table(), table((7, "inputs")))
    assert comparison.identical
    (leaf,) = [leaf for leaf in comparison.tree.leaves() if leaf.name.startswith("model inputs")]
    assert leaf.verdict is Verdict.INFORMATION
    assert leaf.detail.startswith("they differ, first at step 7, in 33 steps; no result of these steps does, so they")


def test_model_inputs_act_from_the_first_step_that_comes_to_another_result(tmp_path: Path) -> None:
    leaf = first(compared(tmp_path, table(), table((7, "inputs"), *results(20))))
    assert (leaf.figures["step"], leaf.figures["quantity"]) == (20, "model inputs")
    assert "identical for 20 steps but for model inputs that changed no result; at step 20 the model" in leaf.detail


def test_results_that_differ_before_are_the_cause(tmp_path: Path) -> None:
    leaf = first(compared(tmp_path, table(), table((7, "inputs"), *results(5))))
    assert (leaf.figures["step"], leaf.figures["quantity"]) == (5, "loss")


def test_what_one_run_did_not_see_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, table(), table(without=("inputs",))).identical


@pytest.mark.parametrize("version", [2, 3])
def test_older_trails_are_refused(tmp_path: Path, version: int) -> None:
    path = write(tmp_path / "trail", [table()], version=version)
    with pytest.raises(RunNotReadable, match=f"has format {version} of an earlier reprokit; record the run again"):
        Trail(path, os.open(path, os.O_RDONLY))
