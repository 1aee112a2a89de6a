"""A hand-written tf.function loop over a shuffled tf.data pipeline, without fit."""

import hashlib

import tensorflow as tf
from sklearn.datasets import load_digits


def main():
    images, labels = load_digits(return_X_y=True)
    data = tf.data.Dataset.from_tensor_slices(((images / 16).astype("float32"), labels)).shuffle(2000).batch(128)
    dense = tf.keras.layers.Dense(32, activation="relu")
    head = tf.keras.layers.Dense(10)
    optimizer = tf.keras.optimizers.Adam(1e-2)
    dense.build((None, 64))
    head.build((None, 32))
    variables = dense.trainable_variables + head.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(batch, targets):
        with tf.GradientTape() as tape:
            hidden = tf.nn.dropout(dense(batch), 0.2)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, head(hidden)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    for _ in range(2):
        for batch, targets in data:
            loss = step(batch, targets)
        print(float(loss))
    print(hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in variables)).hexdigest())


if __name__ == "__main__":
    main()
