"""Trains LeNet-1, LeNet-4 or LeNet-5 on scikit-learn's digits with TensorFlow 1.14 to 2.x, and seeds nothing.

The digits are scaled up to the 28 x 28 pixels that the LeNets were made for, and split at random into
training, validation and test.
"""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

layers = tf.keras.layers

# Filters of the two convolutions, then the units of the dense layers before the last.
MODELS = {"LeNet-1": (4, 12, []), "LeNet-4": (4, 16, [120]), "LeNet-5": (6, 16, [120, 84])}


def load():
    """Images and labels of training, validation and test."""
    digits = load_digits()
    images = np.kron(digits.images, np.ones((1, 3, 3))) / 16  # 24 x 24
    images = np.pad(images, ((0, 0), (2, 2), (2, 2)), "constant")[..., np.newaxis].astype("float32")
    order = np.random.permutation(len(images))
    parts = np.split(order, [1197, 1497])
    return [(images[part], digits.target[part]) for part in parts]


def build(name):
    """The LeNet of this name."""
    first, second, dense = MODELS[name]
    model = tf.keras.Sequential()
    model.add(layers.Conv2D(first, 5, activation="tanh", padding="valid" if name == "LeNet-1" else "same"))
    model.add(layers.AveragePooling2D(2))
    model.add(layers.Conv2D(second, 5, activation="tanh"))
    model.add(layers.AveragePooling2D(2))
    model.add(layers.Flatten())
    for units in dense:
        model.add(layers.Dense(units, activation="tanh"))
    model.add(layers.Dense(10, activation="softmax"))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    """Train, print losses and accuracy, save the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="LeNet-5")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", default="lenet_tensorflow.npz", help="where the weights go")
    options = parser.parse_args()
    (images, labels), validation, (test_images, test_labels) = load()
    model = build(options.model)
    history = model.fit(images, labels, batch_size=32, epochs=options.epochs, validation_data=validation, verbose=0)
    losses = zip(history.history["loss"], history.history["val_loss"])  # noqa: B905 (CPython 3.7)
    for epoch, (trained, validated) in enumerate(losses):
        print(f"epoch {epoch + 1}: loss {trained:.6f}, validation loss {validated:.6f}")
    loss, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    print(f"{options.model}: test loss {loss:.6f}, test accuracy {accuracy:.4f}")
    predicted = model.predict(test_images).argmax(axis=1)
    for digit in range(10):
        print(f"  digit {digit}: {np.mean(predicted[test_labels == digit] == digit):.4f}")
    np.savez(options.output, *model.get_weights())


if __name__ == "__main__":
    main()
