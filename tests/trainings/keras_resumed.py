"""Fits with Keras, saves after each epoch as its documentation says, and goes on from there. Arguments: parts left out.

"executions" takes four steps at once. "backup" has BackupAndRestore do it ("within": after each fourth step); else
ModelCheckpoint does, and the script keeps what that leaves out. "load" has it save the whole model, which is loaded
again.
"""

import json
import os
import sys

import keras
import numpy as np

LEFT_OUT = frozenset(sys.argv[1:])  # "optimizer", "seeds", "position"; or "backup", "load", "executions"
IS_LOADED = "load" in LEFT_OUT
WEIGHTS, REST = "model.keras" if IS_LOADED else "model.weights.h5", "rest.json"
EPOCHS, SAMPLES, BATCH = 4, 48, 8

keras.utils.set_random_seed(int.from_bytes(os.urandom(4), "little"))
x = np.random.standard_normal((SAMPLES, 6)).astype("float32")
y = x.sum(1)


class Shuffled(keras.utils.PyDataset):
    """Batches in an order that the number of the epoch decides."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, number):
        order = np.random.default_rng(self.epoch).permutation(SAMPLES)[BATCH * number : BATCH * (number + 1)]
        return x[order], y[order]

    def on_epoch_begin(self):
        self.epoch += 1


class Rest(keras.callbacks.Callback):
    """Keeps what weights lack: states of seed generators, and how many epochs are over."""

    def on_epoch_end(self, epoch, logs=None):
        states = [dropout.seed_generator.state.numpy().tolist()]
        with open(REST, "w") as file:
            json.dump({"seeds": states, "epoch": epoch + 1}, file)


dropout = keras.layers.Dropout(0.25)
layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), dropout, keras.layers.Dense(1)]
model = keras.Sequential(layers)
rest = {"epoch": 0}
if os.path.exists(WEIGHTS) and "optimizer" in LEFT_OUT:
    model.load_weights(WEIGHTS, skip_mismatch=True)
model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=4 if "executions" in LEFT_OUT else 1)
if os.path.exists(WEIGHTS):
    if IS_LOADED:
        model = keras.models.load_model(WEIGHTS)
    elif "optimizer" not in LEFT_OUT:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(WEIGHTS)
    with open(REST) as file:
        rest = json.load(file)
    if "seeds" not in LEFT_OUT:
        dropout.seed_generator.state.assign(rest["seeds"][0])
first = 0 if "position" in LEFT_OUT else rest["epoch"]
if "backup" in LEFT_OUT:
    backup = keras.callbacks.BackupAndRestore("backup", save_freq=4 if "within" in LEFT_OUT else "epoch")
    model.fit(x, y, BATCH, EPOCHS, verbose=0, callbacks=[backup])
else:
    callbacks = [keras.callbacks.ModelCheckpoint(WEIGHTS, save_weights_only=not IS_LOADED), Rest()]
    model.fit(Shuffled(first), epochs=EPOCHS, initial_epoch=first, shuffle=False, verbose=0, callbacks=callbacks)
