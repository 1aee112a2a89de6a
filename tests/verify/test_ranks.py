"""Whether the ranks of one run agree: from trails of given steps, and of a real data-parallel training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.ranks import RankState, agreements
from reprokit.verify.runs import compare
from tests.support import Reprokit
from tests.trails import Table

from .runs import recording, replayed, trail

TRAININGS = Path(__file__).parent.parent / "trainings"


def run(tmp_path: Path, tables: dict[str, Table]) -> RunDirectory:
    building = recording(tmp_path / "run")
    building.tables = {process: [table] for process, table in tables.items()}
    return RunDirectory(building.write())


def ranks(count: int, steps: int = 20) -> dict[str, Table]:
    tables = {f"rank{number}": trail(steps) for number in range(count)}
    for table in tables.values():
        for number, step in enumerate(table.steps):
            step["before"] = table.steps[number - 1]["parameters"] if number else 77
    return tables


def change(table: Table, first: int, *names: str) -> None:
    for step in table.steps[first:]:
        for name in names:
            step[name] += 1


def test_ranks_that_agree(tmp_path: Path) -> None:
    (found,) = agreements(run(tmp_path, ranks(3)))
    assert (found.state, found.steps, found.compared) == (RankState.EQUAL, 20, 20)
    assert found.ranks == ("rank0", "rank1", "rank2")
    assert found.words == "optimizer#0 on 3 ranks: parameters are equal after each of 20 steps"


def test_the_rank_that_left_the_others_is_named(tmp_path: Path) -> None:
    tables = ranks(4)
    change(tables["rank3"], 12, "parameters")
    change(tables["rank3"], 13, "before", "gradients")
    (found,) = agreements(run(tmp_path, tables))
    assert (found.state, found.step, found.left) == (RankState.PARTED, 12, ("rank3",))
    assert found.words == "rank 3 left the others at step 12 (parameters; gradients were equal) of optimizer#0"
    done = Reprokit(tmp_path).run("verify", "run")
    assert (done.returncode, done.stdout) == (1, f"parted: {found.words}\n")


def test_two_ranks_part_and_neither_is_blamed(tmp_path: Path) -> None:
    tables = ranks(2)
    change(tables["rank1"], 12, "parameters", "gradients")
    (found,) = agreements(run(tmp_path, tables))
    assert found.words == "ranks 0, 1 parted at step 12 (parameters; gradients differed too) of optimizer#0"


def test_parameters_that_were_changed_between_steps(tmp_path: Path) -> None:
    tables = ranks(3)
    change(tables["rank1"], 5, "parameters", "before", "gradients")
    (found,) = agreements(run(tmp_path, tables))
    assert (
        found.words == "rank 1 left the others at step 5 (parameters were changed since the step before) of optimizer#0"
    )


def test_of_two_ranks_the_one_whose_parameters_were_changed_between_steps_left(tmp_path: Path) -> None:
    tables = ranks(2)
    change(tables["rank1"], 5, "parameters", "before", "gradients")
    (found,) = agreements(run(tmp_path, tables))
    assert found.left == ("rank1",)
    what = "parameters were changed since the step before"
    assert found.words == f"rank 1 left the other at step 5 ({what}) of optimizer#0"


def test_of_two_ranks_the_other_run_speaks_for_one(tmp_path: Path) -> None:
    runs = []
    for name in ("left", "right"):
        tables = ranks(2)
        if name == "right":
            change(tables["rank1"], 4, "parameters")
        building = recording(tmp_path / name)
        building.start()
        building.losses(0.5)
        building.tables = {process: [table] for process, table in tables.items()}
        runs.append(building.write())
    (note,) = (note for note in compare(*runs).notes if "parted" in note)
    words = "ranks 0, 1 parted at step 4 (parameters; gradients were equal) of optimizer#0"
    assert note == f"of the right run, {words}; there rank 0 is as in the other run, rank 1 is not"


def test_what_is_not_known_is_not_compared(tmp_path: Path) -> None:
    tables = ranks(2)
    for step in tables["rank0"].steps[3:5]:
        del step["parameters"]
    (found,) = agreements(run(tmp_path, tables))
    assert found.words.endswith("equal after each of 18 steps, 2 more not known")
    for step in tables["rank1"].steps:
        step.pop("parameters")
    (tmp_path / "other").mkdir()
    (found,) = agreements(run(tmp_path / "other", tables))
    assert (found.state, found.compared) == (RankState.UNKNOWN, 0)


@pytest.mark.parametrize("how", ["before", "first", "shapes"])
def test_shards_are_told_apart_from_copies(tmp_path: Path, how: str) -> None:
    tables = ranks(2)
    if how == "shapes":
        tables["rank1"].tensors[0] = ("fc.weight", "float32", [5, 64])
    change(tables["rank1"], 0, "parameters", "before")
    if how == "first":
        for table in tables.values():
            for step in table.steps:
                del step["before"]
    (found,) = agreements(run(tmp_path, tables))
    assert found.state is RankState.APART


def test_trainings_of_other_processes_are_no_ranks(tmp_path: Path) -> None:
    tables = ranks(2) | {"0/1": trail(20), "rank0/1": trail(20)}
    tables["rank1.rank0"] = trail(20)
    (found,) = agreements(run(tmp_path, tables))
    assert found.ranks == ("rank0", "rank1", "rank1.rank0")


def test_verify_says_of_which_run_the_ranks_parted(tmp_path: Path) -> None:
    runs = []
    for name in ("left", "right"):
        tables = ranks(3)
        if name == "right":
            change(tables["rank2"], 4, "parameters")
        building = recording(tmp_path / name)
        building.start()
        building.losses(0.5)
        building.tables = {process: [table] for process, table in tables.items()}
        runs.append(building.write())
    notes = compare(*runs).notes
    assert (
        "of the right run, rank 2 left the others at step 4 (parameters; gradients were equal) of optimizer#0" in notes
    )
    assert not [note for note in notes if note.startswith("of the left run, rank")]


def test_ranks_are_asked_for_where_a_replay_is_here_too(reprokit: Reprokit) -> None:
    """Of the recording they parted, of the replay they are equal; without the option the two runs are compared."""
    place = reprokit.directory / ".reprokit"
    place.mkdir()
    left = recording(place / "left")
    right = replayed(left, place / "right")
    for building, parts in ((left, True), (right, False)):
        tables = ranks(2)
        if parts:
            change(tables["rank1"], 12, "parameters")
        building.start()
        building.losses(0.5)
        building.tables = {process: [table] for process, table in tables.items()}
        building.write()
    (place / "last").symlink_to("right")
    parted = "parted: ranks 0, 1 parted at step 12 (parameters; gradients were equal) of optimizer#0\n"
    equal = "equal: optimizer#0 on 2 ranks: parameters are equal after each of 20 steps\n"
    for words, status, text in (
        (["left", "--ranks"], 1, parted),
        (["right", "--ranks"], 0, equal),
        (["--ranks"], 0, equal),
    ):
        done = reprokit.run("verify", *words)
        assert (done.returncode, done.stdout, done.stderr) == (status, text, "")
    (found,) = json.loads(reprokit.run("verify", "left", "--ranks", "--json").stdout)["ranks"]
    assert (found["state"], found["step"]) == ("parted", 12)
    for words in (["left"], ["left", "right"]):
        done = reprokit.run("verify", *words)
        assert done.returncode == 1
        assert done.stdout.startswith("different: ")
        assert "of the left run, ranks 0, 1 parted at step 12" in done.stdout


def test_ranks_that_are_not_there_cannot_be_compared(reprokit: Reprokit) -> None:
    recording(reprokit.directory / "run").write()
    for words, reason in (
        (["run", "--ranks"], "nothing-comparable: run: no two ranks were seen to take steps of an optimizer"),
        (["run", "run", "--ranks"], "usage: --ranks compares the ranks of one run"),
        (["run", "--ranks", "--rtol", "1"], "usage: --ranks compares the ranks of one run"),
        (["--ranks"], "run-not-found: there is no last run"),
    ):
        done = reprokit.run("verify", *words)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert done.stderr.startswith(f"reprokit: {reason}"), done.stderr


@pytest.mark.extended
def test_a_gate_finds_the_rank_of_a_real_training_whose_weights_were_corrupted(reprokit: Reprokit) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(TRAININGS / "pytorch_ranks.py")]
    environment = {"RESULTS": str(reprokit.directory), "OMP_NUM_THREADS": "1"}
    done = reprokit.run("gate", "--ranks-agree", "--json", "--allow-state", "--", *command, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"right": "optimizer#0 on 2 ranks: parameters are equal after each of 10 steps"' in done.stdout
    environment["CORRUPTED"] = "6"
    done = reprokit.run("gate", "--ranks-agree", "--allow-state", "--", *command, environment=environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rank 1 left the other at step 6 (parameters were changed since the step before)" in done.stdout
