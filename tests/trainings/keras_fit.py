"""Fits, evaluates and predicts with Keras, on the backend that KERAS_BACKEND names."""

import json

import keras
import numpy as np

x, y = np.random.rand(48, 8).astype("float32"), np.random.randint(0, 3, 48)


def main():
    layers = keras.layers
    model = keras.Sequential(
        [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [keras.callbacks.EarlyStopping(patience=9)]
    epochs = []
    remember = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(model.get_weights()))
    callbacks.append(remember)
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_split=0.25, callbacks=callbacks)
    assert len(callbacks) == 2
    again = model.fit(x, y, 16, 1, 0)
    evaluated = [model.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0, return_dict=True)]
    predicted = model.predict(x, verbose=0)
    trained = model.train_on_batch(x, y)
    names = [weight.path for weight in model.weights]
    with open("results.json", "w") as file:
        json.dump([history.history, again.history, evaluated, [float(value) for value in trained], names], file)
    np.savez("predicted.npz", predicted)
    np.savez("end.npz", *model.get_weights())
    for number, weights in enumerate(epochs):
        np.savez(f"epoch{number}.npz", *weights)


main()
try:
    keras.Sequential([keras.layers.Dense(1)]).fit(x, y)
except ValueError:
    print("refused")
keras.utils.set_random_seed(4)
