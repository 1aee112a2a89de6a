"""Snapshots of PyTorch's trainings: bit for bit the state that a bare training has just before the step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy
import pytest

from reprokit.agent.capture import trees
from reprokit.capture import Snapshot, load
from tests.support import LIMIT, Reprokit, training_text

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

TRAININGS = Path(__file__).parent.parent / "trainings"
SCRIPT = str(TRAININGS / "pytorch_steps.py")
STEPS = {
    "plain": 3,
    "foreach": 4,
    "fused": 5,
    "together": 6,
    "adversaries": 7,
    "accumulated": 8,
    "lbfgs": 9,
    "late": 10,
    "scaler": 11,
    "clipped": 13,
    "without_loader": 14,
    "without_modules": 15,
    "nested": 16,
    "compiled": 17,
    "compiled_whole": 18,
    "parts": 19,
    "ascent": 20,
    "scaler_fused": 32,
}
COMPILED = ("compiled", "compiled_whole")
EAGER = tuple(name for name in STEPS if name not in COMPILED)
CALLED_OTHERWISE = {"adversaries", "fused"}  # the model is, than with what the loader gave


def read(directory: Path) -> dict[str, Any]:
    return {path.stem: torch.load(path, weights_only=False) for path in directory.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], tuple[Path, Path]]:
    """Runs trainings bare and captured, once for all tests."""

    @cache
    def make(names: Sequence[str]) -> tuple[Path, Path]:
        bare, directory = map(tmp_path_factory.mktemp, ("bare", "skip"))
        command = [sys.executable, SCRIPT, "bare,without", str(bare), *names]
        subprocess.run(command, check=True, capture_output=True, timeout=2 * LIMIT)
        options = ["--on-nan", "skip", "--max-snapshots", "100", "-o", "RUN"]
        done = Reprokit(directory).run("run", *options, "--", sys.executable, SCRIPT, "whole", ".", *names)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("the step was not applied") == len(names), done.stderr
        return bare, directory

    return make


@pytest.fixture
def group(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The trainings that are run together with the test's own: to import the compiler takes longer than all others."""
    is_compiled = "name" in request.fixturenames and request.getfixturevalue("name") in COMPILED
    return COMPILED if is_compiled else EAGER


@pytest.fixture
def bare(made: Callable[[Sequence[str]], tuple[Path, Path]], group: tuple[str, ...]) -> Path:
    """What the trainings write by themselves: just before the bad step, and at the end without it."""
    return made(group)[0]


@pytest.fixture
def states(bare: Path, name: str) -> dict[str, Any]:
    return {name: torch.load(bare / "bare" / f"{name}.pt", weights_only=False)}


@pytest.fixture
def directory(made: Callable[[Sequence[str]], tuple[Path, Path]], group: tuple[str, ...]) -> Path:
    """Of a run in which every training had its bad step captured and left out."""
    return made(group)[1]


def snapshot_of(directory: Path, name: str) -> Snapshot:
    return load(directory / "RUN" / "snapshots" / f"step-{STEPS[name]:08d}")


@pytest.fixture(params=[*sorted(EAGER), *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED)])
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def same(snapshot: Snapshot, kept: str, tensor: Any) -> bool:
    array = snapshot.tensors[kept]
    return bool(array.shape == tuple(tensor.shape) and array.tobytes() == tensor.detach().numpy().tobytes())


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    else:
        yield value.detach().numpy() if hasattr(value, "detach") else value


def value_of(snapshot: Snapshot, node: Any) -> Any:
    return trees.unpack(node, snapshot._leaf)


def alike(one: Any, other: Any) -> bool:
    """Whether nested values have the same leaves, arrays bit for bit."""
    ones, others = list(leaves(one)), list(leaves(other))
    return len(ones) == len(others) and all(
        a.tobytes() == b.tobytes() if hasattr(a, "tobytes") and hasattr(b, "tobytes") else bool(a == b)
        for a, b in zip(ones, others, strict=True)
    )


def test_parameters_and_buffers_are_those_of_the_start(name: str, states: dict[str, Any], directory: Path) -> None:
    snapshot = snapshot_of(directory, name)
    wanted = [model for model in states[name]["models"] if model]
    models = snapshot.header["models"]
    assert len(models) == len(wanted)
    for model, tensors in zip(models, wanted, strict=True):
        assert model["tensors"].keys() == tensors.keys()
        assert all(same(snapshot, model["tensors"][part], tensors[part]) for part in tensors)


def test_optimizers_schedules_and_scalers_too(name: str, states: dict[str, Any], directory: Path) -> None:
    snapshot, wanted = snapshot_of(directory, name), states[name]
    optimizers = snapshot.header["optimizers"]
    assert len(optimizers) == len(wanted["optimizers"])
    for saved, state in zip(optimizers, wanted["optimizers"], strict=True):
        parameters = value_of(snapshot, saved["state"])["parameters"]
        of_parameters = [state["state"].get(number) for number in range(len(parameters))]
        of_parameters = [None if one is None else one for one in of_parameters]
        assert alike([part or {} for part in parameters], [part or {} for part in of_parameters])
        groups = [{key: group[key] for key in group if key != "params"} for group in state["param_groups"]]
        assert alike(value_of(snapshot, saved["groups"]), groups)
    for kind in ("schedule", "scaler"):
        others = [value_of(snapshot, one["state"]) for one in snapshot.header[f"{kind}s"]]
        assert [alike(other, wanted["others"][kind]) for other in others] == [True] * (kind in wanted["others"])


def test_random_states_are_those_before_the_forward_pass(name: str, states: dict[str, Any], directory: Path) -> None:
    snapshot, wanted = snapshot_of(directory, name), states[name]
    random = {kind: value_of(snapshot, node) for kind, node in snapshot.header["random"].items()}
    version, words, following = random["python"]
    assert (version, tuple(words.tolist()), following) == wanted["python"]
    assert alike(random["numpy"], wanted["numpy"])
    assert random["torch"].tobytes() == wanted["torch"].numpy().tobytes()


def test_batches_are_those_that_were_given(name: str, states: dict[str, Any], directory: Path) -> None:
    snapshot, wanted = snapshot_of(directory, name), states[name]["batches"]
    origins = [batch["from"] for batch in snapshot.header["batches"]]
    if name == "without_loader":
        assert origins == ["forward", "loss", "script"]
        *given, variables = snapshot.batches
        assert alike(given, wanted)
        assert sorted(variables) == ["x", "y"]
    else:
        assert ("forward" in origins) == (name in CALLED_OTHERWISE)
        given = snapshot.batches[: origins.count("loader")]
        assert alike(given, list(wanted)[: len(given)])
        assert len(given) == (2 if name == "accumulated" else 1)


def test_the_step_is_left_out(bare: Path, directory: Path) -> None:
    """Trainings that draw no random numbers go on as if they had never been given that batch."""
    whole, without = read(directory / "whole"), read(bare / "without")
    assert whole.keys() == set(EAGER)
    for state in whole.values():
        assert all(bool(torch.isfinite(tensor).all()) for model in state["models"] for tensor in model.values())
    assert len(without) == 7
    for one, state in without.items():
        assert alike(whole[one]["models"], state["models"]), one
        assert alike(whole[one]["optimizers"], state["optimizers"]), one


def test_what_is_not_finite_is_named(directory: Path) -> None:
    triggers = {one: snapshot_of(directory, one).header["trigger"] for one in EAGER}
    assert triggers["plain"]["kind"] == "loss"
    assert triggers["plain"]["what"] == "nan"
    wanted = {"kind": "gradient", "name": "1.bias", "count": 1, "of": 3}
    assert {key: triggers["clipped"][key] for key in wanted} == wanted
    assert triggers["clipped"]["where"][0][0] == SCRIPT
    assert triggers["clipped"]["optimizers"] == ["optimizer#0"]
    assert triggers["together"]["name"] == "model#1.scale"
    assert triggers["late"]["evaluation"] == 3
    clipped = snapshot_of(directory, "clipped")
    assert list(clipped.gradients) == ["1.bias"]
    assert numpy.isinf(clipped.gradients["1.bias"]).tolist() == [False, True, False]
    assert len(clipped.header["gradient_digests"]) == 4


def test_losses_are_kept_and_the_header_is_as_its_schema_says(directory: Path) -> None:
    schema = json.loads((files("reprokit") / "schemas" / "snapshot.schema.json").read_text())
    for one in EAGER:
        jsonschema.validate(snapshot_of(directory, one).header, schema)
    assert numpy.isnan(snapshot_of(directory, "plain").losses[-1])
    assert numpy.isfinite(snapshot_of(directory, "foreach").losses[-1])


@pytest.mark.slow
def test_the_training_stops(tmp_path: Path) -> None:
    done = Reprokit(tmp_path).run(
        "record", "--on-nan", "capture", "--", sys.executable, SCRIPT, "whole", ".", "clipped"
    )
    assert done.returncode == 123, done.stderr
    assert "captured: step 13: gradient of 1.bias is not finite (1 of 3 elements); snapshot: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "whole").iterdir())


@pytest.mark.slow
def test_scripts_guard_their_own_trainings(tmp_path: Path) -> None:
    """Each check is in the script; see there."""
    script = str(TRAININGS / "pytorch_guarded.py")
    command = [sys.executable, "-W", "error::UserWarning", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    rolling, noticing = ["rolls_back", "rolls_back_less", "rolls_back_its_own"], ["notices", "notices_each"]
    assert done.stdout.split() == ["restores", *rolling, "reads_once", *noticing, "scale_falls"]


BUFFERS = training_text("pytorch_buffers.py")


@pytest.mark.slow
def test_buffers_that_a_script_assigns_or_frees(reprokit: Reprokit) -> None:
    script = reprokit.script("train.py", BUFFERS)
    done = reprokit.run("run", "--on-nan", "skip", "-o", "RUN", "--", sys.executable, str(script))
    assert (done.returncode, done.stdout) == (0, "5.0\n"), done.stderr
    snapshot = load(reprokit.directory / "RUN" / "snapshots" / "step-00000003")
    assert snapshot.tensors["model.0.counter"].tolist() == [3.0]
    assert "model.0.freed was left out: its memory was freed" in snapshot.header["notes"]
    assert "model.0.two was left out: it is a TwoTensor of float32" in snapshot.header["notes"]
