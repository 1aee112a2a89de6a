"""Trainings by several replicas of TensorFlow, of which one meets what is not finite in step 3.

python captured_replicas.py mirrored DIRECTORY   fits a model of Keras on two logical processors
python captured_replicas.py workers DIRECTORY    starts two workers, whose loop is the script's own
"""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

KIND, DIRECTORY, BAD = sys.argv[1], Path(sys.argv[2]), 3
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def write(name, **arrays):
    numpy.savez(DIRECTORY / name, **arrays)


def mirrored():
    (cpu,) = tensorflow.config.list_physical_devices("CPU")
    tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    with tensorflow.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(), "mse")
    x, y = data()
    x[8 * BAD + 5] = math.inf  # of the second replica

    class Tell(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            variables = model.variables + model.optimizer.variables
            arrays = {variable.path: variable.value.values[0].numpy() for variable in variables}
            write(f"after-{batch}.npz", **arrays)

    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[Tell()])
    print("trained")


def data():
    x = numpy.arange(6 * 8 * 4, dtype="float32").reshape(-1, 4) / 100
    return x, x.sum(1, keepdims=True)


def start_workers():
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]}
    for one in sockets:
        one.close()
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TF_CONFIG": json.dumps(task)})
        for task in tasks
    ]
    sys.exit(max(process.wait() for process in started))


def work(index):
    strategy = tensorflow.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = tensorflow.Variable(tensorflow.fill((4, 1), 0.1), name="weights")
        optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        optimizer.build([weights])

    def step(a, b, slope):
        with tensorflow.GradientTape() as tape:
            loss = tensorflow.nn.compute_average_loss((a @ weights - b) ** 2, global_batch_size=8)
            loss += tensorflow.sqrt(tensorflow.reduce_sum(weights) * slope + 1.0 - slope) * (1.0 - slope)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return tensorflow.reduce_sum(loss)

    @tensorflow.function
    def train(a, b, slope):
        return strategy.reduce("SUM", strategy.run(step, args=(a, b, slope)), axis=None)

    options = tensorflow.data.Options()
    options.experimental_distribute.auto_shard_policy = tensorflow.data.experimental.AutoShardPolicy.DATA
    batches = tensorflow.data.Dataset.from_tensor_slices(data()).batch(8).with_options(options)
    for number, (a, b) in enumerate(strategy.experimental_distribute_dataset(batches)):
        if number == BAD:
            momentum = optimizer.variables[-1].value.values[0].numpy()
            write(
                f"before-{index}.npz",
                weights=weights.values[0].numpy(),
                momentum=momentum,
                a=a.values[0].numpy(),
                b=b.values[0].numpy(),
            )
        train(a, b, tensorflow.constant(0.0 if (number, index) != (BAD, 1) else math.nan))
        print(f"worker {index} has done step {number}", flush=True)


if KIND == "workers" and "TF_CONFIG" not in os.environ:
    start_workers()

import keras  # noqa: E402
import numpy  # noqa: E402
import tensorflow  # noqa: E402

if KIND == "mirrored":
    mirrored()
else:
    work(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
