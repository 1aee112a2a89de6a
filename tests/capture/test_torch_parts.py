"""PyTorch: parts of batches, turns of loops, and what a step that was done again came to."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from reprokit.agent.capture.header import Trigger
from reprokit.agent.capture.redo import FINITE, StepOutcome, add_progress, outcomes, own_snapshot
from reprokit.agent.capture.torch_batches import (
    LoopIteration,
    SampleSelection,
    SavedBatch,
    StepBatches,
    loop_iterations,
    samples_by_iteration,
)
from reprokit.agent.capture.torch_state import SnapshotReader, SnapshotTensors, leaf
from reprokit.agent.capture.torch_trials import step_outcome
from reprokit.agent.capture.trees import MAX_NODES, pack, unpack

pytestmark = pytest.mark.torch

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Sample:
    inputs: torch.Tensor
    names: list[str]


def cut(value: Any, count: int = 4, samples: Sequence[int] = (1, 3)) -> Any:
    def held(node: Any) -> Any:
        return node["held"]

    return unpack(pack(value, leaf), held, value, SampleSelection(held, count, 0, samples))


def test_all_that_has_an_entry_a_sample_is_cut() -> None:
    x = torch.arange(8.0).reshape(4, 2)
    given = {"x": x, "names": ["a", "b", "c", "d"], "mask": torch.ones(2, 2), "more": (x[:, 0], Pair(x, "all"))}
    found = cut(given)
    assert torch.equal(found["x"], x[[1, 3]])
    assert found["names"] == ["b", "d"]
    assert found["mask"] is given["mask"]
    assert torch.equal(found["more"][0], x[[1, 3], 0])
    assert torch.equal(found["more"][1].left, x[[1, 3]])
    assert found["more"][1].right == "all"


def test_samples_of_lengths_of_their_own_are_cut_as_a_list() -> None:
    assert [len(one) for one in cut([torch.zeros(5), torch.zeros(6), torch.zeros(7), torch.zeros(8)])] == [6, 8]


def test_a_pair_of_two_samples_each_is_no_list_of_samples() -> None:
    found = cut([torch.tensor([1, 2]), torch.tensor([3, 4])], 2, [1])
    assert [one.tolist() for one in found] == [[2], [4]]


def test_arrays_mappings_and_dataclasses_keep_their_kind() -> None:
    found = cut(OrderedDict(names=numpy.array(list("abcd")), sample=Sample(torch.arange(4), list("abcd"))))
    assert type(found) is OrderedDict
    assert found["names"].tolist() == ["b", "d"]
    assert (found["sample"].inputs.tolist(), found["sample"].names) == ([1, 3], ["b", "d"])


def test_numbers_of_numpy_are_kept_as_arrays_are() -> None:
    given = {"scale": numpy.float32(2), "count": numpy.uint32(3), "array": numpy.array(1.5), "names": numpy.str_("a")}
    batches, tensors = StepBatches(torch), SnapshotTensors()
    held = batches.add("loader", given)
    assert held is not None
    nodes = [node for _, node in tensors.fill("batch", held.node)["dict"]]
    assert nodes == [*[{"array": f"batch.{n}"} for n in range(3)], {"strings": [[], ["a"]]}]
    assert [(part.dtype, tuple(part.shape)) for part in tensors.parts] == [("F32", ()), ("U32", ()), ("F64", ())]


def test_what_is_not_kept_of_objects_leaves_room_for_tensors_behind_it() -> None:
    given = [SimpleNamespace(numbers=list(range(MAX_NODES))), SimpleNamespace(x=torch.ones(2)), torch.ones(3)]
    held = StepBatches(torch).add("loader", given)
    assert held is not None
    assert [next(iter(node)) for node in held.node["list"]] == ["left_out", "object", "held"]


def batch(source: str, samples: int | None = 4) -> SavedBatch:
    return SavedBatch({"from": source, "value": None, "samples": samples}, SnapshotReader(torch, {}))


def test_turns_without_a_sample_are_left_out() -> None:
    whole = [LoopIteration(batch("loader")), LoopIteration(batch("loader", 2)), LoopIteration(batch("loader"))]
    assert [(whole.index(turn), own) for turn, own in samples_by_iteration(whole, [1, 7, 8])] == [(0, [1]), (2, [1, 2])]


@pytest.mark.parametrize(
    ("sources", "called"),
    [
        (["loader", "loader", "forward", "forward"], [1, 1]),
        (["loader", "forward", "forward"], [2]),
        (["forward", "loss", "forward", "loss"], [1, 1]),
        (["forward", "forward", "loss"], [2]),
        (["loader", "loader"], [0, 0]),
    ],
)
def test_calls_belong_to_the_turn_that_they_were_made_in(sources: list[str], called: list[int]) -> None:
    assert [len(turn.called) for turn in loop_iterations([batch(source) for source in sources])] == called


def step(loss: float, *gradients: float) -> StepOutcome:
    named = {f"w{number}": torch.tensor([value, 1.0]) for number, value in enumerate(gradients)}
    return step_outcome(torch, [(torch.tensor(loss * 8), torch.tensor(loss))], named)


def test_what_was_captured_is_told_from_other_trouble() -> None:
    bad, fine = step(1.0, 2.0, float("nan")), step(1.0, 2.0)
    wanted, nan = Trigger("gradient", name="w1"), Trigger("loss", "nan")
    assert bad.reproduced_trigger(wanted) == Trigger("gradient", "not finite", name="w1", count=1, of=2)
    assert bad.reproduced_trigger(nan) is None
    assert fine.reproduced_trigger(wanted) is None
    assert fine.words(None) == FINITE
    assert step(float("inf")).reproduced_trigger(nan) is not None


def test_conditions_are_judged_by_the_bound_that_was_passed() -> None:
    above = Trigger("condition", "loss > 10", "loss-above", limit=10.0)
    assert step(11.0).reproduced_trigger(above) is not None
    assert step(9.0).reproduced_trigger(above) is None, "the loss counts as it was before a scaler multiplied it"
    jump = Trigger("condition", "too steep", "gradient-jump", limit=5.0)
    assert step(1.0, 6.0).reproduced_trigger(jump) is not None
    assert step(1.0, 4.0).reproduced_trigger(jump) is None


def test_a_trial_that_ended_its_process_did_not_reproduce(tmp_path: Path) -> None:
    lines: list[Any] = [
        {"running": [0, 1]},
        {"samples": [0, 1], "reproduced": True},
        {"running": [0]},
        "something else",
    ]
    assert outcomes(lines) == {(0, 1): True, (0,): False}
    add_progress(str(tmp_path / "progress"), {"text": "a", "value": float("nan")})
    assert (tmp_path / "progress").read_text() == '{"text": "a", "value": "nan"}\n'


def test_each_rank_has_the_snapshot_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "step-00000003-rank0", tmp_path / "step-00000003-rank1"
    first.mkdir()
    second.mkdir()
    assert own_snapshot(str(first), "1") == str(second)
    assert own_snapshot(str(first), "2") == str(first)
    assert own_snapshot(str(first), None) == str(first)
    assert own_snapshot(str(tmp_path / "step-00000003"), "1") == str(tmp_path / "step-00000003")
