"""A head on a frozen body; then all of it is trained by a second optimizer."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(24)
body = keras.Sequential(
    [layers.Input((20,)), layers.Dense(32, "relu"), layers.BatchNormalization(), layers.Dense(16, "relu")]
)
x = np.random.randn(900, 20).astype("float32")
y = (x[:, :4].sum(1) > 0).astype("int32")
inputs = keras.Input((20,))
model = keras.Model(inputs, layers.Dense(2)(body(inputs, training=False)))
for body.trainable, rate, epochs in ((False, 1e-2, 1), (True, 1e-3, 2)):
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, batch_size=30, epochs=epochs, verbose=0)
