"""Fits with a backup, and with a callback that keeps the best model so far: its best value is in no checkpoint."""

import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(128, 4)).astype("f4")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [
    keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
    keras.callbacks.ModelCheckpoint("best.keras", monitor="loss", mode="max", save_best_only=True),
]
model.fit(x, x[:, :1] * 2, epochs=6, batch_size=32, shuffle=False, verbose=0, callbacks=callbacks)
print("best", keras.models.load_model("best.keras").evaluate(x, x[:, :1] * 2, verbose=0))
