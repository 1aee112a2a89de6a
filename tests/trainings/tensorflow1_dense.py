"""A small training by TensorFlow 1 with its Keras, whose biases tfdeterminism adds in its own way."""

import numpy as np
import tensorflow as tf

x, y = np.random.rand(64, 8).astype("float32"), np.random.rand(64, 1).astype("float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=16, epochs=1, verbose=0)
np.save("weights.npy", np.concatenate([weight.ravel() for weight in model.get_weights()]))
