"""PyTorch's patches: what they cure, that a script cannot turn them off unseen, and what they refuse."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reprokit.agent.patches import PatchContext, PatchRefused
from reprokit.agent.patches import torch as switches
from reprokit.agent.patches import torch_operators as operators
from reprokit.patches import parse
from tests.agent.training import Outcome, Training
from tests.support import Reprokit, training_text

pytestmark = pytest.mark.torch

TRAININGS = Path(__file__).parent.parent / "trainings"
INDEX = str(TRAININGS / "pytorch_index.py")
two_processors = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads race only on two processors")


def run(directory: Path, script: str, *patches: str) -> tuple[Any, Outcome]:
    """What a script prints as JSON, and how it ended."""
    entries = [
        {"id": chosen.patch.id, "value": chosen.value, "framework": "torch", "versions": chosen.patch.versions}
        for chosen in parse(patches)
    ]
    done = Training(directory, patches=entries).run(script)
    assert done.status == 0, done.errors
    return json.loads(done.output), done


# On a GPU

WITHOUT_CODE = {  # that is deterministic: PyTorch warns of each; of max_pool3d 2.13 has some, 2.11 none that helps
    "put accumulate", "bincount weights", "grid_sample backward", "adaptive_max_pool2d backward", "max_pool3d backward",
    "nll_loss2d"
}  # fmt: skip
CURED = {
    "aten::index_add_": "index_add_",
    "aten::scatter_add": "scatter_add",
    "aten::embedding_dense_backward": "embedding backward",
    "aten::scatter_reduce": "scatter_reduce",
}


def varying(reprokit: Reprokit, patches: Sequence[str], *names: str) -> set[str]:
    """The operators that gave several results on a GPU."""
    words = [word for patch in patches for word in ("--patch", patch)]
    done = reprokit.run("record", *words, "--", sys.executable, str(TRAININGS / "pytorch_cuda_varying.py"), *names)
    assert done.returncode == 0, done.stderr
    found = dict(line.rsplit(": ", 1) for line in done.stdout.splitlines())
    assert set(names) <= set(found)
    return {name for name, results in found.items() if int(results) > 1}


@pytest.mark.gpu
def test_operators_that_vary_on_a_gpu_repeat_in_deterministic_mode(reprokit: Reprokit) -> None:
    assert varying(reprokit, []) >= {*CURED.values(), "gather backward", "index_select backward", "cumsum"}
    assert varying(reprokit, ["torch-deterministic"]) <= WITHOUT_CODE


@pytest.mark.gpu
def test_one_operator_that_varies_on_a_gpu_repeats_alone(reprokit: Reprokit) -> None:
    patches = [f"torch-operator={operator}" for operator in CURED]
    assert varying(reprokit, patches, *CURED.values(), "grid_sample backward") <= WITHOUT_CODE


@pytest.mark.gpu
@pytest.mark.parametrize(("patches", "status"), [((), 1), (("--patch", "torch-operator=aten::index_add_"), 0)])
def test_a_training_that_varies_on_a_gpu_replays_when_patched(
    reprokit: Reprokit, patches: Sequence[str], status: int
) -> None:
    script = str(TRAININGS / "pytorch_cuda_racing.py")
    assert reprokit.run("record", "-o", "first", *patches, "--", sys.executable, script).returncode == 0
    assert reprokit.run("replay", "first", "-o", "second").returncode == 0
    done = reprokit.run("verify", "first", "second")
    assert done.returncode == status, done.stdout + done.stderr


# A real training, recorded and replayed


def digests(reprokit: Reprokit, *options: str) -> tuple[str, str]:
    """What a recording and its replay print: the digest of the weights."""
    recorded = reprokit.run("record", "-o", "first", *options, "--", sys.executable, INDEX)
    replayed = reprokit.run("replay", "first", "-o", "second")
    assert recorded.returncode == replayed.returncode == 0, recorded.stderr + replayed.stderr
    return recorded.stdout, replayed.stdout


@pytest.mark.slow
@two_processors
def test_the_backward_of_indexing_differs_without_a_patch(reprokit: Reprokit) -> None:
    recorded, replayed = digests(reprokit)
    assert recorded != replayed
    assert reprokit.run("verify", "first", "second").returncode == 1


@pytest.mark.slow
@two_processors
@pytest.mark.parametrize(
    "patch",
    [
        "torch-operator=aten::index_put_",
        pytest.param("torch-deterministic", marks=pytest.mark.extended),
        pytest.param("threads=1", marks=pytest.mark.extended),
    ],
)
def test_the_backward_of_indexing_repeats(reprokit: Reprokit, patch: str) -> None:
    recorded, replayed = digests(reprokit, "--patch", patch)
    assert recorded == replayed
    verified = reprokit.run("verify", "first", "second")
    assert verified.returncode == 0, verified.stdout
    (state,) = reprokit.facts("second")["patches"]
    assert (state["id"], state["state"], state["processes"]) == (patch.partition("=")[0], "applied", 1)


# Switches

TURNED_OFF = training_text("pytorch_switches.py")


@pytest.mark.slow
def test_a_script_does_not_turn_switches_off_until_they_are_taken_back(tmp_path: Path) -> None:
    states, _ = run(tmp_path, TURNED_OFF, "torch-deterministic", "torch-cudnn", "threads=3")
    inductor, *states = states
    assert not inductor  # a second of start-up that a training may never need
    assert states[:3] == [1, 1, 2]  # 2: the script asked for errors
    assert states[3:5] == [[False, True]] * 2
    assert states[5] == [3, 3]
    assert states[6] == [[1], [1]]  # the worker's own choice stays
    assert states[7] is False
    assert states[8:] == [[True] * 3, [0, True, 4]]


@pytest.mark.slow
def test_memory_is_filled_where_asked_for(tmp_path: Path) -> None:
    script = "import json, torch\nprint(json.dumps(torch.empty(4000).isnan().all().item()))"
    assert run(tmp_path, script, "torch-deterministic-fill")[0] is True


def test_switches_that_a_version_lacks_are_said() -> None:
    def without_warnings(mode: bool) -> None:
        raise AssertionError("must not be called without warn_only")

    old = SimpleNamespace(utils=SimpleNamespace(), _C=SimpleNamespace(_set_deterministic_algorithms=without_warnings))
    with pytest.raises(PatchRefused, match="an operator has no"):
        switches.torch_deterministic(old, "", PatchContext())
    with pytest.raises(PatchRefused, match="does not fill"):
        switches.torch_deterministic_fill(old, "", PatchContext())
    library = SimpleNamespace(Library=SimpleNamespace(impl=lambda name, function, key: None))
    with pytest.raises(PatchRefused, match="threads=1"):
        operators.torch_operator(SimpleNamespace(library=library), "aten::index_put_", PatchContext())


# One operator

OPERATORS = training_text("pytorch_own_operators.py")


@pytest.mark.slow
@two_processors
def test_a_patched_operator_gives_what_one_thread_gives(tmp_path: Path) -> None:
    names = ("aten::index_put", "aten::index_put_", "aten::put_", "aten::index_copy", "aten::histogram")
    (different, counts, undone, patched), done = run(tmp_path, OPERATORS, *[f"torch-operator={name}" for name in names])
    assert different == []
    assert counts == [2, False, 2]
    assert undone
    assert not patched
    assert {line["state"] for line in done.of("patch")} == {"applied", "undone"}


REFUSED = {
    "aten::index_putt_": "is it aten::index_put_",
    "aten::linear": "made of other operators",
    "aten::empty": "torch-deterministic-fill",
}
CUSTOM = training_text("pytorch_own_threads.py")


@pytest.mark.slow
def test_operators_of_other_libraries_are_patched_when_they_come_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    names = [*REFUSED, "mine::threads"]
    counts, done = run(tmp_path, CUSTOM, *[f"torch-operator={name}" for name in names])
    assert counts == [1, 2]
    said = {line["value"]: (line["state"], line["why"]) for line in done.of("patch")}
    assert said["mine::threads"][0] == "applied"
    for name, words in REFUSED.items():
        assert said[name][0] == "refused"
        assert words in said[name][1]


COMPILED = training_text("pytorch_compiled_operators.py")


@pytest.mark.extended
@two_processors
def test_compiled_operators_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    names = ("aten::index_add", "aten::embedding_dense_backward")
    assert run(tmp_path, COMPILED, *[f"torch-operator={name}" for name in names])[0] == [True, True]


# DataLoader

LOADER = training_text("pytorch_loaders.py")


def drawn(directory: Path, counts: Sequence[int], *patches: str) -> list[Any]:
    """The batches of loaders with so many workers, made one after another."""
    found: list[Any] = run(directory, LOADER.replace("sys.argv[1:]", str(counts)), *patches)[0]
    return found


@pytest.mark.slow
def test_a_number_of_workers_decides_what_is_drawn(tmp_path: Path) -> None:
    one, two, also_two = drawn(tmp_path, [1, 2, 2])
    assert one != two
    assert two == also_two


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.extended), 2])
def test_workers_are_as_many_as_the_patch_says(tmp_path: Path, workers: int) -> None:
    patch = f"torch-loader={workers}"
    first, second = drawn(tmp_path, [1, 0], patch)
    assert first != second  # by generators of their own, whatever the script seeds
    assert drawn(tmp_path, [3], patch) == [first]
