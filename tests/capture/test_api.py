"""reprokit.capture in a script: a guarded loop, with and without the launcher, and what its snapshot gives back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from tests.support import Reprokit, python

GUARDED = """
import os, sys
import torch
from torch import nn
import reprokit.capture

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
other = nn.Linear(4, 1)
unwatched = torch.optim.SGD(other.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))

def gradients(inputs):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), y).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]

def state():
    kept = [value.clone() for value in model.state_dict().values()]
    return kept + [state["momentum_buffer"].clone() for state in optimizer.state.values()]

def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))

with reprokit.capture.guard(model, optimizer, directory="kept", on_nan=sys.argv[1]):
    for step in range(3):
        gradients(x)
        optimizer.step()
    before, bad = state(), x.clone()
    bad[5] = float("inf")
    seen = gradients(bad)
    optimizer.step()
    after = state()
gradients(bad)
optimizer.step()  # nobody watches any more
place = os.path.join(sys.argv[2], os.listdir(sys.argv[2])[0])
snapshot = reprokit.capture.load(place)
assert snapshot.framework == "pytorch" and snapshot.step == 3, snapshot
assert "the loss is nan" in snapshot.trigger, snapshot.trigger
assert len(snapshot.losses) == 4 and snapshot.losses[-1] != snapshot.losses[-1]
assert snapshot.gradients["4.weight"].tobytes() == seen[-2].numpy().tobytes()
(arguments, keywords), target, variables = snapshot.batches
assert torch.equal(torch.tensor(arguments[0]), bad) and keywords == {}
assert torch.equal(torch.tensor(target["target"]), y)
assert sorted(variables) == ["x", "y"]
assert same(before, after), "the step was not applied"
assert not same(before, state())
snapshot.restore(model, optimizer)
assert same(before, state())
assert same([torch.nan_to_num(g) for g in gradients(bad)], [torch.nan_to_num(g) for g in seen]), "with the same dropout"
wider = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.ReLU(), nn.Linear(7, 3))
for wrong in (nn.Linear(4, 6), wider):
    try:
        snapshot.restore(wrong)
    except reprokit.capture.BadSnapshot as error:
        print(error)
    else:
        raise AssertionError(wrong)
print("done")
"""


@pytest.mark.torch
def test_a_guarded_loop_goes_on_and_its_snapshot_gives_the_state_back(tmp_path: Path) -> None:
    done = subprocess.run([*python(GUARDED), "skip", "kept"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("reprokit: captured: step 3: the loss is nan; snapshot: ")
    assert done.stderr.count("\n") == 1
    absent, shape, last = done.stdout.splitlines()
    assert "0.weight" in absent
    assert shape == "0.weight has the shape 6x4 in the snapshot, and 7x4 here"
    assert last == "done"


@pytest.mark.slow
@pytest.mark.torch
def test_a_guarded_loop_stops_and_under_the_launcher_the_command_line_decides(reprokit: Reprokit) -> None:
    words = [*python(GUARDED), "stop", "kept"]
    done = subprocess.run(words, cwd=reprokit.directory, capture_output=True, text=True)
    assert done.returncode == 123
    assert os.listdir(reprokit.directory / "kept") == ["step-00000003"]
    done = reprokit.run("run", "-o", "a", "--on-nan", "skip", "--max-snapshots", "1", "--", *words[:-1], "a/snapshots")
    assert "captured: step 3" in done.stderr
    assert os.listdir(reprokit.directory / "a" / "snapshots") == ["step-00000003"]
    assert os.listdir(reprokit.directory / "kept") == ["step-00000003"]


def test_options_of_a_guard_that_make_no_sense() -> None:
    code = """
import reprokit.capture
for options in ({"on_nan": "cry"}, {"capture_when": ["loss"]}):
    try:
        reprokit.capture.guard(None, None, **options)
    except Exception as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "on_nan='cry': choose one of capture, stop, skip, rollback",
        "'loss' is no condition; write loss>X, gradient-jump>X or activations",
    ]


FAILING = """
import numpy, torch
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.tensor(numpy.random.rand(20, 6, 3), dtype=torch.float32)
for step in range(20):
    optimizer.zero_grad()
    (model(x[step]).square().sum() / (0.0 if step == 15 else 1.0)).backward()
    optimizer.step()
print("went on")
"""


@pytest.mark.slow
@pytest.mark.torch
def test_a_replay_captures_what_its_recording_did_not_and_another_replay_the_same(reprokit: Reprokit) -> None:
    assert reprokit.run("record", "-o", "a", "--", *python(FAILING)).stdout == "went on\n"
    for name in ("b", "c"):
        done = reprokit.run("replay", "a", "-o", name, "--on-nan", "capture")
        assert (done.returncode, done.stdout) == (123, "")
        assert " 0 moved, 0 derived, 0 live, " in done.stderr, "a capture asks for no entropy"
    same = reprokit.run("verify", "b", "c")
    assert same.returncode == 0, same.stdout
    assert "step-00000015: " in same.stdout
    schema = resources.files("reprokit").joinpath("schemas/snapshot.schema.json").read_text()
    header = reprokit.directory / "b" / "snapshots" / "step-00000015" / "snapshot.json"
    jsonschema.validate(json.loads(header.read_text()), json.loads(schema))


KERAS = """
import os, sys
import numpy, keras
import reprokit.capture.keras

keras.utils.set_random_seed(1)
x, y = numpy.random.rand(24, 4).astype("float32"), numpy.random.rand(24, 1).astype("float32")
x[20, 1] = numpy.nan

def layers():
    return [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]

def state(model):
    return [variable.numpy().tobytes() for variable in [*model.variables, *model.optimizer.variables]]

class Guarded(reprokit.capture.keras.GuardedModel, keras.Sequential):
    pass

def train(model, callbacks):
    model.compile("adam", "mse", jit_compile=False)
    model.fit(x[:8], y[:8], batch_size=8, verbose=0)  # made before the callback is known
    before = state(model)
    model.fit(x[16:], y[16:], batch_size=8, verbose=0, callbacks=callbacks)
    assert state(model) == before, "the step was not applied"
    model.fit(x[8:16], y[8:16], batch_size=8, verbose=0, callbacks=callbacks)
    assert state(model) != before
    place = max((os.path.join("kept", name) for name in os.listdir("kept")), key=os.path.getmtime)
    snapshot = reprokit.capture.load(place)
    assert snapshot.framework == "keras" and numpy.isnan(snapshot.batches[0][0]).sum() == 1
    snapshot.restore(model, model.optimizer)
    assert state(model) == before
    try:
        snapshot.restore(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    except reprokit.capture.BadSnapshot as error:
        print(error)

train(keras.Sequential(layers()), [reprokit.capture.keras.Callback(directory="kept", on_nan="skip")])
train(Guarded(layers()), [])
print("done")
"""


@pytest.mark.tensorflow
def test_a_callback_and_a_guarded_model_of_keras(tmp_path: Path) -> None:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(python(KERAS), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert done.stdout.count("which the snapshot lacks") == 2
    assert done.stderr.count("reprokit: captured: step ") == 2
