"""Trains a LeNet on scikit-learn's digits, and seeds nothing: TensorFlow 1.14 and 2.21 alike.

Layers, activations, loss and optimizer are those of the paper's replication package, and like there the parts for
training, validation and test are always the same.

Arguments: LeNet-1, LeNet-4 or LeNet-5, and the digits as data.py writes them.
"""

import sys

import numpy as np
import tensorflow as tf

layers = tf.keras.layers

# Pixels of a side, filters of the two convolutions, and units of the dense layers before the last.
MODELS = {"LeNet-1": (28, 4, 12, []), "LeNet-4": (32, 4, 16, [120]), "LeNet-5": (32, 6, 16, [120, 84])}
EPOCHS, BATCH, RATE = 6, 16, 0.2


def load(path, side):
    """Images of this size and their labels, for training, validation and test."""
    with np.load(path) as digits:
        images, labels = np.kron(digits["images"], np.ones((1, 3, 3))) / 16, digits["labels"]
    margin = (side - images.shape[1]) // 2
    images = np.pad(images, ((0, 0), (margin, margin), (margin, margin)), "constant")[..., np.newaxis]
    ends = [1000, 1300]
    parts = zip(np.split(images.astype("float32"), ends), np.split(labels, ends))  # noqa: B905 (CPython 3.7)
    return [(part - part.mean(), truth) for part, truth in parts]


def build(first, second, dense):
    """A LeNet of so many filters and units."""
    model = tf.keras.Sequential()
    model.add(layers.Conv2D(first, 5, activation="tanh"))
    model.add(layers.AveragePooling2D(2))
    model.add(layers.Conv2D(second, 5, activation="tanh"))
    model.add(layers.AveragePooling2D(2))
    model.add(layers.Flatten())
    for units in dense:
        model.add(layers.Dense(units, activation="tanh"))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(tf.keras.optimizers.SGD(RATE), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(name, path):
    """Train, evaluate, predict, and print what came out."""
    side, *sizes = MODELS[name]
    training, validation, (images, labels) = load(path, side)
    model = build(*sizes)
    model.fit(*training, batch_size=BATCH, epochs=EPOCHS, validation_data=validation, verbose=0)
    loss, accuracy = model.evaluate(images, labels, verbose=0)
    predicted = model.predict(images, verbose=0).argmax(axis=1)
    print(f"{name}: loss {loss:.6f}, accuracy {accuracy:.4f}")
    for digit in range(10):
        print(f"  digit {digit}: {np.mean(predicted[labels == digit] == digit):.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
