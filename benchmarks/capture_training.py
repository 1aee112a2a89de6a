"""Trains a block of steps for each line that comes, and says how many microseconds one took. See capture.py."""

from __future__ import annotations

import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

BLOCK = {"large": 8, "cnn": 16, "keras-cnn-graph": 16, "keras-cnn-xla": 16}  # steps that count
BLOCK |= dict.fromkeys(("gpu", "gpu-mlp", "gpu-transformer"), 8)
LONG_BLOCK = 64  # of what is quick
WARM = 4  # of a block that do not
SAMPLES, FEW = 64, 40  # of a batch, and of the large model's
TOGETHER = 8  # steps on a GPU, whose end is waited for


def keep_memory() -> None:
    """Have libc keep the memory that it has got.

    Else a step of 17 ms has 1,000 page faults or 2,800, by where memory happens to lie: more than a capture costs.
    See mallopt(3).
    """
    trim, pad, own_map = -1, -2, -3
    for parameter, size in ((own_map, 1 << 25), (trim, (1 << 31) - 1), (pad, 1 << 26)):
        ctypes.CDLL(None).mallopt(parameter, size)


# ---- PyTorch ---------------------------------------------------------------------------------------------------------


def large(width: int = 16) -> tuple[Any, Any]:
    """Some 20 ms a step."""
    import torch
    from torch import nn

    def part(before: int, after: int) -> list[Any]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*part(1, width), *part(width, 2 * width), *part(2 * width, 4 * width), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(36 * width, 10)), torch.randn(1024, 1, 28, 28)


def on_gpu() -> tuple[Any, Any]:
    """The same with many channels."""
    model, x = large(256)
    return model.cuda(), x.cuda()


def transformer() -> tuple[Any, Any]:
    """Four layers over 64 tokens."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 256, 10))
    return model, torch.randn(1024, 64, 64)


def torch_steps(kind: str) -> Iterator[None]:
    """One step after the other, without end."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch.utils.data import DataLoader, TensorDataset

    from benchmarks.trail_training import cnn, mlp

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(is_checked())
    models = {"large": large, "cnn": cnn, "mlp": mlp, "gpu": on_gpu, "gpu-mlp": mlp, "gpu-transformer": transformer}
    model, x = models[kind]()
    device = "cuda" if kind.startswith("gpu") else "cpu"
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = TensorDataset(x, torch.randint(0, 10, (len(x),), device=x.device))
    loader = DataLoader(data, FEW if kind == "large" else SAMPLES, shuffle=True)
    for step, (a, b) in enumerate(itertools.chain.from_iterable(itertools.repeat(loader)), 1):
        optimizer.zero_grad()
        cross_entropy(model(a.to(device)), b.to(device)).backward()
        optimizer.step()
        if device == "cpu":
            yield
        elif step % TOGETHER == 0:
            torch.cuda.synchronize()
            yield


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def start_tensorflow() -> Any:
    """TensorFlow on one thread."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if is_checked():
        tf.debugging.enable_check_numerics()
    return tf


def functions(tf: Any) -> tuple[Callable[[], Any], Any]:
    """What makes the step of a custom loop, a graph, as often as it is called; and a data set."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10)])
    model.build((None, 64))
    optimizer = tf.keras.optimizers.Adam()
    weights = model.trainable_variables
    optimizer.build(weights)
    compute = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(a: Any, b: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = compute(b, model(a, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    x, y = tf.random.normal((4096, 64)), tf.random.uniform((4096,), 0, 10, tf.int32)
    return lambda: tf.function(step), tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(64).repeat()


def function_steps(kind: str) -> Iterator[None]:
    """A custom loop whose step is a graph."""
    make, batches = functions(start_tensorflow())
    step = make()
    for a, b in batches:
        step(a, b)
        yield


def keras_layers(tf: Any, kind: str) -> list[Any]:
    """A small CNN or MLP."""
    layers = tf.keras.layers
    if "mlp" in kind:
        return [layers.Flatten(), layers.Dense(256, "relu"), layers.Dense(256, "relu"), layers.Dense(10)]
    return [
        layers.Conv2D(8, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(),
        layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10),
    ]  # fmt: skip


def fit(kind: str, block: Blocks) -> None:
    """Keras' own loop, which calls us at each step."""
    tf = start_tensorflow()
    model = tf.keras.Sequential(keras_layers(tf, kind))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=kind.endswith("xla"))
    shape = (4096, 64) if "mlp" in kind else (4096, 28, 28, 1)
    x, y = tf.random.normal(shape), tf.random.uniform((4096,), 0, 10, tf.int32)
    called = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: block.stepped())
    model.fit(x, y, batch_size=64, epochs=1_000_000, verbose=0, callbacks=[called])


# ---- Blocks ----------------------------------------------------------------------------------------------------------


def is_checked() -> bool:
    """Whether the framework's own check is to be on."""
    return "checked" in sys.argv


class Blocks:
    """Counts steps, and waits behind each block for the next line."""

    def __init__(self, steps: int) -> None:
        self._steps = steps + WARM
        self._walls: list[float] = []
        self._processors: list[float] = []
        self._now: tuple[float, float] = (0, 0)

    def begin(self) -> None:
        """Wait until the next block is asked for; at the end of all it ends the process."""
        if not sys.stdin.readline():
            sys.exit()
        self._walls, self._processors = [], []
        self._now = time.perf_counter(), time.process_time()

    def stepped(self) -> None:
        """A step is done."""
        now = time.perf_counter(), time.process_time()
        self._walls.append(now[0] - self._now[0])
        self._processors.append(now[1] - self._now[1])
        if len(self._walls) == self._steps:
            wall, processors = (statistics.median(times[WARM:]) for times in (self._walls, self._processors))
            print(f"block {1e6 * wall:.3f} {1e6 * processors:.3f}", flush=True)
            self.begin()
        else:
            self._now = time.perf_counter(), time.process_time()


def main(kind: str) -> None:
    """Blocks of steps of this kind."""
    keep_memory()
    blocks = Blocks(BLOCK.get(kind, LONG_BLOCK))
    blocks.begin()
    if kind.startswith("keras"):
        fit(kind, blocks)
        return
    steps: Callable[[str], Iterator[None]] = function_steps if kind == "function" else torch_steps
    for _ in steps(kind):
        blocks.stepped()


if __name__ == "__main__":
    main(sys.argv[1])
