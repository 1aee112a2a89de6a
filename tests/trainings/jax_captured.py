"""Trainings of jitted functions, one a case, which turn NaN in their sixth step; a case that begins with + does not.

Prints each step's loss and the sum of the parameters, exactly.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CASE = "optax"
RATE = 1e-2
generator = np.random.default_rng(0)
batches = [(generator.normal(size=(16, 4)).astype("f4"), np.full(16, 0.5, "f4")) for _ in range(8)]
is_bad = [number == 5 and CASE[0] != "+" for number in range(8)]


def shown(number: int, loss: Any, params: Any) -> None:
    print(number, float(loss).hex(), float(sum(map(jnp.sum, jax.tree.leaves(params)))).hex(), flush=True)


def new_params() -> Any:
    hidden, out = jax.random.split(jax.random.key(0))
    return {"hidden": jax.random.normal(hidden, (4, 8)), "out": jax.random.normal(out, (8,))}


def predicted(params: Any, x: Any) -> Any:
    return jax.nn.sigmoid(jnp.tanh(x @ params["hidden"]) @ params["out"])  # given


def by_optax(*, donates: bool) -> None:
    """A step that divides by what it is given, with typed keys, donated and static arguments."""
    import optax

    optimizer = optax.adam(RATE)

    @partial(jax.jit, static_argnames="kind", donate_argnums=(0, 1) if donates else ())
    def train_step(params: Any, state: Any, batch: Any, key: Any, scale: float, *, kind: str) -> Any:
        x, y = batch
        kept = jax.random.bernoulli(key, 0.8, x.shape)
        x = jnp.where(kept, x, 0) / scale  # divided

        def loss_of(params: Any) -> Any:
            logits = predicted(params, x)
            assert kind == "log"
            return -jnp.mean(y * jnp.log(logits))

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, {"loss": loss, "empty": jnp.sum(x) * 0 / 0}

    params, key = new_params(), jax.random.key(1)
    state = optimizer.init(params)
    for number, batch in enumerate(batches):
        key, own = jax.random.split(key)
        scale = 0.0 if is_bad[number] else 2.0
        params, state, metrics = train_step(params, state, batch, own, scale, kind="log")
        shown(number, metrics["loss"], params)


def by_flax() -> None:
    """A module of flax and a TrainState, whose logarithm gets a zero; a mask keeps infinities."""
    import optax
    from flax import linen
    from flax.training.train_state import TrainState

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any, mask: Any) -> Any:
            scores = linen.Dense(4)(x) + mask
            return jnp.sum(linen.softmax(scores) * x, -1)

    @jax.jit
    def train_step(state: Any, x: Any, mask: Any, shift: Any) -> Any:
        def loss_of(params: Any) -> Any:
            output = state.apply_fn({"params": params}, x, mask)
            return jnp.mean(jnp.log(output**2 * shift))  # logarithm

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=gradients), mask, loss

    net, mask = Net(), jnp.array([0, 0, 0, -jnp.inf])
    params = net.init(jax.random.key(0), batches[0][0], mask)["params"]
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.sgd(RATE))
    for number, (x, _) in enumerate(batches):
        state, mask, loss = train_step(state, x, mask, np.float32(0 if is_bad[number] else 1))
        shown(number, loss, state.params)


def by_equinox() -> None:
    """A module of equinox, the root of whose output has no gradient at zero."""
    import equinox as eqx
    import optax

    optimizer = optax.adam(RATE)

    @eqx.filter_jit(donate="all")
    def make_step(model: Any, state: Any, x: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return jnp.mean(jnp.sqrt(jax.vmap(model)(x)[:, 0] ** 2))  # root

        loss, gradients = eqx.filter_value_and_grad(loss_of)(model)
        updates, state = optimizer.update(gradients, state, model)
        return eqx.apply_updates(model, updates), state, loss

    model = eqx.nn.MLP(4, 1, 8, 1, use_bias=False, use_final_bias=False, key=jax.random.key(0))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    for number, (x, _) in enumerate(batches):
        model, state, loss = make_step(model, state, jnp.asarray(x * (0 if is_bad[number] else 1)))
        shown(number, loss, eqx.filter(model, eqx.is_inexact_array))


def by_nnx() -> None:
    """A module of flax.nnx with dropout, whose exponential overflows."""
    import optax
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.hidden = nnx.Linear(4, 8, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)
            self.out = nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.out(self.dropout(nnx.relu(self.hidden(x))))

    @nnx.jit
    def train_step(model: Any, optimizer: Any, x: Any) -> Any:
        def loss_of(model: Any) -> Any:
            return jnp.mean(jnp.exp(model(x) ** 2))  # exponential

        loss, gradients = nnx.value_and_grad(loss_of)(model)
        optimizer.update(model, gradients)
        return loss

    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)
    for number, (x, _) in enumerate(batches):
        loss = train_step(model, optimizer, x * (1e4 if is_bad[number] else 1))
        shown(number, loss, nnx.state(model, nnx.Param))


def by_scan() -> None:
    """Several updates in one call, of which one divides by zero; a rate too large alone shows in the parameters."""

    @jax.jit
    def train_steps(params: Any, xs: Any, scales: Any) -> Any:
        def one(params: Any, each: Any) -> Any:
            x, scale = each
            gradients = jax.grad(lambda params: jnp.mean((predicted(params, x) / scale) ** 2))(params)  # scanned
            return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), jnp.max(x)

        return jax.lax.scan(one, params, (xs, scales))

    params = new_params()
    for number, (x, _) in enumerate(batches):
        scales = np.array([1, 1, 0 if is_bad[number] else 1, 1], "f4")
        params, largest = train_steps(params, x.reshape(4, 4, 4), scales)
        shown(number, jnp.max(largest), params)


def by_hand() -> None:
    """A function that returns gradients, in a function that is called by the script alone."""

    @jax.jit
    def gradients_of(params: Any, x: Any) -> Any:
        return jax.value_and_grad(lambda params: jnp.mean(jnp.log(predicted(params, x))))(params)

    @jax.jit
    def logarithms(params: Any, x: Any) -> Any:
        return jnp.log(predicted(params, x) - 1)  # NaN: not a step

    params, rate = new_params(), jnp.float32(RATE)
    for number, (x, _) in enumerate(batches):
        loss, gradients = gradients_of(params, x * (np.float32("nan") if is_bad[number] else 1))
        params = jax.tree.map(lambda p, g: p - rate * g, params, gradients)
        logarithms(params, x)
        shown(number, loss, params)


def by_rate() -> None:
    """A lone array that a rate too large makes infinite; its loss is not returned."""

    @jax.jit
    def update(weights: Any, rate: Any) -> Any:
        return weights - rate * jax.grad(lambda weights: jnp.sum(weights**2))(weights)  # updated

    weights = jnp.ones(4)
    for number in range(8):
        weights = update(weights, 3e38 if is_bad[number] else RATE)
        shown(number, 0, weights)


def sharded() -> None:
    """A step on several devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))

    @jax.jit
    def update(params: Any, x: Any) -> Any:
        loss, gradients = jax.value_and_grad(lambda params: jnp.mean(predicted(params, x)))(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), loss

    params = new_params()
    for number, (x, _) in enumerate(batches):
        params, loss = update(params, jax.device_put(x, sharding))
        shown(number, loss, params)


def eager() -> None:
    """Gradients that no jitted function computes."""
    params = new_params()
    for number, (x, _) in enumerate(batches):
        loss, gradients = jax.value_and_grad(lambda params, x=x: jnp.mean(predicted(params, x)))(params)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
        shown(number, loss, params)


CASES = {
    "optax": partial(by_optax, donates=False),
    "donated": partial(by_optax, donates=True),
    "flax": by_flax,
    "equinox": by_equinox,
    "nnx": by_nnx,
    "scan": by_scan,
    "hand": by_hand,
    "rate": by_rate,
    "sharded": sharded,
    "eager": eager,
}

if __name__ == "__main__":
    CASES[CASE.strip("+")]()
