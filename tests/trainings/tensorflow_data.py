"""A tf.function training on a pipeline that augments in parallel, at random, and in the order of completion."""

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits


def augment(image, label):
    image = tf.roll(image, tf.random.uniform([], -1, 2, tf.int32), axis=1)
    return tf.reshape(image + tf.random.normal(tf.shape(image), stddev=0.1), [64]), label


def main():
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8)
    data = tf.data.Dataset.from_tensor_slices((images, labels))
    data = data.map(augment, num_parallel_calls=4, deterministic=False).batch(128)
    dense = tf.keras.layers.Dense(10)
    dense.build((None, 64))
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(dense.trainable_variables)

    @tf.function
    def step(batch, targets):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, dense(batch))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, dense.trainable_variables)
        optimizer.apply_gradients(zip(gradients, dense.trainable_variables, strict=True))
        return loss

    for _ in range(2):
        for batch, targets in data:
            loss = step(batch, targets)
        print(float(loss))
    print(hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in dense.variables)).hexdigest())


if __name__ == "__main__":
    main()
