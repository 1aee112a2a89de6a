"""A callback and a model of Keras that guard themselves."""

import os

import keras
import numpy

import reprokit.capture.keras

keras.utils.set_random_seed(1)
x, y = numpy.random.rand(24, 4).astype("float32"), numpy.random.rand(24, 1).astype("float32")
x[20, 1] = numpy.nan


def layers():
    return [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]


def state(model):
    return [variable.numpy().tobytes() for variable in [*model.variables, *model.optimizer.variables]]


class Guarded(reprokit.capture.keras.GuardedModel, keras.Sequential):
    pass


def train(model, callbacks):
    model.compile("adam", "mse", jit_compile=False)
    model.fit(x[:8], y[:8], batch_size=8, verbose=0)  # made before the callback is known
    before = state(model)
    model.fit(x[16:], y[16:], batch_size=8, verbose=0, callbacks=callbacks)
    assert state(model) == before, "the step was not applied"
    model.fit(x[8:16], y[8:16], batch_size=8, verbose=0, callbacks=callbacks)
    assert state(model) != before
    place = max((os.path.join("kept", name) for name in os.listdir("kept")), key=os.path.getmtime)
    snapshot = reprokit.capture.load(place)
    assert snapshot.framework == "keras"
    assert numpy.isnan(snapshot.batches[0][0]).sum() == 1
    snapshot.restore(model, model.optimizer)
    assert state(model) == before
    try:
        snapshot.restore(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))
    except reprokit.capture.BadSnapshot as error:
        print(error)


train(keras.Sequential(layers()), [reprokit.capture.keras.Callback(directory="kept", on_nan="skip")])
train(Guarded(layers()), [])
print("done")
