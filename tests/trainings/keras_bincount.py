"""A Keras training whose loss is weighed by a float bincount: with two threads its bits vary, whatever is recorded."""

import hashlib

import keras
import numpy
import tensorflow as tf
from sklearn.datasets import load_digits

BINS = 17  # shades of a pixel


class ShadeContrast(keras.layers.Layer):
    """Scales images by how much light there is in each shade of the batch."""

    def call(self, images):
        light = tf.reshape(images, [-1])
        shades = tf.cast(light * (BINS - 1), tf.int32)
        sums = tf.math.bincount(shades, weights=light, minlength=BINS, maxlength=BINS)
        return images * tf.math.reduce_std(sums) / tf.reduce_mean(sums)


def main():
    images, labels = load_digits(return_X_y=True)
    images = numpy.tile(numpy.sqrt(images / 16).astype("float32"), (4, 4))  # sums of sixteenths would be exact
    labels = numpy.tile(labels, 4)
    layers = [keras.layers.Input((256,)), ShadeContrast(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(images, labels, epochs=8, batch_size=1024, verbose=0)
    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    print(history.history["loss"][-1], hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
