"""Runs of several hosts: matched by name, the earliest step first, and what is missing is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reprokit.core.difference import Verdict
from reprokit.core.errors import RunNotFound
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify import hosts
from reprokit.verify.runs import compare
from tests.support import Reprokit

from .runs import Building, digest, recording, trail


def part(place: Path, rank: int, changed: int | None = None, size: int = 2) -> Building:
    """What the launcher on one host wrote, of a rank whose parameters differ from one step on."""
    place.parent.mkdir(parents=True, exist_ok=True)
    building = recording(place)
    building.start(f"rank{rank}")
    building.losses(0.5, process=f"rank{rank}")
    facts = {"backend": "gloo", "ranks": size}
    building.add("compute", f"rank{rank}", name="collectives group#0", library="collectives", facts=facts)
    table = trail(20)
    for step in table.steps[20 if changed is None else changed :]:
        step["parameters"] += 1
    building.tables = {f"rank{rank}": [table]}
    return building


def several(place: Path, *changed: int | None, size: int = 2) -> Path:
    for rank, step in enumerate(changed):
        part(place / "hosts" / f"node{rank}", rank, step, size).write()
    return place


def test_hosts_that_agree(tmp_path: Path, reprokit: Reprokit) -> None:
    one, two = several(tmp_path / "one", None, None), several(tmp_path / "two", None, None)
    found = hosts.compare(one, two)
    assert (found.verdict, list(found.hosts), found.notes) == (Verdict.IDENTICAL, ["node0", "node1"], ())
    done = reprokit.run("verify", "one", "two", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"] == "identical"
    assert document["hosts"]["node1"]["verdict"] == "identical"


def test_the_host_that_differs_at_the_earliest_step_is_first(tmp_path: Path, reprokit: Reprokit) -> None:
    one, two = several(tmp_path / "one", None, None), several(tmp_path / "two", 12, 7)
    found = hosts.compare(one, two)
    assert list(found.hosts) == ["node1", "node0"]
    (note,) = found.notes
    assert note.startswith("of the right run, ranks 0, 1 parted at step 7")
    done = reprokit.run("verify", "one", "two")
    assert done.returncode == 1
    assert done.stdout.startswith("different: host node1: parameters of optimizer#0 of process rank1")
    assert "more of this host: reprokit verify one/hosts/node1 two/hosts/node1" in done.stdout
    alone = [reprokit.run("verify", run, "--json") for run in ("one", "two")]
    assert [done.returncode for done in alone] == [0, 1]
    assert [json.loads(done.stdout)["ranks"][0]["state"] for done in alone] == ["equal", "parted"]


def test_a_host_that_is_missing_is_a_difference(tmp_path: Path) -> None:
    found = hosts.compare(several(tmp_path / "one", None, None), several(tmp_path / "two", None))
    assert (found.verdict, found.lacking) == (Verdict.DIFFERENT, (("node1", "right"),))
    assert found.notes == ("of the right run, 1 of 2 ranks are here: parts of hosts are missing",)


def test_parts_of_several_trainings_are_told(tmp_path: Path) -> None:
    one = several(tmp_path / "one", None, None)
    part(one / "hosts" / "other", 0).write()
    notes = hosts.compare(one, one).notes
    assert "of the left run, rank0 is on more than one host: these are parts of several trainings" in notes


def test_what_is_no_part_is_left_out(tmp_path: Path) -> None:
    one = several(tmp_path / "one", None)
    (one / "hosts" / "empty").mkdir()
    (one / "hosts" / "link").symlink_to(one / "hosts" / "node0")
    assert list(hosts.parts(one)) == ["node0"]
    assert hosts.parts(one / "hosts" / "node0") == {}
    with pytest.raises(RunNotFound, match="several hosts; name the run of one of its hosts"):
        RunDirectory(one)


def collective(building: Building, step: int, text: str, **keys: Any) -> None:
    line = {"name": "mpi", "step": step, "calls": 1, "operation": "Allreduce", "ranks": 2, "dtype": "float64"}
    building.add("collective", "rank0", **{**line, "shape": [4], "digest": digest(text), "whole": True, **keys})


def test_a_collective_is_named_before_what_follows_from_it(tmp_path: Path) -> None:
    runs = []
    for name in ("left", "right"):
        building = recording(tmp_path / name)
        building.start("rank0")
        for step in range(3):
            collective(building, step, name if step == 2 else "same")
        building.losses(0.5 if name == "left" else 0.6, process="rank0")
        runs.append(building.write())
    first = compare(*runs).tree.first()
    assert first is not None
    assert first.detail.startswith("collectives mpi of process rank0 differs first at call 2: Allreduce float64[4] of")
    values = compare(runs[0], runs[0]).tree
    assert next(leaf for leaf in values.leaves() if "collectives" in leaf.name).verdict is Verdict.IDENTICAL


def test_a_collective_behind_a_loss_that_differs_is_named_after_it(tmp_path: Path) -> None:
    runs = []
    for name in ("left", "right"):
        building = recording(tmp_path / name)
        building.start("rank0")
        building.losses(0.5 if name == "left" else 0.6, process="rank0")
        collective(building, 0, name)
        runs.append(building.write())
    first = compare(*runs).tree.first()
    assert first is not None
    assert first.name.startswith("loss")
