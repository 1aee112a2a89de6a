"""Calls TensorFlow functions as they are, then operator by operator as locate does, and says whether bits are equal."""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

from reprokit.agent.operators.log import CallLog
from reprokit.agent.operators.tensorflow.log import TensorflowCalls
from reprokit.core import native

# It rewrites graphs so that the last bit of some sums is another.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
OPERATORS = {"lstm": "MatMul", "branches": "Mul", "compiled": "tf.function compiled"}


class Trained:
    """A model that fits."""

    def __init__(self):
        keras.utils.set_random_seed(3)
        layers = [keras.layers.LSTM(5, dropout=0.2), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
        self.model = keras.Sequential(layers)
        self.model.compile("adam", "mse")

    def __call__(self):
        generator = np.random.default_rng(0)
        inputs, targets = generator.random((36, 4, 2), np.float32), generator.random((36, 3), np.float32)
        losses = self.model.fit(inputs, targets, batch_size=16, epochs=2, verbose=0, shuffle=False).history["loss"]
        return [losses, [value.tolist() for value in self.model.get_weights()]]


def branches():
    @tf.function
    def looped(x):
        total = tf.zeros([3])
        for value in tf.range(5):
            total += tf.cond(value % 2 == 0, lambda: x * 3.0, lambda: -x) + tf.switch_case(
                value % 3, [lambda: x, lambda: x * x, lambda: tf.exp(x)]
            )
        return total

    with tf.GradientTape() as tape:
        x = tf.constant([0.1, 0.2, 0.3])
        tape.watch(x)
        result = looped(x)
    return [result.numpy().tolist(), tape.gradient(result, x).numpy().tolist()]


def compiled():
    state = tf.Variable([1.0, 2.0])

    @tf.function(jit_compile=True)
    def compiled(x):
        state.assign_add(tf.sin(x))
        return tf.reduce_sum(state * x)

    return [float(compiled(tf.constant([0.3, 0.4]))), state.numpy().tolist()]


def begin_log(directory):
    """Return a log as an agent has it, and what it is of."""
    Path(directory, "plan.json").write_text(json.dumps({"library": str(native.trail_path())}))
    Path(directory, "answers").mkdir()

    def failed(function, error):
        raise AssertionError(f"{function} failed") from error

    agent = SimpleNamespace(run=directory, journal=SimpleNamespace(identity="0"), warn=print, failed=failed)
    agent.attempt = lambda function, *arguments: function(*arguments)
    agent.listeners = []
    log = CallLog(agent, {"steps": {"first": 0}, "operators": {}})
    calls = TensorflowCalls(log)
    log.begin(calls)
    calls.watch(False)
    for _, listener in agent.listeners:
        listener("tensorflow", tf)
    return log, calls


def names(log, directory):
    log._files.write()
    lines = [json.loads(line) for line in next(Path(directory, "answers").glob("*.names")).read_text().splitlines()]
    return [line["name"] for line in lines if line["kind"] == "operator"]


with tempfile.TemporaryDirectory() as place:
    kept, watched = begin_log(place)
    for name, make in {"lstm": Trained, "branches": lambda: branches, "compiled": lambda: compiled}.items():
        expected, again = make()(), make()
        before = len(names(kept, place)) if kept._files.count else 0
        watched.watch(True)
        found = again()
        watched.watch(False)
        new = names(kept, place)[before:]
        assert OPERATORS[name] in new, new
        once = ", one call" if name == "compiled" and "Sin" not in new else ""
        print(f"{name}: {'equal' if found == expected else 'different'}{once}")
