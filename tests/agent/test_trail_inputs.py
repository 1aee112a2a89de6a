"""What models are called with, in the trail of a training by PyTorch: which calls count, and which arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reprokit.trails import TrailStep
from tests import trails
from tests.agent.test_trail import Cases
from tests.support import training_text

pytestmark = pytest.mark.torch

DIFFERING = [
    "made",
    "in_place",
    "twice",
    "packed",
    "scaled",
    "leaf",
    "frozen",
    "nested",
    "scripted",
    "replicas",
]
EQUAL = ["plain again", "views", "in_memory", "criterion", "recomputed", "in_the_data", "traced"]
PARTIAL = ["evaluated", "chained", "transformed", "number within", "text", "without_memory"]
UNSEEN = ["whole_step", "functional"]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All cases."""
    calls = {name: f"{name}()" for name in ("plain", *EQUAL, *PARTIAL, *UNSEEN, "reshaped")}
    calls |= {"plain again": "plain()", "number within": "optional({'scale': 1.5})", "text": "optional('mean')"}
    calls |= {f"{name} {offset}": f"{name}({offset})" for name in (*DIFFERING, "pair") for offset in (0, 1)}
    calls["made again"] = calls["made 1"]
    return Cases(tmp_path_factory.mktemp("cases"), training_text("pytorch_small.py"), calls)


def inputs(steps: list[TrailStep]) -> list[int | None]:
    return [step.inputs for step in steps]


def flags(steps: list[TrailStep]) -> set[tuple[bool, bool]]:
    """Whether something does not count, and whether one call that counts came after another."""
    return {(step.inputs_partial, step.inputs_several) for step in steps}


@pytest.mark.parametrize("name", DIFFERING)
def test_what_differs_shows_at_its_step_and_not_in_the_batch(cases: Cases, name: str) -> None:
    differs_at_its_step(cases, name)


@pytest.mark.slow
def test_what_a_compiled_model_is_called_with_shows_likewise(tmp_path: Path) -> None:
    calls = {f"compiled {offset}": f"compiled({offset})" for offset in (0, 1)}
    differs_at_its_step(Cases(tmp_path, training_text("pytorch_small.py"), calls), "compiled")


def differs_at_its_step(cases: Cases, name: str) -> None:
    left, right = cases.steps(f"{name} 0", f"{name} 1")
    assert None not in inputs(left)
    assert [a.inputs == b.inputs for a, b in zip(left[:2], right, strict=False)] == [True, False]
    assert [step.batch for step in left] == [step.batch for step in right]
    assert [step.torch for step in left] == [step.torch for step in right]
    assert left[1].parameters != right[1].parameters


def test_equal_runs_are_called_with_the_same(cases: Cases) -> None:
    left, right = cases.steps("made 1", "made again")
    assert inputs(left) == inputs(right)
    assert flags(left) == {(False, False)}


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_no_input_of_a_model_does_not_count(cases: Cases, name: str) -> None:
    left, right = cases.steps("plain", name)
    assert inputs(left) == inputs(right)
    assert flags(right) == {(False, False)}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_does_not_count_is_said(cases: Cases, name: str) -> None:
    left, right = cases.steps("plain", name)
    assert (True, False) in flags(right) or (True, True) in flags(right)
    assert None not in inputs(right)
    if name == "evaluated":
        assert inputs(left) == inputs(right)
        assert [step.inputs_partial for step in right] == [False, True, False]


@pytest.mark.parametrize("name", UNSEEN)
def test_what_was_not_seen_is_not_known(cases: Cases, name: str) -> None:
    (steps,) = cases.steps(name)
    assert inputs(steps) == [None] * 3


def test_the_value_is_that_of_the_definition(cases: Cases) -> None:
    plain, made, reshaped = cases.steps("plain", "made 0", "reshaped")

    def folded(salt: int, data: bytes = b"") -> int:
        return trails.mix(trails.digest_of_bytes(data, salt))

    salt = trails.salt("float32", (8, 4))
    assert inputs(plain) == [folded(1)] * 3  # the first tensor of the batch
    batch: Any = __import__("torch")
    batch.manual_seed(7)
    x = batch.randn(24, 4)
    assert inputs(made) == [folded(salt, x[at : at + 8].numpy().tobytes()) for at in (0, 8, 16)]
    assert inputs(reshaped) == [folded(trails.salt("float32", (4, 2, 4)) + 1)] * 3


def test_each_model_of_a_pair_has_its_inputs(cases: Cases) -> None:
    series = [{one.name: list(one.steps()) for one in cases.trail(f"pair {value}").series} for value in (0, 1)]
    left, right = series
    critic, generator = ([a.inputs == b.inputs for a, b in zip(left[n], right[n], strict=True)] for n in sorted(left))
    assert critic == [True, False, False]  # as the generator learned something else
    assert None not in inputs(left["optimizer#0"])
    assert flags(left["optimizer#0"]) == {(False, True)}
    assert flags(left["optimizer#1"]) == {(True, False)}
    assert generator == [True, True, True]


def test_nothing_is_said(cases: Cases) -> None:
    assert cases.outcome.errors == ""
    assert [line["text"] for line in cases.outcome.of("warning")] == []
