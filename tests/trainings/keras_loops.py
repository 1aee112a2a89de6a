"""Loops that apply gradients themselves, eager and compiled."""

import numpy as np
import tensorflow as tf

x, y = tf.random.normal((32, 8)), tf.random.uniform((32,), 0, 3, dtype=tf.int32)


def main():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(3)])
    optimizer = tf.keras.optimizers.Adam()
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in range(5):
        step()
    np.savez("end.npz", *model.get_weights())
    return [weight.path for weight in model.weights]


names = main()

free = tf.Variable([1.0, 2.0])
sgd = tf.keras.optimizers.SGD(0.25)
for _ in range(2):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(free * free)
    sgd.apply_gradients([(tape.gradient(loss, free), free)])

with tf.Graph().as_default():
    weight = tf.compat.v1.get_variable("weight", initializer=[1.0, 2.0])
    train = tf.compat.v1.train.GradientDescentOptimizer(0.25).minimize(tf.reduce_sum(weight * weight))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(train)
tf.random.set_seed(5)
print("\n".join(names))
