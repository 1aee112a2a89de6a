"""Keras with scaled losses: steps of infinite gradients are skipped until the scale is small enough."""

import sys

import keras
import numpy as np

keras.utils.set_random_seed(0)
keras.mixed_precision.set_global_policy("mixed_float16")
inputs = np.random.default_rng(0).random((48, 4)).astype("float32")
layers = [keras.layers.Dense(3, use_bias=False, name=name) for name in ("first", "last")]
model = keras.Sequential([keras.Input((4,)), *layers], name="model")
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25), initial_scale=2.0**20)
model.compile(optimizer, "mse", run_eagerly=sys.argv[1] == "eager")
model.fit(inputs, inputs[:, :3], batch_size=4, shuffle=False, verbose=0)
model.evaluate(inputs[:10], inputs[:10, :3], batch_size=8, verbose=0)
model.predict(inputs[:7], batch_size=4, verbose=0)
