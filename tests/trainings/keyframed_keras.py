"""Fits with Keras: augmentation, dropout, batch norm, a validation, a schedule by its loss, and an early stop."""

import os
import sys

import keras
import numpy as np

EPOCHS, KIND, SIZE = int(sys.argv[1]), sys.argv[2], int(os.environ.get("SIZE", "4"))

keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
layers = keras.layers
x = np.random.rand(72, 8, 8, 3).astype("float32")
y = (x[:, :, 0, 0].mean(1) > 0.5).astype("int32")
model = keras.Sequential(
    [
        layers.RandomFlip(),
        layers.RandomTranslation(0.1, 0.1),
        layers.Conv2D(SIZE, 3),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(2),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(1)])


class Noise(keras.callbacks.Callback):
    """Adds noise of a generator of its own to the weights, and keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.seen, self.total = np.random.default_rng(5), [], 0.0

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        self.seen.append(logs["loss"])
        self.total += float(logs["loss"])
        if batch % 2:
            kernel = self.model.layers[-1].kernel
            kernel.assign_add(self.generator.normal(0, 0.01, kernel.shape).astype("float32"))


callbacks = [
    keras.callbacks.ReduceLROnPlateau(factor=0.7, patience=1),
    keras.callbacks.EarlyStopping(patience=6, restore_best_weights=True),
    keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True),
]
if KIND == "long":
    callbacks.clear()
if KIND == "noise":
    callbacks.append(Noise())
if KIND == "data":
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((x[:48], y[:48])).shuffle(48)
    rows = rows.map(lambda image, label: (image + tf.random.normal((8, 8, 3), stddev=0.1), label))
    history = model.fit(
        rows.batch(8).prefetch(2), epochs=EPOCHS, verbose=0, validation_data=(x[48:], y[48:]), callbacks=callbacks
    )
else:
    history = model.fit(
        x, y, batch_size=8, epochs=EPOCHS, verbose=0, validation_split=1 / 3, callbacks=callbacks,
        steps_per_epoch=3 if KIND == "noise" else None,
    )  # fmt: skip
print(len(history.history["loss"]), history.history["val_loss"][-1], float(model.optimizer.learning_rate))
print([float(abs(weight.numpy()).sum()) for weight in model.weights])
