"""A small network of TensorFlow 1.14 on Python 3.7; unless patched, the gradients of its biases vary on a GPU."""

import hashlib

import numpy
import tensorflow as tf


def network(images):
    filters = tf.get_variable("filters", [3, 3, 1, 8])
    hidden = tf.nn.conv2d(images, filters, strides=[1, 1, 1, 1], padding="SAME")
    hidden = tf.nn.relu(tf.nn.bias_add(hidden, tf.get_variable("bias", [8])))
    pooled = tf.nn.max_pool(hidden, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    flat = tf.reshape(pooled, [-1, 14 * 14 * 8])
    logits = tf.matmul(flat, tf.get_variable("weights", [14 * 14 * 8, 10]))
    return tf.nn.bias_add(logits, tf.get_variable("output_bias", [10]))


def main():
    images = numpy.random.rand(256, 28, 28, 1).astype("float32")
    labels = numpy.random.randint(0, 10, 256)
    batch = tf.placeholder(tf.float32, [None, 28, 28, 1])
    targets = tf.placeholder(tf.int64, [None])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=network(batch))
    loss = tf.reduce_mean(losses)
    train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for start in range(0, 256, 64):
            fed = {batch: images[start : start + 64], targets: labels[start : start + 64]}
            _, value = session.run([train, loss], fed)
            print(value)
        weights = session.run(tf.trainable_variables())
    operators = {operation.type for operation in tf.get_default_graph().get_operations()}
    print("bias_add of", tf.nn.bias_add.__module__, "BiasAddGrad" in operators)
    print(hashlib.sha256(b"".join(weight.tobytes() for weight in weights)).hexdigest())


if __name__ == "__main__":
    main()
