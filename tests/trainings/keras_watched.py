"""Uses Keras where the agent fails, and tells signatures of what it watches."""

import inspect
import sys

import keras
import numpy as np

CASE = "failing"


class Odd(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["odd"] = object()


def failing():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((4, 2)), np.ones((4, 1))
    model.fit(x, y, verbose=0, callbacks=[Odd()])
    sys.modules["keras.src.callbacks"].Callback = None
    model.fit(x, y, verbose=0)
    model.predict(x, verbose=0)
    print("done")
    return model


def signatures():
    for function in (keras.Model.fit, keras.Model.evaluate, keras.Model.predict, keras.optimizers.Adam.apply):
        print(function.__module__, function.__qualname__, inspect.signature(function))


alive = globals()[CASE]()  # what a case returns lives until the process ends
