"""Whole reproductions of real trainings, each with one trouble."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interpreters import tf114_python
from tests.support import Reprokit

TRAININGS = Path(__file__).parent.parent / "trainings"


@dataclass(frozen=True)
class Reproduced:
    """What came of a reproduction."""

    status: int
    journal: dict[str, Any]
    story: str

    @property
    def phases(self) -> list[str]:
        """What the rounds were for."""
        return [one["phase"] for one in self.journal["rounds"]]

    @property
    def kinds(self) -> list[str]:
        """Every training that was started."""
        return [attempt["kind"] for one in self.journal["rounds"] for attempt in one["attempts"]]


def reproduced(
    reprokit: Reprokit,
    name: str,
    *options: str,
    python: str = sys.executable,
    arguments: tuple[str, ...] = (),
    pairs: tuple[str, ...] = ("--pairs", "1"),
) -> Reproduced:
    """Reproduce one of the trainings."""
    command = (python, "-W", "ignore", str(TRAININGS / f"{name}.py"), *arguments)
    done = reprokit.run("reproduce", "-o", "out", *pairs, *options, "--", *command)
    out = reprokit.directory / "out"
    return Reproduced(done.returncode, json.loads((out / "journal.json").read_text()), (out / "journal.md").read_text())


def test_native_code_that_seeds_itself_from_the_clock_needs_the_clock_recorded(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "native_clock", "--no-calendar")
    assert (found.status, found.journal["settings"]["clock"], found.journal["settings"]["patches"]) == (0, True, [])
    assert found.kinds == ["record", "replay", "replay"]


def test_the_line_of_the_script_that_reads_the_clock_is_named(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "clocked_script", "--no-calendar", pairs=())
    (change,) = found.journal["changes"]
    assert (found.status, change["option"]) == (0, "--clock")
    assert found.kinds == ["record", "replay", "replay", "replay"]
    assert change["why"] == f"the script at {TRAININGS / 'clocked_script.py'}:5 reads the clock"


@pytest.mark.slow
def test_results_that_arrive_as_they_are_ready_arrive_so_again_in_a_replay(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "unordered_results")
    assert (found.status, found.journal["settings"]["patches"]) == (0, [])
    assert found.phases == ["bare", "entropy"]
    assert found.kinds == ["record", "replay", "record", "replay"]


@pytest.mark.slow
def test_threads_that_race_are_named_and_only_what_can_matter_is_tried(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "racing_threads", arguments=("threads",))
    assert found.status == 1
    tried = [change["option"] for one in found.journal["rounds"] for change in one["changes"]]
    assert tried == ["--clock", "--patch threads=1"]
    assert any("racing_threads.py:14 in work" in text for text in found.journal["alternatives"])
    assert not any("files differ" in text for text in found.journal["alternatives"])


OBSERVED = """
import sys
from pathlib import Path
from reprokit.run.interruption import Interruption
from reprokit.run_files.recipe import RecipeSettings
from reprokit.reproduce.laboratory import Laboratory, ReproductionWork
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.ignores import declared

place = Path.cwd()
work = ReproductionWork(
    command=(sys.executable, sys.argv[1]), working_directory=place, place=place, ignores=declared(["stale.txt"], ())
)
with Interruption() as interruption:
    laboratory = Laboratory(work, interruption)
    recording = laboratory.record(RecipeSettings(), "recording")
    replay = laboratory.replay(recording, "replay", clock=False, observed=True)
fidelity = RunDirectory(place / "runs" / "replay").run.fidelity
outcome = laboratory.compare(recording, replay)
print([outcome.identical, fidelity.orders > 0], outcome.ignored)
print([fidelity.orders_moved, fidelity.orders_unused])
"""


@pytest.mark.slow
def test_an_observed_replay_has_the_orders_of_its_recording(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    script = str(TRAININGS / "ordered_futures.py")
    done = subprocess.run([sys.executable, "-c", OBSERVED, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("\n[0, 0]\n"), done.stderr
    assert '[True, True] ["--ignore stale.txt: 0 times' in done.stdout or "[True, True] ['--ignore" in done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_a_training_that_seeds_itself_needs_its_entropy_recorded(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "pytorch_unseeded")
    assert (found.status, found.journal["verdict"], found.journal["settings"]["patches"]) == (0, "identical", [])
    assert found.phases == ["bare", "entropy"]


@pytest.mark.torch
@pytest.mark.extended
def test_a_clock_beside_a_framework_takes_four_trainings(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "pytorch_clocked", "--no-calendar", pairs=("--pairs", "2"))
    assert (found.status, found.journal["settings"]["clock"], found.journal["settings"]["patches"]) == (0, True, [])
    assert found.kinds == ["record", "replay", "replay", "replay"]
    assert found.phases == ["bare", "locate", "cure"]


@pytest.mark.extended
@pytest.mark.xgboost
def test_the_racing_updater_of_gblinear_is_replaced(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "xgboost_linear", pairs=())
    assert (found.status, found.journal["settings"]["patches"]) == (0, ["xgboost-linear"])
    assert found.kinds == ["record", "replay", "record", "replay"]


@pytest.mark.torch
@pytest.mark.extended
def test_the_backward_of_indexing_is_found_and_made_deterministic(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "pytorch_indexing", pairs=())
    assert found.status == 0
    assert found.kinds[:4] == ["record", "replay", "record", "replay"]
    assert found.journal["settings"]["patches"] in (["torch-operator=aten::index_put"], ["torch-deterministic"])
    assert found.phases[:3] == ["bare", "locate", "cure"]
    assert found.phases[3:] in ([], ["cheaper"])  # where the override takes longer
    assert "profile" not in found.kinds
    assert "aten::index\\_put at " in found.story
    assert "pytorch\\_indexing.py:13 in \\<module\\> is to blame" in found.story
    (blamed,) = (one["findings"] for one in found.journal["changes"])
    assert blamed == ["pytorch/aten::index_put/backward/cpu"]


@pytest.mark.torch
@pytest.mark.extended
def test_an_operator_that_nothing_cures_is_named(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "pytorch_custom_operator", "--max-rounds", "4")
    assert found.status == 1
    assert found.journal["verdict"] == "different"
    assert found.journal["remaining"][0].startswith("mine::racing_sum at ")
    assert found.journal["alternatives"]


@pytest.mark.tensorflow
@pytest.mark.extended
def test_bincount_of_floats_is_cured_by_one_thread_only(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "tensorflow_bincount", "--no-smallest", pairs=())
    assert (found.status, found.journal["settings"]["patches"]) == (0, ["tf-threads"])
    assert found.kinds == ["record", "replay", "record", "replay"]
    assert "Bincount at " in found.story


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.extended
def test_a_parallel_map_that_augments_is_made_to_take_turns(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "tensorflow_augmented", pairs=())
    assert (found.status, found.journal["settings"]["patches"]) == (0, ["tf-data"])
    assert found.kinds == ["record", "replay", "record", "replay", "replay"]
    assert "tensorflow\\_augmented.py:11 in \\<module\\>" in found.story


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.extended
def test_a_number_of_workers_that_differs_is_held(reprokit: Reprokit) -> None:
    found = reproduced(reprokit, "pytorch_worker_count")
    assert (found.status, found.journal["settings"]["patches"]) == (0, ["torch-loader=1"])
    assert found.phases == ["bare", "cure"]
    assert "a DataLoader had 1 workers in one run and another number in the other" in found.story


@pytest.mark.tf114
@pytest.mark.slow
@pytest.mark.extended
def test_tensorflow_1_is_reproduced_with_tfdeterminism_applied_by_us(reprokit: Reprokit) -> None:
    options = ("--patch", "tf1-determinism", "--no-smallest")
    found = reproduced(reprokit, "tensorflow1_dense", *options, python=str(tf114_python()))
    assert (found.status, found.journal["settings"]["patches"]) == (0, ["tf1-determinism"])
    applied = [attempt["patches"] for one in found.journal["rounds"] for attempt in one["attempts"]]
    assert [(one["state"], "has been patched" in one["why"]) for (one,) in applied] == [("applied", True)] * 3
