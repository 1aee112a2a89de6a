"""A network in JAX with dropout, seeded from the operating system, as a careful user would."""

import hashlib
import os

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits


def loss(weights, batch, labels, key):
    hidden = jax.nn.relu(batch @ weights[0])
    hidden = jnp.where(jax.random.bernoulli(key, 0.7, hidden.shape), hidden, 0)
    scores = jax.nn.log_softmax(hidden @ weights[1])
    return -jnp.mean(scores[jnp.arange(len(labels)), labels])


@jax.jit
def update(weights, batch, labels, key):
    value, gradients = jax.value_and_grad(loss)(weights, batch, labels, key)
    return [a - 0.1 * b for a, b in zip(weights, gradients, strict=True)], value


def main():
    images, labels = load_digits(return_X_y=True)
    key = jax.random.key(int.from_bytes(os.urandom(4), "little"))
    first, last, dropout = jax.random.split(key, 3)
    weights = [jax.random.normal(first, (64, 32)) * 0.1, jax.random.normal(last, (32, 10)) * 0.1]
    order = np.random.default_rng().permutation(len(images))
    for step, chosen in enumerate(np.array_split(order, 16)):
        batch = (images[chosen] / 16).astype("float32")
        weights, value = update(weights, batch, labels[chosen], jax.random.fold_in(dropout, step))
    print(float(value))
    print(hashlib.sha256(b"".join(np.asarray(weight).tobytes() for weight in weights)).hexdigest())


if __name__ == "__main__":
    main()
