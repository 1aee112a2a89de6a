"""A Keras LSTM regression with early stopping, so that the number of epochs itself can differ."""

import hashlib

import keras
import numpy as np


def main():
    time = np.linspace(0, 60, 700)
    series = np.sin(time) + 0.3 * np.random.standard_normal(700)
    windows = np.stack([series[i : i + 12] for i in range(680)])[..., None].astype("float32")
    targets = series[12:692].astype("float32")
    model = keras.Sequential([keras.layers.Input((12, 1)), keras.layers.LSTM(8), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    history = model.fit(
        windows[:600], targets[:600], validation_split=0.2, epochs=8, batch_size=64, callbacks=[stop], verbose=0
    )
    predictions = model.predict(windows[600:], verbose=0)
    print(len(history.epoch), float(np.abs(predictions[:, 0] - targets[600:]).mean()))
    model.save_weights("model.weights.h5")
    print(hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest())


if __name__ == "__main__":
    main()
