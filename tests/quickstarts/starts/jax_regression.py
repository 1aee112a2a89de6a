"""JAX's first steps: a regression by jitted updates, saved by NumPy."""

import time

import jax
import jax.numpy as jnp
import numpy as np

key = jax.random.key(np.random.randint(1 << 30))
weights_key, data_key = jax.random.split(key)
parameters = {"w": jax.random.normal(weights_key, (4, 1)), "b": jnp.zeros(1)}
x = jax.random.normal(data_key, (64, 4))
y = x.sum(1, keepdims=True)


def loss_of(parameters: dict[str, jax.Array]) -> jax.Array:
    return jnp.mean((x @ parameters["w"] + parameters["b"] - y) ** 2)


@jax.jit
def update(parameters: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, parameters, jax.grad(loss_of)(parameters))


for epoch in range(4):
    start_time = time.time()
    parameters = update(parameters)
    print(f"Epoch {epoch} in {time.time() - start_time:0.2f} sec, loss {loss_of(parameters)}")
np.savez("parameters.npz", **parameters)
print("RESULT", float(loss_of(parameters)))
