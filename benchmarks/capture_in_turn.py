"""What a capture costs the steps of one training, with and without it in turn: the same model in the same memory.

    reprokit run --on-nan capture -- python -m benchmarks.capture_in_turn KIND [PAIRS]

Processes differ by more than a capture costs, as their memory lies otherwise, and so do minutes. Here a few steps are
made as the framework has them, and a few as they are when captured, and the other way round, again and again.
"""

from __future__ import annotations

import argparse
import contextlib
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

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""


class Done(Exception):
    """All pairs have been taken."""


class Pairs:
    """Rows of steps, one with the capture and one without it, and which of them is the first changes."""

    def __init__(self, training: Training, pairs: int) -> None:
        self._training = training
        self._wanted = 2 * pairs
        self._row: list[float] = []
        self._rows: dict[bool, list[float]] = {False: [], True: []}
        self._use()

    def _use(self) -> None:
        count = sum(map(len, self._rows.values()))
        if count == self._wanted:
            raise Done
        self._captures = count % 4 in (1, 2)
        self._training.use(self._captures)
        self._began = time.perf_counter()

    def stepped(self) -> None:
        """A step is done."""
        self._row.append(1e6 * (time.perf_counter() - self._began))
        if len(self._row) == self._training.row:
            self._rows[self._captures].append(statistics.median(self._row[WARM:]))
            self._row = []
            self._use()
        self._began = time.perf_counter()

    def told(self) -> str:
        """What a captured step takes longer than one beside it."""
        bare, captured = self._rows[False], self._rows[True]
        added = [one - other for one, other in zip(captured, bare, strict=True)]
        middle, of = statistics.median(added), statistics.median(bare) / 100
        drawn = sorted(statistics.median(random.choices(added, k=len(added))) for _ in range(400))  # a bootstrap
        return (
            f"bare {100 * of:.0f} us, captured + {middle:.1f} us, {middle / of:.2f} % "
            f"(95 %: {drawn[9] / of:.2f} to {drawn[-10] / of:.2f}; {len(added)} pairs)"
        )


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
        self._watch = capture_of("TorchCapture")
        wrapped = [(torch.autograd, "backward"), (torch.optim.Adam, "step"), (_BaseDataLoaderIter, "__next__")]
        wrapped += [(torch.nn.Module, "__call__"), (_BaseDataLoaderIter, "_next_index")]
        self._wrapped = [(owner, name, vars(owner)[name]) for owner, name in wrapped]

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        held = self._watch._training.threads.step
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if captures else ours.__wrapped__)
        if captures:
            held.end(None)
        held.armed = captures

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""
        for a, b in self._batches:
            self._optimizer.zero_grad()
            self._loss(self._model(a), b).backward()
            self._optimizer.step()
            stepped()


class TensorFlow:
    """A custom loop by two functions that update the same variables."""

    row = 20

    def __init__(self, kind: str) -> None:
        tf = start_tensorflow()
        capture_of("TensorFlowCapture")
        make = self._begin(tf, kind)
        self._wrapped = captured_methods()
        self._functions: dict[bool, Callable[..., Any]] = {}
        for captures in (False, True):
            self.use(captures)
            self._functions[captures] = make()
            self.use(captures)
            self._try()

    def _begin(self, tf: Any, _kind: str) -> Callable[[], Any]:
        """What makes a function."""
        make, self._batches = functions(tf)
        return make

    def _try(self) -> None:
        """Have the function built that is in use."""
        assert self._function is not None
        self._function(*next(iter(self._batches)))

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if captures else ours.__wrapped__)
        self._function = self._functions.get(captures)

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""
        for a, b in self._batches:
            assert self._function is not None
            self._function(a, b)
            stepped()


class Keras(TensorFlow):
    """Keras' own loop."""

    def _begin(self, tf: Any, kind: str) -> Callable[[], Any]:
        self.row = 20 if "mlp" in kind else 6
        self._tf, self._model = tf, tf.keras.Sequential(keras_layers(tf, kind))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile("adam", loss, jit_compile=kind.endswith("xla"))
        shape = (4096, 64) if "mlp" in kind else (4096, 28, 28, 1)
        self._data = tf.random.normal(shape), tf.random.uniform((4096,), 0, 10, tf.int32)
        self._try()
        return lambda: self._model.make_train_function(force=True) or self._model.train_function

    def _try(self) -> None:
        self._model.fit(*[part[:128] for part in self._data], batch_size=64, verbose=0)

    def use(self, captures: bool) -> None:
        """Have the steps from now on captured, or not."""
        super().use(captures)
        self._model.train_function = self._function

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""
        called = self._tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: stepped())
        self._model.fit(*self._data, batch_size=64, epochs=1_000_000, verbose=0, callbacks=[called])


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
    """All pairs of one kind."""
    keep_memory()
    training = KINDS[kind](kind)
    taken = Pairs(training, pairs)
    with contextlib.suppress(Done):
        training.train(taken.stepped)
    print(f"{kind}: {taken.told()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_in_turn")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("pairs", type=int, nargs="?", default=PAIRS)
    main(**vars(parser.parse_args()))
