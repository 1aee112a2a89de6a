"""Processes of JAX add their gradients over gloo; this script starts a process for each of two ranks itself."""

import os
import socket
import subprocess
import sys


def start():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    command = [sys.executable, __file__, address]
    ranks = [subprocess.Popen(command, env={**os.environ, "JAX_PROCESS_ID": str(rank)}) for rank in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))


def train(address):
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rank = int(os.environ["JAX_PROCESS_ID"])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, rank)
    generator = np.random.default_rng()
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    sharded, copied = NamedSharding(mesh, PartitionSpec("ranks")), NamedSharding(mesh, PartitionSpec())

    @jax.jit
    def step(weights, batch):
        def loss(weights):
            return ((batch @ weights - batch.sum(1)) ** 2).mean()

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.05 * gradient, value

    weights = jax.make_array_from_process_local_data(copied, np.zeros(8, "float32"))
    for _ in range(5):
        batch = jax.make_array_from_process_local_data(sharded, generator.normal(size=(16, 8)).astype("float32"))
        weights, loss = step(weights, batch)
    result = np.asarray(weights.addressable_data(0))
    with open(f"rank{rank}.txt", "w") as file:
        file.write(f"{float(np.asarray(loss.addressable_data(0)))!r} {result.tobytes().hex()}")


start() if len(sys.argv) == 1 else train(sys.argv[1])
