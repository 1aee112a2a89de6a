"""Calls a function that JAX compiles."""

import jax
import jax.numpy as jnp


@jax.jit
def train_step(a):
    return (a @ a.T).sum()


for _ in range(3):
    train_step(jnp.ones((3, 3)))  # call
