"""Evaluates in pieces that are small, and in one that fails."""

import os

import numpy as np

os.environ["KERAS_BACKEND"] = "torch"
import _reprokit_agent.predictions.log as prediction_log
import _reprokit_agent.tensorflow.evaluation as evaluation
import keras

prediction_log.MAX_WAITING_BYTES, evaluation.SHARE = 500, 3000
x, y = np.random.RandomState(0).rand(100, 4).astype("float32"), np.arange(100) % 2
model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=3, validation_data=(x, y), batch_size=10, verbose=0)
accuracy = model.evaluate(x, y, batch_size=10, verbose=0)[1]
np.savez("end.npz", accuracy, model.predict(x, verbose=0))
failing = keras.callbacks.LambdaCallback(on_test_batch_end=lambda *_, **__: 1 / 0)
try:
    model.evaluate(x, y, callbacks=[failing], verbose=0)
except ZeroDivisionError:
    model.evaluate(x[:30], y[:30], verbose=0)
