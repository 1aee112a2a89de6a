"""Steps of a jitted function over NumPy's batches. Arguments: what is added to the sixth batch, and the rate."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

NOISE, RATE = [float(argument) for argument in sys.argv[1:3]]


@jax.jit
def update(weights, batch, key):
    def loss(weights):
        kept = jax.random.bernoulli(key, 0.8, batch.shape)
        return jnp.mean((jnp.where(kept, batch, 0) @ weights - 1) ** 2)

    return weights - RATE * jax.grad(loss)(weights)


if __name__ == "__main__":
    generator = np.random.default_rng(1)
    weights, key = jnp.ones(8), jax.random.key(0)
    for number in range(10):
        batch = generator.random((16, 8), dtype=np.float32) + np.float32(NOISE if number == 5 else 0)
        weights = update(weights, batch, jax.random.fold_in(key, number))
    print(float(jnp.sum(weights)))
