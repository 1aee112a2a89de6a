"""What models are called with, in the trail of a training by PyTorch: which calls count, and which arguments."""

from __future__ import annotations

from typing import Any

import pytest

from reprokit.run_files.trails import TrailStep
from tests import trails
from tests.agent.test_trail import Cases
from tests.support import training_text

pytestmark = [pytest.mark.torch, pytest.mark.slow]

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
    "compiled",
    "replicas",
]
EQUAL = ["plain again", "views", "in_memory", "criterion", "recomputed", "in_the_data", "traced"]
PARTIAL = ["evaluated", "chained", "transformed", "number within", "text", "without_memory"]
UNSEEN = ["whole_step", "functional"]
COMPILED = ["compiled", "replicas", "recomputed", "whole_step"]  # they import the compiler, longer than all others take


CALLS = {
    **{name: f"{name}()" for name in ("plain", *EQUAL, *PARTIAL, *UNSEEN, "reshaped")},
    "plain again": "plain()",
    "number within": "optional({'scale': 1.5})",
    "text": "optional('mean')",
    **{f"{name} {offset}": f"{name}({offset})" for name in (*DIFFERING, "pair") for offset in (0, 1)},
    "made again": "made(1)",
}


def among(names: list[str]) -> list[Any]:
    """The names, of which those that the compiler is imported for are tried in make test-all."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in COMPILED else name for name in names]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All other cases."""
    calls = {name: call for name, call in CALLS.items() if name.split()[0] not in COMPILED}
    return Cases(tmp_path_factory.mktemp("cases"), training_text("pytorch_small.py"), calls)


@pytest.fixture(scope="module")
def compiled_cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Those that the compiler is imported for, and the one that they are compared with."""
    calls = {name: call for name, call in CALLS.items() if name.split()[0] in ("plain", *COMPILED)}
    directory = tmp_path_factory.mktemp("compiled")
    return Cases(directory, training_text("pytorch_small.py"), calls, "torch._dynamo")


@pytest.fixture
def cases_of(request: pytest.FixtureRequest, name: str) -> Cases:
    found: Cases = request.getfixturevalue("compiled_cases" if name in COMPILED else "cases")
    return found


def inputs(steps: list[TrailStep]) -> list[int | None]:
    return [step.inputs for step in steps]


def flags(steps: list[TrailStep]) -> set[tuple[bool, bool]]:
    """Whether something does not count, and whether one call that counts came after another."""
    return {(step.inputs_partial, step.inputs_several) for step in steps}


@pytest.mark.parametrize("name", among(DIFFERING))
def test_what_differs_shows_at_its_step_and_not_in_the_batch(cases_of: Cases, name: str) -> None:
    left, right = cases_of.steps(f"{name} 0", f"{name} 1")
    assert None not in inputs(left)
    assert [a.inputs == b.inputs for a, b in zip(left[:2], right, strict=False)] == [True, False]
    assert [step.batch for step in left] == [step.batch for step in right]
    assert [step.torch for step in left] == [step.torch for step in right]
    assert left[1].parameters != right[1].parameters


def test_equal_runs_are_called_with_the_same(cases: Cases) -> None:
    left, right = cases.steps("made 1", "made again")
    assert inputs(left) == inputs(right)
    assert flags(left) == {(False, False)}


@pytest.mark.parametrize("name", among(EQUAL))
def test_what_is_no_input_of_a_model_does_not_count(cases_of: Cases, name: str) -> None:
    left, right = cases_of.steps("plain", name)
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


@pytest.mark.parametrize("name", among(UNSEEN))
def test_what_was_not_seen_is_not_known(cases_of: Cases, name: str) -> None:
    (steps,) = cases_of.steps(name)
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
