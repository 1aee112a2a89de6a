"""Trainings that one process makes one after the other, bare or watched; each says what its weights have come to."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from typing import ClassVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy
import tensorflow

BAD = 5  # the batch that holds a NaN


def data(bad: int | None = BAD) -> tuple[numpy.ndarray, numpy.ndarray]:
    generator = numpy.random.default_rng(0)
    x = generator.standard_normal((64, 8)).astype("float32")
    y = generator.standard_normal((64, 1)).astype("float32")
    if bad is not None:
        y[bad * 8 + 3] = numpy.nan
    return x, y


def model() -> keras.Model:
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    dense = [layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    return keras.Sequential([keras.Input((8,)), *dense])


def fit(mode: str, bad: int | None, steps: int = 1) -> keras.Model:
    made = model()
    options = {"jit_compile": mode == "xla", "run_eagerly": mode == "eager", "steps_per_execution": steps}
    made.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"], **options)
    x, y = data(bad)
    made.fit(x, y, batch_size=8, verbose=0, shuffle=False, sample_weight=numpy.ones(64, "float32"))
    return made


def loop(mode: str, bad: int | None) -> keras.Model:
    made, optimizer, loss = model(), keras.optimizers.SGD(1e-2, momentum=0.9), keras.losses.MeanSquaredError()
    noise = tensorflow.random.Generator.from_seed(4)

    def step(x: tensorflow.Tensor, y: tensorflow.Tensor) -> tensorflow.Tensor:
        with tensorflow.GradientTape() as tape:
            value = loss(y, made(x + noise.normal(tensorflow.shape(x), stddev=0.01), training=True))
        gradients = tape.gradient(value, made.trainable_variables)
        optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))
        return value

    if mode != "eager":
        step = tensorflow.function(step, jit_compile=mode == "xla")
    for x, y in tensorflow.data.Dataset.from_tensor_slices(data(bad)).batch(8):
        step(x, y)
    return made


def scaled(bad: int | None) -> keras.Model:
    """Overflows of a scaled loss are no alarms."""
    made = model()
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2), initial_scale=2.0**126)
    made.compile(optimizer, "mse", jit_compile=False)
    x, y = data(bad)
    made.fit(x * 100, y, batch_size=8, verbose=0, shuffle=False)
    return made


def restored(bad: int | None) -> keras.Model:
    """A model of this script with the state of the snapshot that REPROKIT_SNAPSHOT names."""
    import reprokit.capture

    made = model()
    made.compile(keras.optimizers.Adam(1e-2), "mse", metrics=["mae"])
    made.optimizer.build(made.trainable_variables)
    reprokit.capture.load(os.environ["REPROKIT_SNAPSHOT"]).restore(made, made.optimizer)
    return made


def in_code(bad: int | None) -> keras.Model:
    """A watch that the script itself asks for."""
    import reprokit.capture.keras

    class Guarded(reprokit.capture.keras.GuardedModel, keras.Model):  # type: ignore[misc]
        reprokit_options: ClassVar = {"directory": "by-script", "on_nan": "skip", "capture_when": ["activations"]}

    plain = model()
    made = Guarded(plain.inputs, plain.outputs)
    made.compile(keras.optimizers.SGD(1e-2), "mse", jit_compile=False)
    x, y = data(None)
    x[BAD * 8] = 3e38
    callbacks = [reprokit.capture.keras.Callback(directory="by-script", on_nan="skip")]
    made.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)
    return made


TRAININGS: dict[str, Callable[[int | None], keras.Model]] = {
    "restored": restored,
    "in-code": in_code,
    **{f"fit-{mode}": functools.partial(fit, mode) for mode in ("xla", "graph", "eager")},
    **{f"loop-{mode}": functools.partial(loop, mode) for mode in ("xla", "graph", "eager")},
    "several": functools.partial(fit, "graph", steps=4),
    "scaled": scaled,
}


def main() -> None:
    bad = None if sys.argv[1] == "good" else BAD
    for name in sys.argv[2:]:
        made = TRAININGS[name](bad)
        weights = made.get_weights()
        finite = all(numpy.isfinite(weight).all() for weight in weights)
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest()[:16]
        print(name, "finite" if finite else "not-finite", digest, flush=True)


if __name__ == "__main__":
    main()
