"""Trains an LSTM that foretells a heart's beat and stops early, and seeds nothing: TensorFlow 1.14 and 2.21 alike.

As of the paper's ModelX, an LSTM of the industry, the result is a number and training ends when validation gets worse.

Argument: the electrocardiogram as data.py writes it.
"""

import sys

import numpy as np
import tensorflow as tf

WINDOW, AHEAD = 16, 2
EPOCHS, PATIENCE, BATCH, RATE = 12, 1, 64, 0.02


def load(path):
    """Windows and what comes AHEAD values after each, for training, validation and test, in the order of time."""
    with np.load(path) as file:
        series = file["series"].astype("float32")
    series = (series - series.mean()) / series.std()
    count = len(series) - WINDOW - AHEAD
    windows = np.stack([series[start : start + WINDOW] for start in range(count)])[..., np.newaxis]
    values = series[WINDOW + AHEAD - 1 :][:count]
    ends = [count * 6 // 10, count * 8 // 10]
    return list(zip(np.split(windows, ends), np.split(values, ends)))  # noqa: B905 (CPython 3.7)


def main(path):
    """Train until validation gets worse, evaluate, predict, and print what came out."""
    training, validation, (windows, values) = load(path)
    model = tf.keras.Sequential([tf.keras.layers.LSTM(16, input_shape=(WINDOW, 1)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.Adam(RATE), "mse", metrics=["mae"])
    stop = tf.keras.callbacks.EarlyStopping(patience=PATIENCE, restore_best_weights=True)
    history = model.fit(
        *training, batch_size=BATCH, epochs=EPOCHS, validation_data=validation, callbacks=[stop], verbose=0
    )
    loss, error = model.evaluate(windows, values, verbose=0)
    predicted = model.predict(windows, verbose=0)[:, 0]
    print(f"{len(history.epoch)} epochs: loss {loss:.6f}, mean absolute error {error:.6f}")
    print(f"  values within 0.2: {np.mean(np.abs(predicted - values) < 0.2):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
