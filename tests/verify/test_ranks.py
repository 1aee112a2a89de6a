"""Whether the ranks of one run agree: from trails of given steps, and of a real data-parallel training."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from reprokit.core.errors import RunDamaged
from reprokit.core.native import check_in_python
from reprokit.run_files.rundir import RunDirectory
from reprokit.run_files.trails import Series, Trail, read
from reprokit.verify.categories.ranks import RankProgress, RankState, agreements, behind
from reprokit.verify.runs import compare
from tests.support import Reprokit, wait_until
from tests.trails import PARTIAL, Table, digest, list_digest, write

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


def opened(path: Path) -> Series:
    (series,) = Trail(path, os.open(path, os.O_RDONLY)).series
    return series


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


def test_ranks_that_part_among_steps_that_the_trail_passed_over_part_between_its_steps(tmp_path: Path) -> None:
    tables = ranks(2, 40)
    change(tables["rank1"], 20, "parameters", "gradients")
    change(tables["rank1"], 21, "before")
    for table in tables.values():
        for number, step in enumerate(table.steps):
            if number >= 16 and number % 8:
                del step["before"], step["parameters"], step["gradients"]
    (found,) = agreements(run(tmp_path, tables))
    what = "parameters; gradients differed too"
    assert found.words == f"ranks 0, 1 parted between steps 16 and 24 ({what}) of optimizer#0"
    assert found.steps_to_ask == "16-25"


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
    following = "reprokit: next: reprokit rules .reprokit/left --rule RankWeightsDiverge --steps 11-13\n"
    for words, status, text, following_text in (
        (["left", "--ranks"], 1, parted, following),
        (["right", "--ranks"], 0, equal, ""),
        (["--ranks"], 0, equal, ""),
    ):
        done = reprokit.run("verify", *words)
        assert (done.returncode, done.stdout, done.stderr) == (status, text, following_text)
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


def shards(count: int, steps: int, *, by_placement: bool = False) -> dict[str, Table]:
    """Ranks that all have a bias, and each a part of the weights; with digests of both in each step, or not."""
    tables = ranks(count, steps)
    for number, table in enumerate(tables.values()):
        placement = f"Shard(dim=0) {number + 1} of {count}"
        table.tensors = [("weight", "float32", [2], placement), ("bias", "float32", [3], "Replicate()")]
        kept = [*range(min(16, steps)), *range(max(16, steps - 16), steps)]
        table.kept = {step: ([5, 6], [100 * number + step, 7 + step]) for step in kept}
        for step in table.steps:
            step["parameters"] += number
            step["before"] += number
        if by_placement:
            table.parts = [[9_000_000 * number + step + 1, 8_000_000 + step] for step in range(steps)]
    return tables


def test_parts_that_no_other_rank_has_are_compared_with_nothing_and_the_others_are(tmp_path: Path) -> None:
    equal, parts = agreements(run(tmp_path, shards(3, 100)))
    assert (
        equal.words == "optimizer#0 on 3 ranks: parameters (bias) are equal after each of 32 steps, 68 more not known"
    )
    assert parts.words == (
        "optimizer#0 on 3 ranks: parameters (weight) are parts that no other rank has: "
        "only another run can be compared with them"
    )
    assert (equal.state, parts.state) == (RankState.EQUAL, RankState.SHARDED)


def test_shared_parameters_part_between_the_steps_of_which_single_digests_are_kept(tmp_path: Path) -> None:
    tables = shards(3, 100)
    for step in range(84, 100):
        tables["rank2"].kept[step][1][1] += 1
    assert agreements(run(tmp_path, tables))[0].words == (
        "rank 2 left the others between steps 15 and 84 (bias) of optimizer#0"
    )


def test_tensors_that_ranks_share_beside_others_are_compared_in_each_step(tmp_path: Path) -> None:
    tables = shards(3, 1000, by_placement=True)
    (equal, _) = agreements(run(tmp_path, tables))
    assert equal.words == "optimizer#0 on 3 ranks: parameters (bias) are equal after each of 1,000 steps"
    (tmp_path / "changed").mkdir()
    for step in range(500, 1000):
        tables["rank2"].parts[step][1] += 1
    (parted, _) = agreements(run(tmp_path / "changed", tables))
    assert parted.words == "rank 2 left the others at step 500 (bias) of optimizer#0"
    assert parted.steps_to_ask == ""


def test_what_was_not_read_of_shared_tensors_is_not_said_to_be_equal(tmp_path: Path) -> None:
    tables = shards(2, 40, by_placement=True)
    tables["rank0"].parts[20][1] = 0
    tables["rank1"].steps[21]["flags"] = PARTIAL
    del tables["rank1"].steps[22]["parameters"]
    assert agreements(run(tmp_path, tables))[0].words == (
        "optimizer#0 on 2 ranks: parameters (bias) are equal after each of 37 steps, 3 more not known"
    )


def test_of_shared_tensors_without_digests_of_their_own_all_are_named(tmp_path: Path) -> None:
    tables = shards(2, 100, by_placement=True)
    for table in tables.values():
        table.tensors += [("norm", "float32", [3], "Replicate()"), ("plain", "float32", [1])]
        table.kept = {step: ([*some[0], 0, 0], [*some[1], 9, 10]) for step, some in table.kept.items()}
        table.parts = [[*digests, 77] for digests in table.parts]
    for step in range(50, 100):
        tables["rank1"].parts[step][2] += 1
        tables["rank1"].steps[step]["before"] += step > 50
        tables["rank1"].steps[step]["parameters"] += 1
    tables["rank1"].steps[50]["before"] += 5
    directory = run(tmp_path, tables)
    parted, _ = agreements(directory)
    changed = "one or more of bias, norm, plain; parameters were changed since the step before"
    assert parted.words == f"rank 1 left the other at step 50 ({changed}) of optimizer#0"
    done = Reprokit(tmp_path).run("verify", "run", "--ranks")
    assert done.stderr == "reprokit: next: reprokit rules run --rule RankWeightsDiverge --steps 49-51\n"


@pytest.mark.parametrize("version", [4, 5])
def test_trails_without_digests_of_placements_are_read(tmp_path: Path, version: int) -> None:
    directory = recording(tmp_path / "run").write()
    for process, table in shards(2, 40).items():
        write(directory / "trail", [table], process, version=version)
    assert agreements(RunDirectory(directory))[0].words == (
        "optimizer#0 on 2 ranks: parameters (bias) are equal after each of 32 steps, 8 more not known"
    )


def test_steps_without_digests_of_placements_are_put_in_the_trail_of_a_continued_run(tmp_path: Path) -> None:
    table = shards(2, 40)["rank0"]
    narrow = opened(write(tmp_path / "narrow", [table]))
    table.parts = [[0, 0]] * 40
    wide = opened(write(tmp_path / "wide", [table]))
    assert narrow.records(3, 30, 104) == wide.records(3, 30)
    assert wide.records(3, 30, 88) == narrow.records(3, 30, 88) == narrow.records(3, 30)


@pytest.mark.parametrize("parts", [1, 3, 64, 65, 1 << 31])
def test_digests_of_other_placements_than_there_are_are_damage(tmp_path: Path, parts: int) -> None:
    table = shards(2, 40, by_placement=True)["rank0"]
    path = write(tmp_path / "trail", [table])
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<IHH", 0x4B435254, 2, 0))
    data[at + 28 : at + 32] = struct.pack("<I", parts)
    data[at + 48 : at + 56] = struct.pack("<Q", check_in_python(bytes(data[at : at + 48])))
    path.write_bytes(data)
    with pytest.raises(RunDamaged, match=r"placements|holds less than it says"):
        opened(path)


def test_what_a_terminal_would_act_upon_is_spelt_out(tmp_path: Path) -> None:
    tables = shards(2, 3)
    for table in tables.values():
        table.tensors[1] = ("bi\x1b]0;as", *table.tensors[1][1:])
    run(tmp_path, tables)
    done = Reprokit(tmp_path).run("verify", "run", "--ranks")
    assert "\x1b" not in done.stdout
    assert "parameters (bi\\x1b]0;as) are equal" in done.stdout


def test_the_rank_whose_shared_parameters_left_the_others_is_named(tmp_path: Path) -> None:
    tables = shards(3, 20)
    for step in range(9, 20):
        tables["rank1"].kept[step][1][1] += 1
    words = "rank 1 left the others at step 9 (bias) of optimizer#0"
    assert agreements(run(tmp_path, tables))[0].words == words
    done = Reprokit(tmp_path).run("verify", "run", "--ranks")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"parted: {words}")


def test_ranks_with_the_same_parts_are_compared_with_each_other_in_each_step(tmp_path: Path) -> None:
    tables = shards(2, 40)
    copies = shards(2, 40)
    change(copies["rank1"], 30, "parameters")
    tables.update(rank2=copies["rank0"], rank3=copies["rank1"])
    found = agreements(run(tmp_path, tables))
    assert [agreement.words for agreement in found] == [
        "optimizer#0 on ranks 0, 2: parameters are equal after each of 40 steps",
        "ranks 1, 3 parted at step 30 (parameters; gradients were equal) of optimizer#0",
        "optimizer#0 on 4 ranks: parameters (bias) are equal after each of 32 steps, 8 more not known",
    ]


def test_ranks_that_all_have_parts_of_their_own_leave_nothing_to_compare(tmp_path: Path) -> None:
    tables = shards(2, 3)
    for number, table in enumerate(tables.values()):
        table.tensors[1] = ("bias", "float32", [3], f"Shard(dim=0) {number + 1} of 2")
    run(tmp_path, tables)
    done = Reprokit(tmp_path).run("verify", "run", "--ranks")
    assert (done.returncode, done.stdout) == (2, "")
    assert "parameters (weight, bias) are parts that no other rank has" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_spawned_processes_have_the_ranks_that_torch_distributed_tells(reprokit: Reprokit) -> None:
    done = reprokit.run("record", "-o", "run", "--", sys.executable, str(TRAININGS / "continued_ranks.py"), "2")
    assert done.returncode == 0, done.stderr
    assert not any(trail.process.startswith("rank") for trail in read(RunDirectory(reprokit.directory / "run")))
    agreed = reprokit.run("verify", "run", "--ranks")
    assert "equal: optimizer#0 on 2 ranks: parameters are equal after each of 10 steps" in agreed.stdout


LEFT = "rank 1 left the other at step 30 (one or more of 2.bias, 3.weight, 3.bias; parameters were changed"
IN_GROUP = LEFT.replace("rank 1 left the other", "rank 1 left the other of ranks 0, 1")
OF_PLAIN = "rank 3 left the others at step 30 (one or more of 3.weight, 3.bias; parameters were changed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changed", "expected"),
    [
        ("norm", "3 3.weight", ["equal", "parted", f"parted: {OF_PLAIN}"]),
        ("tensor", "1 3.weight", [f"parted: {LEFT}", "sharded"]),
        *(
            pytest.param(*row, marks=pytest.mark.extended)
            for row in (
                ("fsdp", "1 0.weight", ["sharded"]),
                ("hsdp", "2 0.weight", ["parted: rank 2 left the other of ranks 0, 2 at step 30", "equal"]),
                ("both", "1 3.bias", [f"parted: {IN_GROUP}", "parted", "sharded"]),
            )
        ),
    ],
)
def test_the_parts_of_a_real_training_are_in_its_trail(
    reprokit: Reprokit, kind: str, changed: str, expected: list[str]
) -> None:
    command = [sys.executable, str(TRAININGS / "sharded_ranks.py"), kind, "60"]
    for name, words in (("whole", []), ("changed", ["30", *changed.split()])):
        done = reprokit.run("record", "-o", name, "--", *command, *words)
        assert (done.returncode, "in part" in done.stderr) == (0, False), done.stderr
        if name == "whole":
            trail_of = {trail.process: trail.series[0] for trail in read(RunDirectory(reprokit.directory / name))}
            check_parts(reprokit.directory, trail_of)
    whole = agreements(RunDirectory(reprokit.directory / "whole"))
    states = [agreement.state.value for agreement in whole]
    assert [state for state in states if state != "equal"] == (["sharded"] if kind not in ("hsdp", "norm") else [])
    assert all(agreement.compared == 60 for agreement in whole if agreement.state is RankState.EQUAL)
    found = agreements(RunDirectory(reprokit.directory / "changed"))
    for agreement, start in zip(found, expected, strict=True):
        assert f"{agreement.state.value}: {agreement.words}".startswith(start)
    compared = reprokit.run("verify", "whole", "changed")
    rank = changed.split()[0]
    assert (
        f"before the step of optimizer#0 of process rank{rank}: identical for 30 steps; at step 30" in compared.stdout
    )


def check_parts(directory: Path, series_of: dict[str, Series]) -> None:
    """Compare the last digests of each rank's trail with those of what it had in the end."""
    for process, series in series_of.items():
        steps = list(series.steps())
        assert [step.partial for step in steps] == [False] * 60
        assert all(None not in (step.gradients, step.parameters, step.before) for step in steps)
        with numpy.load(directory / f"{process}.npz") as file:
            parts = {name: digest(part.tobytes(), "float32", part.shape) for name, part in file.items()}
            shapes = {name: list(part.shape) for name, part in file.items()}
        assert steps[-1].parameters == list_digest(list(parts.values()))
        assert {tensor.name: tensor.shape for tensor in series.tensors(0)} == shapes
        of_placements: dict[str, list[int]] = {}
        for tensor in series.tensors(0):
            of_placements.setdefault(tensor.placement, []).append(parts[tensor.name])
        expected = [list_digest(digests) for digests in of_placements.values()]
        assert [*steps[-1].parts] == (expected if len(expected) > 1 else [])
        assert all(len(set(step.parts)) == len(steps[-1].parts) for step in steps)
        assert any(tensor.placement for tensor in series.tensors(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipelining", pytest.param("by-hand", marks=pytest.mark.extended)])
def test_stages_of_a_pipeline_are_no_copies_that_part(reprokit: Reprokit, kind: str) -> None:
    """Their parameters have equal names, shapes and first values."""
    recorded = reprokit.run("record", "-o", "run", "--", sys.executable, str(TRAININGS / "staged_ranks.py"), kind)
    assert recorded.returncode == 0, recorded.stderr
    done = reprokit.run("verify", "run", "--ranks")
    assert (done.returncode, done.stdout) == (2, "")
    assert "differ from the start: as ranks send tensors without DDP, they may be stages" in done.stderr


@pytest.mark.slow
def test_copies_of_a_stage_are_compared_by_the_group_of_their_gradients(reprokit: Reprokit) -> None:
    command = [sys.executable, str(TRAININGS / "staged_ranks.py"), "copies"]
    for name, words in (("whole", []), ("changed", ["5", "2"])):
        recorded = reprokit.run("record", "-o", name, "--", *command, *words)
        assert recorded.returncode == 0, recorded.stderr
    equal = ["equal: optimizer#0 on ranks 0, 2", "equal: optimizer#0 on ranks 1, 3"]
    left = "parted: rank 2 left the other of ranks 0, 2 at step 5 (parameters were changed since the step before)"
    for name, status, starts in (("whole", 0, equal), ("changed", 1, [left, equal[1]])):
        done = reprokit.run("verify", name, "--ranks")
        following = "reprokit: next: reprokit rules changed --rule RankWeightsDiverge --steps 4-6\n"
        assert (done.returncode, done.stderr) == (status, following if status else "")
        for line, start in zip(done.stdout.splitlines(), starts, strict=True):
            assert line.startswith(start)


@pytest.mark.parametrize(("groups", "states"), [(2, ["equal", "parted"]), (1, ["parted"]), (0, ["parted"])])
def test_ranks_are_compared_within_groups_only_where_each_ones_is_known(
    tmp_path: Path, groups: int, states: list[str]
) -> None:
    """Rank 3 leaves the others; without the groups of all ranks they are all taken together, as before."""
    tables = ranks(4)
    change(tables["rank3"], 12, "parameters")
    building = recording(tmp_path / "run")
    building.tables = {process: [table] for process, table in tables.items()}
    for rank in range(4):
        if rank % 2 < groups:
            members = {"reduces_with": [str(rank % 2), str(rank % 2 + 2)]}
            name = "collectives DDP#0 group"
            building.add("compute", f"rank{rank}", name=name, library="collectives", facts=members)
    found = agreements(RunDirectory(building.write()))
    assert [agreement.state.value for agreement in found] == states


UPDATE_7 = 1_767_323_045  # 2026-01-02T03:04:05Z


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "rank 1 is 1 loss behind since its update 6 at 2026-01-02T03:04:05Z, 60 s before the end"),
        ({"ended": None}, "rank 1 is 1 loss behind since its update 6 at 2026-01-02T03:04:05Z"),
        ({"ended": "2026-01-02T03:04:06Z"}, ""),  # both were at work until then
        ({"exit_code": 0}, ""),
    ],
    ids=["killed", "lost", "at-work", "finished"],
)
def test_the_rank_that_others_wait_for_is_named_of_a_run_that_did_not_succeed(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    building = recording(tmp_path / "run")
    for name, value in {"ended": "2026-01-02T03:05:05Z", "exit_code": 1, **changes}.items():
        setattr(building.run, name, value)
    for rank, losses in enumerate((8, 7)):
        building.start(f"rank{rank}")
        building.losses(*[0.5] * losses, process=f"rank{rank}")
    building.write()
    for rank in range(2):
        write(tmp_path / "run" / "trail", [trail(7)], f"rank{rank}", stepped=UPDATE_7 * 10**9)
    shown = Reprokit(tmp_path).run("show", "run").stdout.splitlines()
    assert [text.partition(" ")[2].strip() for text in shown if text.startswith("behind")] == ([line] if line else [])


def test_ranks_that_are_many_updates_behind_are_told_so() -> None:
    ranks = [RankProgress("rank0", 9, 9, 0), RankProgress("rank1", 7, 8, 0), RankProgress("rank2", 0, 1, 0)]
    assert list(behind(ranks, None, is_over=False)) == [
        "rank 1 is 2 updates behind since its update 6",
        "rank 2 is 9 updates behind",
    ]


WAITS = "rank 1 is 1 loss behind; no number was seen to be recorded for 11 s"


@pytest.mark.parametrize(("written", "lines"), [(95, []), (89, [WAITS])])
def test_a_rank_without_an_update_is_only_behind_once_no_rank_records_anything(
    written: float, lines: list[str]
) -> None:
    """At the start one rank computes its first loss before the others do, which is no delay."""
    ranks = [RankProgress("rank0", 0, 1, 0), RankProgress("rank1", 0, 0, 0)]
    assert list(behind(ranks, 100, is_over=False, written=written)) == lines
    ranks[0] = RankProgress("rank0", 1, 1, 99)
    assert list(behind(ranks, 100, is_over=False, written=written)) == []
    ranks[0] = RankProgress("rank0", 3, 3, 99)  # others go on, which the files' times need not show
    assert list(behind(ranks, 100, is_over=False, written=written)) == ["rank 1 is 3 updates behind"]


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_while_it_hangs_and_once_the_launcher_was_killed(reprokit: Reprokit) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, str(TRAININGS / "pytorch_ranks.py")]
    environment = {**os.environ, "RESULTS": str(reprokit.directory), "OMP_NUM_THREADS": "1", "HANGS": "7"}
    process = reprokit.start("record", "-o", "run", "--", *command, env=environment)

    def lines() -> list[str]:
        shown = reprokit.run("show", "run").stdout.splitlines()
        return [line for line in shown if line.startswith("behind  ")]

    def expected(ending: str) -> None:
        (line,) = lines()
        assert re.fullmatch(f"behind +rank 1 is 1 loss behind since its update 6 at [-0-9T:]+Z{ending}", line)

    try:
        wait_until(lines, "rank 1 to be behind")
        expected(", [0-9]+ s ago")
        process.kill()
        process.wait()
        expected("")
    finally:
        process.kill()
        agents = map(json.loads, (reprokit.directory / "run" / "metrics.jsonl").read_text().splitlines())
        os.kill(next(line["pid"] for line in agents if line["k"] == "agent" and line["p"] == "0"), signal.SIGKILL)
        process.communicate()  # once no rank is left
