"""Tensors that are asked of a run are those that it would have saved while it trained, bit for bit."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import reprokit as package
from reprokit import notebook
from reprokit.agent.core.trail_library import Library
from reprokit.agent.core.trail_library import salt as salt_of
from reprokit.core.errors import TensorUnavailable
from reprokit.core.native import trail_path
from reprokit.model.plan import Plan
from reprokit.questions.proof import prove
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from tests import number_files
from tests.support import Reprokit, rest_slow

TRAININGS = Path(__file__).parents[1] / "trainings"
KEYED = ("--keyed", "--seed", "tensors")


class Saved:
    """The tensors of a run."""

    def __init__(self, run: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._bytes: dict[tuple[str, int], tuple[dict[str, Any], bytes]] = {}
        for path in sorted((run / "tensors").glob("*.jsonl")):
            self.lines += [{"file": path.stem, **json.loads(line)} for line in path.read_text().splitlines()]
        self._directory = run / "tensors"
        values = [line for line in self.lines if "step" in line]
        self.by_place = {
            (one["step"], one["mode"], one["name"], one["call"], "reductions" in one): one for one in values
        }
        assert len(self.by_place) == len(values)  # none was saved twice

    def contents(self) -> dict[Any, Any]:
        """What each value is, wherever it stands."""
        kept = ("dtype", "shape", "digest", "reductions")
        return {place: [line.get(key) for key in kept] for place, line in self.by_place.items()}

    def of(self, line: dict[str, Any]) -> bytes:
        """The bytes of a value."""
        key = line["file"], line["shard"]
        if key not in self._bytes:
            data = (self._directory / f"{key[0]}-{key[1]:06d}.safetensors").read_bytes()
            (size,) = struct.unpack_from("<Q", data)
            self._bytes[key] = json.loads(data[8 : 8 + size]), data[8 + size :]
        head, data = self._bytes[key]
        begin, end = head[line["key"]]["data_offsets"]
        return data[begin:end]

    def array(self, step: int, name: str, call: int = 0, mode: str = "train") -> Any:
        """A value in float32."""
        line = self.by_place[step, mode, name, call, False]
        return np.frombuffer(self.of(line), "float32").reshape(line["shape"])

    def tensor(self, name: str) -> dict[str, Any]:
        return next(line for line in self.lines if line.get("tensor") == name)


def record(directory: Path, name: str, training: str, *options: str) -> Path:
    script, *arguments = training.split()
    command = [sys.executable, str(TRAININGS / script), *arguments]
    assert Reprokit(directory).run("record", "-o", name, *KEYED, *options, "--", *command).returncode == 0
    return directory / name


def ask(directory: Path, run: str, *words: str, status: int = 0) -> dict[str, Any]:
    done = Reprokit(directory).run("ask", run, *words, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def both(directory: Path, training: str, *words: str) -> tuple[Saved, Saved]:
    saved = record(directory, "saved", training, "--tensors", "all mode=global", *words)
    asked = record(directory, "asked", training)
    assert not (asked / "tensors").exists()
    answer = ask(directory, "asked", "all", "--mode", "global")
    assert answer["refused"] == answer["known"] == 0
    return Saved(saved), Saved(asked)


def test_pytorch_tensors_are_saved_as_they_were_and_asked_for_afterwards(tmp_path: Path) -> None:
    saved, asked = both(tmp_path, "pytorch_tensors.py")
    assert asked.contents() == saved.contents()
    assert len(saved.by_place) > 500
    places = {(line["file"], line["shard"], line["key"]) for line in saved.by_place.values()}
    assert len(places) < len(saved.by_place)  # the bytes of one value, like a module's input, may be another's too
    library = Library(str(trail_path()))
    for found in (saved, asked):
        for line in found.by_place.values():
            data = found.of(line)
            digest = library._digest_bytes(data, len(data), salt_of(line["dtype"], tuple(line["shape"])))
            assert line["digest"] == f"{digest:016x}", line
    first, active = saved.array(3, "first_output_0"), saved.array(3, "act_output_0")
    assert first.min() < 0 <= active.min()  # as the module returned it, though the activation works in place
    assert np.array_equal(np.maximum(first, 0), active)
    assert not np.array_equal(first, saved.array(3, "first_output_0", call=1))
    assert saved.tensor("first.weight")["aliases"] == ["tied.weight"]
    assert saved.tensor("CrossEntropyLoss_output_0")["collections"] == ["outputs", "losses"]
    unclipped, clipped = (saved.array(3, f"{kind}/last.weight") for kind in ("gradient_unclipped", "gradient"))
    assert np.abs(clipped).max() < np.abs(unclipped).max()
    assert saved.by_place[3, "train", "short.weight", 0, False]["dtype"] == "bfloat16"
    assert saved.by_place[3, "train", "gradient/table.weight.indices", 0, False]["dtype"] == "int64"
    assert (6, "eval", "Net_output_0", 0, False) in saved.by_place
    assert (13, "train", "gradient/last.weight", 0, False) in saved.by_place
    update = saved.array(4, "last.weight") - saved.array(3, "last.weight")
    assert np.abs(update).max() > 0
    assert [line["passed"] for line in saved.lines if line.get("passed") is not None and line["mode"] == "train"] == [
        *range(14)
    ]
    _histograms_hold_each_value(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "gap"),
    [
        ("clock", "differs"),
        pytest.param("constant", "", marks=pytest.mark.extended),
        pytest.param("file", "changed", marks=pytest.mark.extended),
        pytest.param("variable", "changed", marks=pytest.mark.extended),
    ],
)
def test_what_the_trail_does_not_see_is_proved_by_no_replay(tmp_path: Path, kind: str, gap: str) -> None:
    """A second one must give it again; what both read anew may have changed since the recording."""
    reprokit, scale = Reprokit(tmp_path), tmp_path / "scale.txt"
    scale.write_text("1")
    command = [sys.executable, str(TRAININGS / "asked_unseen.py"), kind]
    assert reprokit.run("record", "-o", "run", "--", *command).returncode == 0
    scale.write_text("2")
    variables = {"SCALE": "2"} if kind == "variable" else {}
    done = reprokit.run("ask", "run", "all", "--mode", "train,eval", "--json", environment=variables)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["refused"]) == (1 if gap else 0, 0), done.stderr
    assert list(answer["unproved"]) == ([gap] if gap else [])
    marked = {(line["mode"], line["name"]) for line in Saved(tmp_path / "run").lines if "unproved" in line}
    unseen = {("eval", "Linear_input_0"), ("eval", "Linear_output_0"), *UNTRAINED}
    assert marked >= (unseen if gap else set())
    seen = {("train", name) for name in ("weight", "gradient/weight", "loss", "optimizer#0/weight/exp_avg")}
    assert not marked & seen
    assert answer["seen"] >= 4 * len(seen)
    again = reprokit.run("ask", "run", "outputs", "--mode", "eval", environment=variables)
    assert again.returncode == (1 if gap else 0)
    assert "proved: the replay is that run" not in again.stdout


@pytest.mark.slow
def test_a_variable_that_the_script_changes_is_no_change_to_a_replay_that_ends_early(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "asked_unseen.py"), "counted"]
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", *command).returncode == 0
    asked = "ask", "run", "outputs", "--mode", "eval", "--steps"
    done = Reprokit(tmp_path).run(*asked, "0-1", "--json")
    assert (done.returncode, json.loads(done.stdout)["unproved"]) == (0, {}), done.stderr
    done = Reprokit(tmp_path).run(*asked, "2", "--json", environment={"COUNT": "10"})
    assert list(json.loads(done.stdout)["unproved"]) == ["changed"]


UNTRAINED = {("train", "model#1.Linear_input_0"), ("train", "model#1.Linear_output_0")}


@pytest.mark.extended
def test_what_else_of_the_replay_is_not_as_recorded_is_noted(tmp_path: Path) -> None:
    for kind, facts in (("nothing", []), ("outputs", ["outputs"])):
        command = [sys.executable, str(TRAININGS / "pytorch_beside_trail.py"), kind]
        assert Reprokit(tmp_path).run("record", "-o", kind, "--", *command).returncode == 0
        done = Reprokit(tmp_path).run("ask", kind, "weights", "--json")
        assert done.returncode == 0, done.stderr
        assert [other["fact"] for other in json.loads(done.stdout)["beside_trail"]] == facts
    done = Reprokit(tmp_path).run("ask", "outputs", "weights")
    assert "note: the replay and the run differ in what the trail does not see: outputs: result.json/" in done.stdout


@pytest.mark.slow
def test_what_no_value_was_saved_for_is_not_proved(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "asked_unseen.py"), "constant"]
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", *command).returncode == 0
    done = Reprokit(tmp_path).run("ask", "run", "nowhere", "metrics")
    assert done.returncode == 1
    assert "nothing was saved for metrics, nowhere: check names, --steps and --mode" in done.stdout
    assert "proved" not in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("buffer", ["256M", "1M"])
def test_tensors_of_a_gpu_are_saved_as_they_were_and_asked_for_afterwards(tmp_path: Path, buffer: str) -> None:
    saved, asked = both(tmp_path, "pytorch_cuda_tensors.py", "--tensor-buffer", buffer)
    assert asked.contents() == saved.contents()
    trial = package.trial(tmp_path / "asked")
    with np.load(tmp_path / "expected.npz") as expected:
        assert len(expected) == 24
        for key, array in expected.items():
            name, step = key.split()
            value = trial.tensor(name).value(int(step), "train")
            assert (value.dtype, value.tobytes()) == (array.dtype, array.tobytes()), key


def _histograms_hold_each_value(directory: Path) -> None:
    trial = package.trial(directory / "saved")
    report = json.loads(Reprokit(directory).run("report", "saved", "--format", "json").stdout)
    assert report["histograms_left_out"] > 0
    for one in report["histograms"]:
        arrays = [trial.tensor(one["name"]).value(step, "train") for step in one["steps"]]
        assert [sum(column) for column in one["counts"]] == [array.size for array in arrays], one["name"]
        assert (one["low"], one["high"]) == (min(map(np.min, arrays)), max(map(np.max, arrays)))
    shown = notebook.tensors(directory / "saved")._repr_html_()
    assert shown.count("<svg") == len(report["histograms"]) == 12


@pytest.mark.extended
@pytest.mark.parametrize(
    ("kind", "places"),
    [
        ("later", [("0.weight", range(8))]),
        ("turns", [("0.weight", range(6)), ("model#1.0.weight", range(6))]),
        ("fifth", [("0.weight", [0, 1, 2, 3, 4, 6]), ("model#1.0.weight", [5])]),
    ],
)
def test_each_optimizer_s_tensors_are_in_steps_that_are_proved(
    tmp_path: Path, kind: str, places: list[tuple[str, Iterable[int]]]
) -> None:
    saved, asked = both(tmp_path, f"pytorch_optimizers.py {kind}")
    assert asked.contents() == saved.contents()
    for name, steps in places:
        expected = [(step, "train", f"gradient/{name}", 0, False) for step in steps]
        assert [place for place in saved.by_place if place[2] == f"gradient/{name}"] == expected
    part = record(tmp_path, "part", f"pytorch_optimizers.py {kind}")
    ask(tmp_path, "part", "all", "--steps", "3-5", "--mode", "global")
    content = saved.contents()
    assert Saved(part).contents() == {place: content[place] for place in content if place[0] in (3, 4, 5)}


@pytest.mark.extended
def test_lists_in_an_optimizer_s_state_are_saved_by_index(tmp_path: Path) -> None:
    saved, asked = both(tmp_path, "pytorch_optimizers.py lbfgs")
    assert asked.contents() == saved.contents()
    prefix = "optimizer#0/0.weight/"
    names = {place[2].removeprefix(prefix) for place in saved.by_place if place[2].startswith(prefix)}
    assert {"d", "prev_flat_grad", "old_dirs.0", "old_stps.3", "ro.0"} <= names
    assert saved.tensor(f"{prefix}old_dirs.0")["collections"] == ["optimizer_variables"]
    assert saved.array(3, f"{prefix}old_dirs.0").shape == (76,)


@pytest.mark.extended
def test_an_update_s_gradients_are_those_of_its_closure(tmp_path: Path) -> None:
    saved, asked = both(tmp_path, f"pytorch_closures.py {tmp_path / 'group'}")
    assert asked.contents() == saved.contents()
    for step in range(3):
        gradient, *more = (saved.array(step, "gradient/1.weight", call) for call in range(_calls(saved, step, "")))
        assert not more
        assert np.allclose(saved.array(step + 1, "1.weight"), saved.array(step, "1.weight") - 0.5 * gradient)
    for step in range(4, 7):
        climb, descent = (saved.array(step, "gradient/model#1.1.weight", call) for call in range(2))
        assert _calls(saved, step, "model#1.") == 2
        before = saved.array(step, "model#1.1.weight")
        assert np.allclose(saved.array(step + 1, "model#1.1.weight"), before + climb - descent, atol=1e-6)
    assert np.array_equal(saved.array(2, "0_output_0"), saved.array(2, "0_input_0"))
    assert ask(tmp_path, "asked", "losses", "--steps", "2-7")["proved_steps"] == 8


def _calls(saved: Saved, step: int, model: str) -> int:
    return sum(place[:3] == (step, "train", f"gradient/{model}1.weight") for place in saved.by_place)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["graph", "eager"])
def test_a_skipped_update_has_no_gradients(tmp_path: Path, kind: str) -> None:
    saved, asked = both(tmp_path, f"keras_scaled.py {kind}")
    assert asked.contents() == saved.contents()
    assert not any(place[3] for place in saved.by_place if place[1] == "train")
    applied = [place[0] for place in saved.by_place if place[2] == "gradient/model/first/kernel"]
    assert 0 < len(applied) < 12
    for step in range(11):
        update = saved.array(step, "model/first/kernel") - saved.array(step + 1, "model/first/kernel")
        gradient = saved.array(step, "gradient/model/first/kernel") if step in applied else np.zeros((4, 3))
        assert np.allclose(update, 0.25 * gradient, atol=1e-5)
    rows = {mode: {one["shape"][0] for place, one in saved.by_place.items() if place[1:3] == (mode, "model_output_0")}
            for mode in ("train", "eval", "predict")}  # fmt: skip
    assert rows["train"] == {4}
    assert {2} <= rows["eval"] <= {2, 8}  # in functions that of the last batch
    assert {3} <= rows["predict"] <= {3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("part", rest_slow(["fit"], extended=["function", "convolved", "loop"]))
def test_tensors_of_keras_and_tensorflow_are_those_that_are_asked_for(tmp_path: Path, part: str) -> None:
    saved, asked = both(tmp_path, f"tensorflow_tensors.py {part}")
    assert asked.contents() == saved.contents()
    assert prove(RunDirectory(tmp_path / "asked"), RunDirectory(tmp_path / "saved")).holds  # the training is the same
    names = {place[2] for place in saved.by_place}
    if part == "convolved":
        shapes = {place[0]: one["shape"] for place, one in saved.by_place.items() if place[2] == "conv2d_output_0"}
        assert shapes == {step: [10 if step % 2 else 16, 2, 1, 4] for step in range(4)}  # of the last of two batches
        assert saved.tensor("re_lu_output_0")["class"] == "ReLU"
        first, second = (saved.array(2, "twice/dense_1_output_0", call=call) for call in (0, 1))
        assert first.shape == second.shape == (16, 6)
        assert not np.array_equal(first, second)
        assert {saved.by_place[place]["shape"][0] for place in saved.by_place if place[2] == "twice_input_0"} == {
            16,
            10,
        }
    elif part == "function":
        outputs = saved.array(2, "sequential/dense_output_0")
        assert saved.tensor("sequential/dense_output_0")["class"] == "ReLU"
        assert [place[0] for place in saved.by_place if place[2] == "loss"] == [*range(5)]  # of seven calls
        assert not any(place[3] for place in saved.by_place)
        assert outputs.min() == 0 < outputs.max()
        assert np.abs(saved.array(2, "gradient/sequential/dense/kernel")).max() > 0
    elif part == "fit":
        outputs = saved.array(2, "sequential_output_0")
        assert np.allclose(outputs.sum(1), 1)
        inputs, hidden = saved.array(2, "sequential_input_0"), saved.array(2, "sequential/dense_output_0")
        kernel, bias = (saved.array(2, f"sequential/dense/{name}") for name in ("kernel", "bias"))
        assert np.allclose(np.maximum(inputs @ kernel + bias, 0), hidden, atol=1e-5)
        assert {"loss", "accuracy", "sequential/dense/kernel", "gradient/sequential/dense/bias"} <= names
        validated = [saved.array(step, "sequential_output_0", mode="eval") for step in (4, 8)]
        assert [array.shape for array in validated] == [(7, 3)] * 2
        assert not np.array_equal(*validated)
        before, after = saved.array(2, "sequential/dense/kernel"), saved.array(3, "sequential/dense/kernel")
        assert not np.array_equal(before, after)
    else:
        assert {"sequential_output_0", "gradient/sequential/embedding/embeddings.values"} <= names
        momentum, rate = "optimizer#0/sgd/sequential_dense_kernel_momentum", np.float32(0.1)
        gradient = saved.array(0, "gradient/sequential/dense/kernel")
        assert np.allclose(saved.array(1, momentum), -rate * gradient)


@pytest.mark.extended
def test_each_replica_has_its_own_tensors(tmp_path: Path) -> None:
    saved = Saved(record(tmp_path, "run", "tensorflow_tensors.py replicas", "--tensors", "all"))
    of_fit = {"sequential_1_input_0", "sparse_categorical_crossentropy_input_1", "sequential_1/dense_output_0"}
    of_loop = {"sequential/looped_output_0", "loss", "sparse_categorical_crossentropy_output_0"}
    for steps, names in (range(3), of_loop), (range(5, 8), of_fit | {"gradient/sequential_1/dense/kernel"}):
        for name in names:
            places = [place[:4:3] for place in saved.by_place if place[2] == name and place[0] in steps]
            assert places == [(step, call) for step in steps for call in (0, 1)], name
    for call in (0, 1):
        inputs, hidden = (saved.array(6, f"sequential_1{name}", call) for name in ("_input_0", "/dense_output_0"))
        kernel, bias = (saved.array(6, f"sequential_1/dense/{name}") for name in ("kernel", "bias"))
        assert np.allclose(np.maximum(inputs @ kernel + bias, 0), hidden, atol=1e-5)
    first, second = (saved.array(1, "gradient/sequential/looped/kernel", call) for call in (0, 1))
    update = saved.array(2, "sequential/looped/kernel") - saved.array(1, "sequential/looped/kernel")
    assert np.allclose(update, -0.1 * (first + second), atol=1e-6)
    assert not np.allclose(first, second)


@pytest.mark.extended
def test_nothing_is_kept_from_the_step_on_where_the_replay_is_another_run(tmp_path: Path) -> None:
    run = record(tmp_path, "run", "pytorch_other_step.py")
    (tmp_path / "other").touch()
    answer = ask(tmp_path, "run", "losses,weights", status=1)
    assert [one["step"] for one in answer["parted"]] == [5]
    assert answer["steps"] == [0, 1, 2, 3, 4]
    assert answer["refused"] == 6  # of weights and losses in three steps
    (tmp_path / "other").unlink()
    before = {path.name for path in (run / "tensors").iterdir()}
    again = ask(tmp_path, "run", "losses,weights", "--steps", "3-6")
    assert (again["known"], again["added"]) == (4, 4)
    assert {path.name for path in (run / "tensors").iterdir()} > before
    assert {place[0] for place in Saved(run).by_place} == set(range(7))


@pytest.mark.slow
def test_a_replay_that_ends_with_other_weights_proves_no_more_than_its_trail_holds(tmp_path: Path) -> None:
    reprokit = Reprokit(tmp_path)
    script = str(TRAININGS / "tensorflow_weights_changed.py")
    assert reprokit.run("record", "-o", "run", "--", sys.executable, script).returncode == 0
    (tmp_path / "changed").touch()
    done = reprokit.run("ask", "run", "weights", "--json")
    answer = json.loads(done.stdout)
    assert (answer["steps"], answer["refused"]) == ([0], 5)
    assert answer["parted"] == [{"step": 1, "quantity": "digest of the weights at the end", "process": "0"}]
    refused = reprokit.run("ask", "run", "gradients")
    assert "reading gradients in TensorFlow's functions may change last bits; ask for others without" in refused.stdout


@pytest.mark.extended
def test_what_layers_under_xla_return_is_said_to_be_unseen(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "tensorflow_tensors.py"), "compiled"]
    selections = ("--tensors", "outputs,losses 1-2", "--tensors", "outputs mode=eval")
    done = Reprokit(tmp_path).run("record", "-o", "run", *selections, "--", *command)
    assert done.returncode == 0
    unseen = "sequential/dense_output_0, dropout_output_0, sequential/dense_1_output_0, sequential_output_0"
    assert f"not saved, as XLA compiles the step: {unseen}, sparse_categorical_crossentropy_output_0\n" in done.stderr
    with pytest.raises(TensorUnavailable, match="no tensor 'sequential_output_0', as it could not be read"):
        package.trial(tmp_path / "run").tensor("sequential_output_0")
    assert {place[:3] for place in Saved(tmp_path / "run").by_place} == {(1, "train", "loss"), (2, "train", "loss")}


@pytest.mark.extended
def test_layers_of_a_function_without_a_tape_are_named_as_unsaved(tmp_path: Path) -> None:
    command = [sys.executable, str(TRAININGS / "tensorflow_tensors.py"), "function"]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--tensors", "outputs mode=train,eval", "--", *command)
    names = "sequential/dense_output_0, dropout_output_0, sequential/dense_1_output_0, sequential_output_0"
    assert f"not saved, as a function computes it outside of a gradient tape: {names}\n" in done.stderr
    assert {place[1] for place in Saved(tmp_path / "run").by_place} == {"train"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param(
            "compiled",
            "as torch.compile runs its model as one: 0_output_0, 1_output_0, 2_output_0 [tensors-not-saved]\n",
            marks=pytest.mark.extended,
        ),
        ("func", "as its values are not in memory (nested, meta, fake, or of torch.func): 0_output_0, 1_output_0, "),
    ],
)
def test_layers_that_pytorch_hides_are_named_in_recording_and_answer(tmp_path: Path, kind: str, text: str) -> None:
    command = [sys.executable, str(TRAININGS / "pytorch_hidden_tensors.py"), kind]
    done = Reprokit(tmp_path).run("record", "-o", "run", "--tensors", "outputs 1-2", "--", *command)
    assert f"--tensors: not saved, {text}" in done.stderr
    asked = Reprokit(tmp_path).run("ask", "run", "outputs", "--steps", "3")
    assert f"--tensors: not saved, {text}" in asked.stderr


@pytest.mark.slow
def test_the_last_steps_are_saved_quietly_though_the_replay_is_interrupted_at_its_end(tmp_path: Path) -> None:
    script = str(TRAININGS / "pytorch_slow_end.py")
    assert Reprokit(tmp_path).run("record", "-o", "run", "--", sys.executable, script).returncode == 0
    asked = Reprokit(tmp_path).run("ask", "run", "weights", "--steps", "0-3")
    assert asked.returncode == 0
    assert "Traceback" not in asked.stderr
    assert {place[0] for place in Saved(tmp_path / "run").by_place} == {0, 1, 2, 3}


@pytest.mark.slow
def test_reductions_and_steps_are_chosen_and_what_matches_nothing_is_said(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[tensors]]\nselect = ["weights"]\nsteps = "2-10:3"\nreduce = "l2,abs_mean,min,variance"\n')
    wanted = ("--tensors", str(rules), "--tensors", "wieght$ every=4", "--tensors", "biases 1")
    done = Reprokit(tmp_path).run(
        "record", "-o", "run", *wanted, "--", sys.executable, str(TRAININGS / "pytorch_tensors.py")
    )
    assert done.returncode == 0
    assert "no name matches 'wieght$'; names near to it: " in done.stderr
    saved = Saved(tmp_path / "run")
    assert ask(tmp_path, "run", str(rules))["known"] == len([place for place in saved.by_place if place[4]])
    assert {place[0] for place in saved.by_place if place[4]} == {2, 5, 8}
    assert {place[2] for place in saved.by_place if not place[4]} == {"first.bias", "last.bias", "short.bias"}
    record(
        tmp_path, "other", "pytorch_tensors.py", "--tensors", "weights 2", "--tensors", "weights 2 reduce=l2,variance"
    )
    other = Saved(tmp_path / "other")
    values = other.array(2, "last.weight").astype("float64")
    line = other.by_place[2, "train", "last.weight", 0, True]
    assert line["reductions"]["l2"] == pytest.approx(np.linalg.norm(values), rel=1e-14)
    assert line["reductions"]["variance"] == pytest.approx(values.var(), rel=1e-14)


@pytest.mark.slow
def test_parameters_that_change_between_steps_are_saved_as_they_are(tmp_path: Path) -> None:
    rules = ("--tensors", "weights,biases", "--tensors", "weights,biases reduce=l2,abs_max")
    run = record(tmp_path, "run", f"pytorch_changing.py {tmp_path}/values.npz", *rules)
    saved, values = Saved(run), np.load(tmp_path / "values.npz")
    assert len(values) > 70
    for key, value in values.items():
        step, name = int(key.split()[0]), key.split()[1]
        line, reduced = (saved.by_place[step, "train", name, 0, is_reduced] for is_reduced in (False, True))
        assert line["dtype"] == reduced["dtype"] == value.dtype.name, key
        assert saved.of(line) == value.tobytes(), key
        assert reduced["reductions"]["l2"] == pytest.approx(np.linalg.norm(value.astype("float64")), rel=1e-12)
        assert reduced["reductions"]["abs_max"] == abs(value).max()


@pytest.mark.slow
def test_a_run_without_steps_is_said_to_have_no_tensors(tmp_path: Path) -> None:
    done = Reprokit(tmp_path).run("record", "-o", "run", "--tensors", "all", "--", sys.executable, "-c", "")
    assert "tensors are saved by steps of PyTorch, TensorFlow, XGBoost or LightGBM, of which none" in done.stderr
    asked = Reprokit(tmp_path).run("ask", "run", "all")
    assert (asked.returncode, "run has no trail (no step of PyTorch" in asked.stderr) == (125, True)


@pytest.mark.slow
def test_an_altered_trail_is_refused_before_the_replay(tmp_path: Path) -> None:
    run = record(tmp_path, "run", "pytorch_tensors.py")
    (trail,) = (run / "trail").iterdir()
    trail.write_bytes(trail.read_bytes()[:-1] + b"X")
    asked = Reprokit(tmp_path).run("ask", "run", "all")
    assert asked.returncode == 2
    assert asked.stderr.startswith("reprokit: run-damaged: run/trail was altered")


@pytest.mark.slow
def test_what_a_loss_function_was_called_with_is_saved_as_that_of_a_loss_module(tmp_path: Path) -> None:
    record(tmp_path, "run", "pytorch_loss_functions.py", "--tensors", "all")  # also those that would be computed again
    trial = package.trial(tmp_path / "run")
    names: list[list[str]] = [
        ["NllLoss_input_1"],
        ["BinaryCrossEntropyWithLogits_input_1"],
        ["MseLoss_input_1"],
        [],
        [],
    ]
    assert [list(trial.labels(step)) for step in range(5)] == names
    assert trial.labels(0)["NllLoss_input_1"].tolist() == [number % 3 for number in range(16)]
    predictions = trial.predictions(1)["BinaryCrossEntropyWithLogits_input_0"]
    assert (predictions == trial.tensor("Linear_output_0").value(1)[:, 0]).all()
    weights = [trial.tensor(f"{name}_weight_0").value(step) for step, name in enumerate(("NllLoss", names[1][0][:-8]))]
    assert [weight.tolist() for weight in weights] == [[1, 2, 3], 2]


@pytest.mark.slow
def test_tensors_may_be_named_like_what_the_agent_is_told_to_do(tmp_path: Path) -> None:
    names = [name for name in re.findall(r'"(\w+)":', inspect.getsource(Plan.for_agent)) if not hasattr(dict, name)]
    assert {"quiet", "no_orders", "observed", "capture", "patches", "profiling", "pools", "question"} <= {*names}
    run = record(tmp_path, "run", f"named_tensors.py {' '.join(names)}", "--tensors", ",".join(names))
    assert {*json.loads((run / "plan.json").read_text())} <= {*names, "check"}
    assert {step for step, _, name, _, _ in Saved(run).by_place if "quiet" in name} == {0, 1, 2}
    assert {name for name in names for tensor in Saved(run).by_place if name in tensor[2]} == {*names}
    kinds = [line["k"] for line in number_files.of_run(run)]
    assert (kinds.count("loss"), "warning" in kinds) == (3, False)
    answer = ask(tmp_path, "run", "quiet_input_0")
    assert (answer["known"], answer["proved_steps"]) == (3, 3)


@pytest.mark.extended
def test_a_parameter_of_no_model_has_one_name_in_the_trail_and_in_tensors(tmp_path: Path) -> None:
    run = record(tmp_path, "run", "pytorch_bare_parameters.py")
    names = [f"param_groups.{place}" for place in ("0.params.0", "0.params.1", "1.params.0")]
    (series,) = [series for trail in trails.read(RunDirectory(run)) for series in trail.series]
    assert [tensor.name for tensor in series.tensors(0)] == names
    answer = ask(tmp_path, "run", "weights,gradients,optimizer_variables")
    unclipped = 6  # which no trail sees
    assert (answer["agreed"], answer["seen"], answer["proved_steps"]) == (unclipped, answer["added"] - unclipped, 3)
    saved = {name for _, _, name, _, _ in Saved(run).by_place}
    assert {name for name in saved if "/" not in name} == set(names)
    assert {name for name in saved if name.startswith("gradient_unclipped/")} == {
        f"gradient_unclipped/{name}" for name in names[1:]
    }
    assert {f"optimizer#0/{name}/exp_avg" for name in names} <= saved


def record_compiled(directory: Path, backend: str) -> list[str]:
    """Record a training whose model is compiled; return its command."""
    command = [sys.executable, str(TRAININGS / "pytorch_compiled_layers.py"), backend]
    done = Reprokit(directory).run("record", "--keyframes", "2steps", "-o", "run", "--", *command)
    assert done.returncode == 0, done.stderr
    return command


@pytest.mark.slow
def test_layers_within_a_compiled_model_are_those_of_an_eager_replay_and_say_so(tmp_path: Path) -> None:
    record_compiled(tmp_path, "same")
    done = Reprokit(tmp_path).run("ask", "run", "outputs,losses", "--steps", "5", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["seen"] + answer["agreed"], answer["unproved"]) == (0, answer["added"], {})
    layers = {"0_output_0", "1_output_0", "2_output_0"}
    assert layers < set(answer["tensors"])
    assert answer["compiled"] == "of an eager replay that the trail finds to be that run"
    trial = package.trial(tmp_path / "run")
    eager = {name: trial.tensor(name).is_eager(5) for name in (*layers, "loss")}
    assert eager == {**dict.fromkeys(layers, True), "loss": False}  # which the trail sees
    shown = Reprokit(tmp_path).run("show", "run", "--tensors").stdout
    assert "0_output_0           1 steps, 1 of an eager replay  8x8" in shown


@pytest.mark.extended
def test_no_layers_within_a_compiled_model_are_given_where_no_eager_replay_is_that_run(tmp_path: Path) -> None:
    record_compiled(tmp_path, "other")
    done = Reprokit(tmp_path).run("ask", "run", "outputs", "--steps", "5", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["tensors"]) == (1, ["Sequential_output_0"]), done.stderr
    assert re.fullmatch(r"not given: eagerly, it is not that run from step 0 on, by its \w+", answer["compiled"])
    assert not package.trial(tmp_path / "run").tensor("Sequential_output_0").is_eager(5)


@pytest.mark.extended
def test_no_layers_within_a_compiled_model_are_given_from_a_checkpoint(tmp_path: Path) -> None:
    command = shlex.join([*record_compiled(tmp_path, "same"), "step-4.pt"])
    asked = ("ask", "run", "outputs", "--steps", "5", "--from", "step-4.pt", "--resume-with", command)
    done = Reprokit(tmp_path).run(*asked)
    assert done.returncode == 1, done.stdout + done.stderr
    line = "layers within torch.compile: not given: eager replays resume no checkpoint; ask without --from"
    assert line in done.stdout.splitlines()
    assert package.trial(tmp_path / "run").tensor_names() == ["Sequential_output_0"]
