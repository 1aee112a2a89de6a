"""A custom loop under MultiWorkerMirroredStrategy; this script starts a process for each of two workers itself."""

import json
import os
import socket
import subprocess
import sys


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def start():
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    for index in range(len(workers)):
        task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        processes.append(subprocess.Popen([sys.executable, __file__, "worker"], env=environment))
    sys.exit(max(process.wait() for process in processes))


def train():
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with strategy.scope():
        weights = tf.Variable(tf.random.normal([8, 1]))
        optimizer = tf.keras.optimizers.SGD(0.05)
    data = tf.data.Dataset.from_tensor_slices(tf.random.normal([48, 8])).batch(8).with_options(options)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(batch @ weights - tf.reduce_sum(batch, 1, keepdims=True)))
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    train_step = tf.function(lambda batch: strategy.run(step, args=(batch,)))
    for batch in strategy.experimental_distribute_dataset(data):
        loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, train_step(batch), axis=None)
    rank = strategy.cluster_resolver.task_id
    with open(f"worker{rank}.txt", "w") as file:
        file.write(f"{float(loss)!r} {weights.numpy().tobytes().hex()}")


start() if len(sys.argv) == 1 else train()
