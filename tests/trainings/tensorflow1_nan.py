"""Trains on NaN by Keras of TensorFlow 1."""

import numpy as np
import tensorflow as tf

layers = tf.keras.layers
model = tf.keras.Sequential([layers.Dense(4), layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.full((16, 8), np.nan), np.zeros((16, 1)), batch_size=8, verbose=0)
print("trained", np.isnan(model.predict(np.zeros((1, 8)))).all())
