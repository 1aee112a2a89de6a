"""What a capture costs the steps of one training, with and without it in turn: the same model in the same memory.

    reprokit run --on-nan capture -- python -m benchmarks.capture_in_turn KIND [PAIRS]

Processes differ by more than a capture costs, as their memory lies otherwise, and so do minutes. Here a few steps are
made as the framework has them, and a few as they are when captured, and the other way round, again and again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from benchmarks.capture_training import FEW, SAMPLES, functions, keep_memory, keras_layers, large, start_tensorflow

PAIRS = 500
WARM = 2  # steps of a row that do not count
CAPTURED = "_reprokit_captures"  # marks what stands in the place of a function of TensorFlow's or Keras'

Wrapped = tuple[type, str, Any]


class Training(Protocol):
    """A training in this process, whose capture can be taken away and put back between its steps."""

    row: int  # steps

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""

    def step(self) -> None:
        """Make one."""


def capture_of(name: str) -> Any:
    """The part of this process' capture that is of this class."""
    found = [one for one in gc.get_objects() if type(one).__name__ == name]
    if not found:
        sys.exit("nothing is captured here: start it by reprokit run --on-nan capture -- python -m ...")
    return found[0]


class PyTorch:
    """A loop of a script's own."""

    def __init__(self, kind: str) -> None:
        import torch
        from torch.nn.functional import cross_entropy
        from torch.utils.data import DataLoader, TensorDataset
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        from benchmarks.trail_training import cnn, mlp

        self.row = {"large": 4, "cnn": 6}.get(kind, 10)
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self._model, x = {"large": large, "cnn": cnn, "mlp": mlp}[kind]()
        self._loss = cross_entropy
        self._optimizer = torch.optim.Adam(self._model.parameters())
        loader = DataLoader(
            TensorDataset(x, torch.randint(0, 10, (len(x),))), FEW if kind == "large" else SAMPLES, shuffle=True
        )
        self._batches = itertools.chain.from_iterable(itertools.repeat(loader))
        self._capture = capture_of("TorchCapture")
        wrapped = [(torch.autograd, "backward"), (torch.optim.Adam, "step"), (_BaseDataLoaderIter, "__next__")]
        self._wrapped = [(owner, name, vars(owner)[name]) for owner, name in wrapped]

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        held = self._capture._threads.held
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if captures else ours.__wrapped__)
        if captures:
            held.end(None)
            self._capture._arm(held)
        else:
            self._capture._disarm(held)

    def step(self) -> None:
        """Make one."""
        a, b = next(self._batches)
        self._optimizer.zero_grad()
        self._loss(self._model(a), b).backward()
        self._optimizer.step()


class TensorFlow:
    """Two functions that update the same variables."""

    row = 20

    def __init__(self, kind: str) -> None:
        tf = start_tensorflow()
        capture_of("TensorFlowCapture")
        self._functions: dict[bool, Callable[..., Any]] = {}
        make = self._begin(tf, kind)
        self._wrapped = captured_methods()
        for captures in (False, True):
            self.use(captures)
            self._functions[captures] = make()
            self.use(captures)
            for _ in range(WARM):
                self.step()

    def _begin(self, tf: Any, _kind: str) -> Callable[[], Any]:
        """A custom loop's; what makes them."""
        make, batches = functions(tf)
        self._batches = iter(batches)
        return make

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if captures else ours.__wrapped__)
        self._function = self._functions.get(captures)

    def step(self) -> None:
        """Make one."""
        assert self._function is not None
        self._function(*next(self._batches))


class Keras(TensorFlow):
    """What fit does at each step."""

    def _begin(self, tf: Any, kind: str) -> Callable[[], Any]:
        self.row = 20 if "mlp" in kind else 6
        model = tf.keras.Sequential(keras_layers(tf, kind))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, jit_compile=kind.endswith("xla"))
        shape = (4096, 64) if "mlp" in kind else (4096, 28, 28, 1)
        x, y = tf.random.normal(shape), tf.random.uniform((4096,), 0, 10, tf.int32)
        self._batches = iter(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096).batch(64).repeat())
        model.fit(x[:64], y[:64], verbose=0)
        return lambda: model.make_train_function(force=True) or model.train_function

    def step(self) -> None:
        """Make one."""
        assert self._function is not None
        self._function(self._batches)


def captured_methods() -> list[Wrapped]:
    """All methods in whose place a capture has put one of its own."""
    classes = [one for one in gc.get_objects() if issubclass(type(one), type)]
    functions = [
        (one, name, value) for one in classes for name, value in vars(one).items() if type(value) is FunctionType
    ]
    return [(owner, name, value) for owner, name, value in functions if hasattr(value, CAPTURED)]


KINDS: dict[str, Callable[[str], Training]] = {
    **dict.fromkeys(("large", "cnn", "mlp"), PyTorch),
    "function": TensorFlow,
    **dict.fromkeys(("keras-cnn-graph", "keras-cnn-xla", "keras-mlp-graph", "keras-mlp-xla"), Keras),
}


def main(kind: str, pairs: int) -> None:
    """All pairs; says what a captured step takes longer than one beside it."""
    keep_memory()
    training = KINDS[kind](kind)

    def step() -> float:
        began = time.perf_counter()
        training.step()
        return 1e6 * (time.perf_counter() - began)

    def steps(captures: bool) -> float:
        training.use(captures)
        return statistics.median([step() for _ in range(training.row)][WARM:])

    bare, added = [], []
    for pair in range(pairs):
        took = {captures: steps(captures) for captures in ((True, False) if pair % 2 else (False, True))}
        bare.append(took[False])
        added.append(took[True] - took[False])
    middle, of = statistics.median(added), statistics.median(bare) / 100
    drawn = sorted(statistics.median(random.choices(added, k=pairs)) for _ in range(400))  # a bootstrap
    print(
        f"{kind}: bare {100 * of:.0f} us, captured + {middle:.1f} us, {middle / of:.2f} % "
        f"(95 %: {drawn[9] / of:.2f} to {drawn[-10] / of:.2f}; {pairs} pairs)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_in_turn")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("pairs", type=int, nargs="?", default=PAIRS)
    main(**vars(parser.parse_args()))
