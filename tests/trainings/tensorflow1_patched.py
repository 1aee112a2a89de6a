"""Tells how patches of TensorFlow 1 change sums, pipelines and threads, before and after they are taken back."""

import json
import os
import sys

import _reprokit_agent
import numpy
import tensorflow as tf

numbers = numpy.random.RandomState(0).rand(1000).astype("float32")
values = tf.constant(numbers)
halves = tf.constant([0] * 500 + [1] * 500)
sums = tf.math.segment_sum(values, halves), tf.math.unsorted_segment_sum(values, segment_ids=halves, num_segments=2)
whole = tf.math.segment_sum(tf.constant([1, 2]), tf.constant([0, 0]))
source = tf.data.Dataset.range(4)
random = source.map(lambda x: tf.random.uniform([]), num_parallel_calls=2)
pure = source.map(lambda x: x * 2, num_parallel_calls=2)
options = tf.data.Options()
options.experimental_deterministic = False
is_ordered = pure.with_options(options).options().experimental_deterministic
kinds = [type(dataset._dataset).__name__ for dataset in (random, pure)]
bias_add, cudnn = tf.nn.bias_add.__module__, os.environ.get("TF_CUDNN_DETERMINISTIC")
with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3)) as session:
    threads = session._config.intra_op_parallelism_threads
    results = [result.tolist() for result in session.run([*sums, whole])]
exact = [float(numpy.float32(half.sum(dtype="float64"))) for half in numpy.split(numbers, 2)]
for name in sys.argv[1:]:
    _reprokit_agent.patches.running.undo(name)
with open("found.json", "w") as file:
    json.dump(
        [
            kinds,
            is_ordered,
            bias_add,
            cudnn,
            threads,
            results,
            exact,
            tf.nn.bias_add.__module__,
            os.environ.get("TF_CUDNN_DETERMINISTIC"),
        ],
        file,
    )
