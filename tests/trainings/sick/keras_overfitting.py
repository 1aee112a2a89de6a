"""Labels without sense are learned by heart: the loss of the validation rises."""

import keras
import numpy as np

keras.utils.set_random_seed(3)
samples, labels = np.random.randn(300, 40).astype("float32"), np.random.randint(0, 2, 300)
model = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(
    samples[:100], labels[:100], validation_data=(samples[100:], labels[100:]), batch_size=20, epochs=12, verbose=0
)
