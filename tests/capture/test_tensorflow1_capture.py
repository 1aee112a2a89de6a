"""TensorFlow 1.14's Keras: what is captured, what a step changes then, and the step done again."""

from __future__ import annotations

import json

import numpy
import pytest

from reprokit.capture import load
from tests.capture.tensorflow_steps import Steps
from tests.interpreters import tf114_python

pytestmark = [pytest.mark.tf114, pytest.mark.slow]

SCRIPT = """
import os, sys
import numpy as np, tensorflow as tf

layers, backend = tf.keras.layers, tf.keras.backend

def loss(truth, predicted):
    return tf.reduce_mean(tf.sqrt(predicted * truth))

def build():
    model = tf.keras.Sequential([
        layers.Dense(UNITS), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3, "softmax")])
    model.compile(tf.keras.optimizers.Adam(clipnorm=100.0), loss, metrics=["mae"])
    return model

class Look(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        weights = backend.batch_get_value(self.model.weights + self.model.optimizer.weights)
        np.savez("after-%d.npz" % (batch + 3 * self.epoch), *weights)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

x = np.random.rand(48, 8).astype("float32")
y = np.ones((48, 3), "float32")
y[37, 1] = 0.0  # sqrt(0) has no finite gradient
np.save("batch.npy", x[32:])
model = build()
try:
    model.fit(x, y, batch_size=16, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[Look()])
finally:
    np.savez("end.npz", *backend.batch_get_value(model.weights))
"""


def script(units: int = 8, epochs: int = 2) -> str:
    return SCRIPT.replace("UNITS", str(units)).replace("EPOCHS", str(epochs))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    python = tf114_python()
    if python is None:
        pytest.skip("REPROKIT_TF114_PYTHON names no Python 3.7 with TensorFlow 1.14")
    found = Steps(tmp_path_factory.mktemp("tf114"), python)
    done = found.capture(script())
    assert done.returncode == 123, done.stderr
    assert "captured: step 2: gradient of" in done.stderr
    assert "the step was not applied" in done.stderr
    return found


def test_the_state_is_that_before_the_step(steps: Steps) -> None:
    snapshot = load(steps.snapshots[0])
    header = steps.header()
    with numpy.load(steps.directory / "after-1.npz") as file:  # after the step before
        before = list(file.values())
    names = list(header["models"][0]["tensors"].values())
    names += [node["tensor"] for _, node in header["optimizers"][0]["state"]["dict"]]
    assert len(names) == len(before)
    assert all(numpy.array_equal(snapshot.tensors[name], array) for name, array in zip(names, before, strict=True))
    with numpy.load(steps.directory / "end.npz") as file:  # also in the session, the moving averages among them
        assert all(numpy.array_equal(ours, kept) for ours, kept in zip(file.values(), before, strict=False))
    assert numpy.array_equal(snapshot.tensors["batch.0.input_1:0"], numpy.load(steps.directory / "batch.npy"))
    assert (header["step"], header["epoch"], header["steps_in_epoch"], len(header["losses"])) == (2, 0, 2, 2)
    assert header["trigger"]["kind"] == "gradient"
    assert len(header["gradient_digests"]) == 6
    bad = snapshot.tensors[header["gradients"]["sequential/dense_1/bias"]]
    assert not numpy.isfinite(bad).all()
    assert [name for name in snapshot.tensors if name.startswith("random.")], "the dropout's numbers"


def test_the_same_step_again_and_the_smallest_part_of_its_batch(steps: Steps) -> None:
    found, done = steps.redo("minimise", script())
    assert done.returncode == 0, done.stderr
    assert found["reproduced"] is True
    assert found["gradients"] == {"equal": 6, "different": [], "nonfinite_equal": True}
    assert found["loss"]["equal"] is True
    assert (found["samples"], found["of"], found["smallest"], found["only_full"]) == ([5], 16, True, False)
    told = [line for line in steps.progress() if "text" in line]
    assert len(told) == found["trials"]
    assert told[-1] == {"text": "1 of 16 samples: again", "samples": [5], "reproduced": True}


def test_the_operation_that_began_it(steps: Steps) -> None:
    found, _ = steps.redo("explain", script())
    assert (found["phase"], found["operation"], found["gradient_of"]) == ("backward", "SqrtGrad", "Sqrt")
    line = script().splitlines().index("    return tf.reduce_mean(tf.sqrt(predicted * truth))") + 1
    assert found["where"][0][1:] == [line, "loss"]
    assert found["inputs"][0]["zeros"] == 1
    assert "sqrt of 0 has an infinite gradient; 1 of 48 inputs are 0" in found["words"]


def test_another_model_is_told_by_tensor_and_shape(steps: Steps) -> None:
    found, _ = steps.redo("reproduce", script(units=9))
    assert "sequential/dense/kernel has the shape [8, 9] in the script, [8, 8] in the snapshot" in found["trouble"]


def test_skipped_steps_change_nothing_and_the_training_goes_on(steps: Steps) -> None:
    other = Steps(steps.directory / "skip", steps.python)
    other.directory.mkdir()
    done = other.capture(script(), "skip")
    assert done.returncode == 0, done.stderr
    assert [json.loads((path / "snapshot.json").read_text())["step"] for path in other.snapshots] == [2, 5]
    states = []
    for number in range(6):
        with numpy.load(other.directory / f"after-{number}.npz") as file:
            states.append(list(file.values()))
    same = [all(map(numpy.array_equal, states[number], states[number + 1])) for number in range(5)]
    assert same == [False, True, False, False, True]
    assert all(numpy.isfinite(array).all() for array in states[-1])
