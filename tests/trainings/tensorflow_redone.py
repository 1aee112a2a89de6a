"""Trainings of which each has one bad sample; a test puts in TRAININGS those that a process makes, and EPOCHS."""

import keras
import numpy as np
import tensorflow as tf

EPOCHS = 1
layers = keras.layers
x = np.random.rand(64, 8).astype("float32")
y = np.random.randint(0, 3, 64)


def sizes(truth, predicted):
    return tf.reduce_mean(tf.sqrt(predicted * truth))


def fit():
    truth = np.ones((64, 3), "float32")
    truth[37, 1] = 0.0  # sqrt(0) has no finite gradient
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax"),
        ]
    )
    model.compile("adam", sizes, jit_compile=False)
    model.fit(x, truth, batch_size=16, epochs=1, verbose=0, shuffle=False)


def softmax(logits):
    powers = tf.exp(tf.abs(logits) * 10.0)
    return powers / tf.reduce_sum(powers, axis=1, keepdims=True)


def parts():
    inputs = x.copy()
    inputs[37] = 1000.0
    model = keras.Sequential([layers.Dense(8), layers.Dropout(0.3), layers.Dense(3)])
    return model, keras.optimizers.Adam(), tf.data.Dataset.from_tensor_slices((inputs, y)).batch(16)


def step(model, optimizer, inputs, labels):
    with tf.GradientTape() as tape:
        probabilities = softmax(model(inputs, training=True))
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(labels, probabilities))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def function():
    model, optimizer, batches = parts()

    @tf.function
    def scaled(inputs):
        return inputs * 1.0

    @tf.function
    def train_step(inputs, labels):
        step(model, optimizer, inputs, labels)

    for inputs, labels in batches:
        train_step(scaled(inputs), labels)


def eager():
    model, optimizer, batches = parts()
    for _ in range(EPOCHS):
        for inputs, labels in batches:
            step(model, optimizer, inputs, labels)


def shuffled():
    model, optimizer, batches = parts()

    @tf.function
    def train_step(inputs, labels):
        step(model, optimizer, tf.random.shuffle(inputs), labels)

    for inputs, labels in batches:
        train_step(inputs, labels)


def by_hand():
    model, optimizer, _ = parts()
    data, labels, weights = x.copy(), y, tf.ones([3])
    data[37] = 1000.0
    for start in [*range(0, 64, 16)] * EPOCHS:
        batch, wanted = {"inputs": data[start : start + 16]}, labels[start : start + 16]
        with tf.GradientTape() as tape:
            probabilities = softmax(model(batch["inputs"], training=True))
            losses = keras.losses.sparse_categorical_crossentropy(wanted, probabilities)
            loss = tf.reduce_mean(losses) * tf.reduce_sum(weights)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def by_number():
    data, weights, optimizer = x.copy(), tf.Variable(tf.ones([8, 1])), keras.optimizers.SGD(1e-3)
    data[37] = 0.0

    def distances(inputs):
        return tf.norm(inputs @ weights, axis=1)

    for start in [*range(0, 64, 16)] * EPOCHS:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(distances(data[start : start + 16]))
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])


def summed():
    data, weights, optimizer = np.abs(x), tf.Variable(tf.ones([8, 3])), keras.optimizers.SGD(1e-3)
    data[32:40] = 0.0  # whose variance is 0 whatever the weights, and in whichever order it is summed
    total = tf.Variable(tf.zeros([8, 3]))
    for number, inputs in enumerate(tf.data.Dataset.from_tensor_slices(data).batch(8).repeat(EPOCHS)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.math.log(tf.math.reduce_variance(inputs @ weights, axis=0)))
        total.assign_add(tape.gradient(loss, weights))
        if number % 2:
            optimizer.apply_gradients([(total, weights)])
            total.assign(tf.zeros([8, 3]))


TRAININGS = []
for training in TRAININGS:
    training()
