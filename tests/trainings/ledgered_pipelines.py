"""Trains on tf.data of many stages. Prints which numbers the elements of each step have at their source, and sums."""

import keras
import numpy as np
import tensorflow as tf

SIZE = 30
keras.utils.set_random_seed(1)
inputs = np.arange(SIZE, dtype="float32")[:, None]
with tf.io.TFRecordWriter("records") as file:
    for number in range(SIZE):
        file.write(b"%d" % number)
with open("lines", "w") as file:
    file.write("".join(f"{number}\n" for number in range(SIZE)))


def generated():
    yield from map(float, range(SIZE))


def read(text):
    return tf.strings.to_number(text)[None]


def changed(values):
    return values + tf.random.uniform([1]) / 2  # the number is left of the point


def is_even(values):
    return tf.cast(values[0], tf.int32) % 2 == 0


def paired(values, others):
    return values + others * 0


def numbers(batch):
    return batch.numpy()[:, 0].astype(int).tolist()


slices = tf.data.Dataset.from_tensor_slices(inputs)
alike = tf.data.Dataset.from_tensor_slices(inputs * 0)
files = tf.data.Dataset.from_tensor_slices(["records"])
generator = tf.data.Dataset.from_generator(generated, output_signature=tf.TensorSpec([], "float32"))
PIPELINES = {
    "repeated": slices.shuffle(10).repeat(2).batch(8),
    "mapped": slices.shuffle(10).map(changed).batch(8, drop_remainder=True),
    "parallel": slices.map(lambda values: values + 0.25, num_parallel_calls=2).shuffle(SIZE).batch(8),
    "records": tf.data.TFRecordDataset("records").map(read).shuffle(10).batch(7),
    "lines": tf.data.TextLineDataset("lines").shuffle(5).map(read).batch(7).prefetch(tf.data.AUTOTUNE),
    "generator": generator.map(lambda value: value[None]).shuffle(9).batch(5),
    "filtered": slices.shuffle(SIZE).map(changed).filter(is_even).batch(4),
    "cached": slices.shuffle(SIZE).map(changed).cache().shuffle(10).take(20).skip(3).batch(4),
    "zipped": tf.data.Dataset.zip((slices.map(changed), alike)).shuffle(SIZE).map(paired).batch(4),
    "interleaved": files.interleave(tf.data.TFRecordDataset).map(read).shuffle(8).padded_batch(4),
    "sharded": slices.shard(2, 1).shuffle(8).batch(4).map(changed),
}
weights, optimizer = tf.Variable(tf.zeros([1])), keras.optimizers.SGD(1e-6)
for name, batches in PIPELINES.items():
    drawn = numbers(next(iter(batches)))  # a batch of no step counts to the next one
    for _ in range(2):
        for batch in batches:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch * weights - 1.0))
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
            print(*drawn, *numbers(batch), flush=True)
            drawn = []
    total = batches.reduce(0.0, lambda state, batch: state * 1.01 + tf.reduce_sum(batch))  # in no loop of Python
    print("total", name, float(total), float(tf.random.uniform([])), flush=True)
for alike_batch in alike.shuffle(SIZE).batch(10):  # of equal elements
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(alike_batch - weights))
    optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
