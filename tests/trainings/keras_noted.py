"""A fit by Keras whose learning rate becomes too large in its second epoch."""

import keras
import numpy as np

keras.utils.set_random_seed(3)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
x = np.random.rand(32, 4).astype("float32")
rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 if epoch == 0 else 1e30)
model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[rate])
