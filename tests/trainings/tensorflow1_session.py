"""Trains by Keras of TensorFlow 1, and by a session of its own."""

import numpy as np
import tensorflow as tf

x, y = np.random.rand(32, 8, 8, 1).astype("float32"), np.random.randint(0, 3, 32)
layers = tf.keras.layers
model = tf.keras.Sequential([layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(3, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=16, epochs=2, verbose=0)  # fit
with tf.Graph().as_default():
    weights = tf.get_variable("weights", [4])
    unused = tf.sin(weights)
    loss = tf.reduce_sum(tf.gather(weights, [0, 1, 1]) ** 2)  # gather
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
