"""A training by TensorFlow 1 whose settings, pipeline and functions are noted with their lines."""

import numpy as np
import tensorflow as tf

data = tf.data.Dataset.from_tensor_slices(np.ones((32, 4), "float32")).map(lambda x: (x, x[0]), num_parallel_calls=2)
data = data.batch(8).repeat()
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
model.compile("sgd", "mse")
model.fit(data, epochs=1, steps_per_epoch=4, verbose=0)
config = tf.ConfigProto(intra_op_parallelism_threads=1)
with tf.Session(config=config) as session:
    session.run(tf.constant(1))
