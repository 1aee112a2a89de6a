"""Trains by most of what Keras of TensorFlow 1.14 has, and by a session of its own."""

import json

import numpy as np
import tensorflow as tf

import reprokit

x, y = np.random.rand(48, 8).astype("float32"), np.random.randint(0, 3, 48)


def batches():
    while True:
        yield x[:16], y[:16]


def main():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3, "softmax")]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0, validation_split=0.25)
    model.fit(x, y, 48, max_queue_size=5, epochs=1, verbose=0)
    model.fit_generator(batches(), steps_per_epoch=3, epochs=1, verbose=0, validation_data=(x, y))
    evaluated = model.evaluate(x, y, verbose=0)
    predicted = model.predict(x)
    reprokit.log(accuracy=evaluated[1])
    np.savez("end.npz", predicted, *model.get_weights())
    names = [weight.name for weight in model.weights]
    with open("results.json", "w") as file:
        json.dump(
            [
                {name: [float(v) for v in values] for name, values in history.history.items()},
                [float(value) for value in evaluated],
                names,
            ],
            file,
        )


main()
tf.compat.v1.set_random_seed(3)
with tf.Graph().as_default():
    weight = tf.get_variable("weight", initializer=[1.0, 2.0])
    train = tf.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(weight * weight))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
