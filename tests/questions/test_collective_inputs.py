"""What locate says of the collective before a rank parts: whether its inputs were equal on all ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reprokit.questions.collective_inputs import notes
from reprokit.questions.operator_divergence import DivergenceKind, first_of_each
from reprokit.questions.operator_logs import NO_OUTPUTS, CalledOperator, CallPlace, OperatorCall, ProcessLog
from tests.support import Reprokit

RANKS = Path(__file__).parents[1] / "trainings" / "pytorch_ranks.py"


def log(identity: str, *calls: tuple[str, int, int]) -> ProcessLog:
    """Each call: the operator's name, and the digests of its inputs and outputs."""
    place = CallPlace("backward", "", ())
    made = []
    for number, (name, inputs, outputs) in enumerate(calls):
        operator = CalledOperator(
            framework="pytorch", version="2", name=name, overload="", device="cpu", dtypes=(), shapes=()
        )
        flags = NO_OUTPUTS if name.startswith("c10d") else 0
        made.append(OperatorCall(operator, place, flags, 3, inputs, outputs, number))
    return ProcessLog(identity, identity, {"m": made})


def said(left: list[ProcessLog], right: list[ProcessLog]) -> list[str]:
    logs = tuple({one.identity: one for one in side} for side in (left, right))
    return list(notes(first_of_each(*logs), *logs))


REDUCED, ADDED = "c10d::allreduce_", "aten::add"


def test_a_rank_that_gave_other_inputs_is_named() -> None:
    left = [log(f"rank{rank}", (ADDED, 1, 1), (REDUCED, 2, 0), (ADDED, 3, 3)) for rank in range(3)]
    other = log("rank1", (ADDED, 1, 9), (REDUCED, 9, 0), (ADDED, 9, 9))
    assert said(left, [log("rank0", (ADDED, 1, 1), (REDUCED, 2, 0), (ADDED, 9, 9)), other, left[2]]) == [
        "the last collective before rank0 parted, c10d::allreduce_ in step 3, was given other inputs on rank1,"
        " equal ones on the other 2"
    ]


def test_equal_inputs_on_all_ranks_are_said() -> None:
    left = [log(f"rank{rank}", ("c10d::broadcast_", rank, 0), (REDUCED, 2, 0), (ADDED, 3, 3)) for rank in range(2)]
    right = [log(f"rank{rank}", ("c10d::broadcast_", 7, 0), (REDUCED, 2, 0), (ADDED, 9, 9)) for rank in range(2)]
    sentences = said(left, right)
    assert [sentence.split()[4] for sentence in sentences] == ["rank0", "rank1"]
    assert all(f"{REDUCED} in step 3, was given equal inputs on all 2 ranks" in sentence for sentence in sentences)


def test_of_a_rank_that_took_another_path_nothing_is_claimed() -> None:
    left = [log("rank0", (REDUCED, 2, 0), (ADDED, 3, 3)), log("rank1", (ADDED, 1, 1))]
    right = [log("rank0", (REDUCED, 2, 0), (ADDED, 9, 9)), log("rank1", (ADDED, 1, 1))]
    (note,) = said(left, right)
    assert note.endswith("was given equal inputs on 1 rank, and is not known of rank1")
    assert said([left[1]], [right[1]]) == []
    assert first_of_each({"rank0": left[0]}, {"rank0": right[0]})[0].kind is DivergenceKind.OUTSIDE


@pytest.mark.extended
@pytest.mark.torch
def test_ranks_that_take_something_from_the_clock(reprokit: Reprokit) -> None:
    environment = {"RACES": "4", "RESULTS": str(reprokit.directory)}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(RANKS)]
    done = reprokit.run("record", "-o", "one", "--", sys.executable, *launch, environment=environment)
    assert done.returncode == 0, done.stderr
    done = reprokit.run("locate", "one", environment=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    before = "note: the last collective before"
    assert f"{before} rank0 parted, c10d::allreduce_ in step 4, was given other inputs on rank1" in done.stdout
    assert f"{before} rank1 parted, c10d::allreduce_ in step 3, was given equal inputs on all 2 ranks" in done.stdout
