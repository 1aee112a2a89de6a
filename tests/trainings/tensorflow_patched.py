"""Tells how patches of TensorFlow 2 change pipelines, threads and seeds, before and after they are taken back."""

import json
import sys

import _reprokit_agent
import tensorflow as tf
from tensorflow.python.framework import config as switches


def numbers(elements):
    return [float(element) for element in elements]


def augment(element):
    return tf.cast(element, tf.float32) + tf.random.uniform([], -0.4, 0.4)


def double(element):
    tf.debugging.assert_greater(element, tf.constant(-1, tf.int64))
    return element * 2


options = tf.data.Options()
options.deterministic = False
source = tf.data.Dataset.range(8)
random = source.map(augment, num_parallel_calls=2, deterministic=False)
pure = source.map(double, num_parallel_calls=2, deterministic=False).with_options(options)
mixed = source.interleave(lambda _: tf.data.Dataset.range(2), 2, num_parallel_calls=2, deterministic=False)
kinds = [type(random).__name__, type(source.map(double, num_parallel_calls=2)).__name__, type(mixed).__name__]
ordered = pure.options().deterministic, numbers(pure)
tf.config.threading.set_intra_op_parallelism_threads(3)
threading = tf.config.threading
threads = [threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()]
with tf.Graph().as_default():
    wanted = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=3, allow_soft_placement=True)
    config = tf.compat.v1.Session(config=wanted)._config
drawn = tf.random.normal([2]).shape[0]  # which raises where there is no seed
deterministic = [switches.is_op_determinism_enabled()]
undone = [_reprokit_agent.patches.running.undo(name) for name in sys.argv[1:]]
deterministic.append(switches.is_op_determinism_enabled())
kinds.append(type(source.map(augment, num_parallel_calls=2)).__name__)
with open("found.json", "w") as file:
    json.dump(
        [
            kinds,
            ordered,
            threads,
            config.intra_op_parallelism_threads,
            config.allow_soft_placement,
            drawn,
            deterministic,
            undone,
        ],
        file,
    )
