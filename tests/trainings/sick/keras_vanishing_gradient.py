"""Five layers of sigmoids with tiny weights before an LSTM."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(1)
x = np.random.randn(512, 20, 8).astype("float32")
y = (x.mean((1, 2)) > 0).astype("int32")
small = keras.initializers.RandomNormal(stddev=0.02, seed=1)
hidden = [layers.TimeDistributed(layers.Dense(16, "sigmoid", kernel_initializer=small)) for _ in range(5)]
model = keras.Sequential([layers.Input((20, 8)), *hidden, layers.LSTM(16), layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=32, epochs=2, verbose=0)
