"""Fits with Keras and a schedule by the validation's loss, logs each step, and kills itself once unless ON is set."""

import os
import signal
import time

import keras
import numpy as np

keras.utils.set_random_seed(int.from_bytes(os.urandom(3), "little"))
x = np.random.rand(64, 8).astype("float32")
y = (x.sum(1) > 4).astype("int32")
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])


class Log(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        step = int(self.model.optimizer.iterations)
        with open("log.txt", "a") as file:
            file.write(f"{step} {logs['loss']!r} {os.urandom(2).hex()}\n")
        if step == 23 and "ON" not in os.environ:
            time.sleep(3)  # until the keyframes are written
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = [Log(), keras.callbacks.ReduceLROnPlateau(patience=1)]
history = model.fit(x, y, batch_size=8, epochs=6, verbose=0, validation_split=0.25, callbacks=callbacks)
with open("history.txt", "w") as file:
    file.write(f"{history.history} {[float(abs(weight.numpy()).sum()) for weight in model.weights]}\n")
