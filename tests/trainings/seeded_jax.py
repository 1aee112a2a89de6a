"""Makes keys of JAX by the clock."""

import time

import jax

jax.random.key(1)
print(jax.random.uniform(jax.random.PRNGKey(time.time_ns() % 2**31)))
print(jax.random.uniform(jax.random.split(jax.random.key(time.time_ns() % 2**31))[1]))
