"""What a capture costs the steps of one training, with and without it in turn: the same model in the same memory.

    reprokit run --on-nan capture -- python -m benchmarks.capture_in_turn KIND [ROUNDS]

Processes differ by more than a capture costs, as their memory lies otherwise, and so do minutes. Here a few steps are
made as the framework has them, and a few as they are when captured, in changing order, again and again. What counts is
the time of all processors. Two floors, of PyTorch: bare steps that test all gradients by one compiled call and compare
the generators' states with copies; and our wrappers around PyTorch's functions, with handlers that do nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from benchmarks.capture_training import FEW, SAMPLES, functions, keep_memory, keras_layers, large, start_tensorflow

ROUNDS = 400
BARE, CAPTURED, FLOOR, WRAPPERS = "bare", "captured", "floor", "wrappers"
WARM = 2  # steps of a row that do not count
MARK = "_reprokit_captures"  # of what stands in the place of a function of TensorFlow's or Keras'

Wrapped = tuple[type, str, Any]


class Training(Protocol):
    """A training in this process, whose capture can be taken away and put back between its steps."""

    row: int  # steps
    sides: tuple[str, ...]

    def use(self, side: str) -> None:
        """Take the steps from now on as this side takes them."""

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""


class Done(Exception):
    """All rounds have been taken."""


class Rounds:
    """Rows of steps, one of each side in a round, and which of them is the first changes."""

    def __init__(self, training: Training, rounds: int) -> None:
        self._training, self._sides = training, training.sides
        self._wanted = len(self._sides) * rounds
        self._row: list[float] = []
        self._rows: dict[str, list[float]] = {side: [] for side in self._sides}
        self._use()

    def _use(self) -> None:
        count, of = sum(map(len, self._rows.values())), len(self._sides)
        if count == self._wanted:
            raise Done
        self._side = self._sides[(count + count // of) % of]
        self._training.use(self._side)
        self._began = time.process_time()

    def stepped(self) -> None:
        """A step is done."""
        self._row.append(1e6 * (time.process_time() - self._began))
        if len(self._row) == self._training.row:
            self._rows[self._side].append(statistics.median(self._row[WARM:]))
            self._row = []
            self._use()
        self._began = time.process_time()

    def told(self) -> str:
        """What a step of each other side takes longer than a bare one beside it, with the middle half."""
        bare = self._rows[BARE]
        of = statistics.median(bare) / 100
        told = [f"bare {100 * of:.0f} us"]
        for side in self._sides[1:]:
            added = [one - other for one, other in zip(self._rows[side], bare, strict=True)]
            low, middle, high = statistics.quantiles(added, n=4)
            told.append(f"{side} + {middle:.1f} us, {middle / of:.2f} % ({low / of:.2f} to {high / of:.2f})")
        return f"{'; '.join(told)}; {len(bare)} rounds"


def capture_of(name: str) -> Any:
    """The part of this process' capture that is of this class."""
    found = [one for one in gc.get_objects() if type(one).__name__ == name]
    if not found:
        sys.exit("nothing is captured here: start it by reprokit run --on-nan capture -- python -m ...")
    return found[0]


def _do_nothing(_event: object) -> None:
    """Handle an event."""


class PyTorch:
    """A loop of a script's own."""

    sides = (BARE, CAPTURED, FLOOR, WRAPPERS)

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
        self._is_floor = False
        self._parameters = list(self._model.parameters())
        self._states = capture_of("RandomStates")
        self._events = self._watch._hooks.events
        self._handlers = {name: pairs for name, pairs in vars(self._events).items() if type(pairs) is tuple and pairs}
        self._handlers.pop("_listeners")
        self._at_once = self._watch._training.tests.at_once
        wrapped = [(torch.autograd, "backward"), (torch.optim.Adam, "step"), (_BaseDataLoaderIter, "__next__")]
        wrapped += [(torch.nn.Module, "__call__"), (_BaseDataLoaderIter, "__init__"), (DataLoader, "__iter__")]
        self._wrapped = [(owner, name, vars(owner)[name]) for owner, name in wrapped]

    def use(self, side: str) -> None:
        """Take the steps from now on as this side takes them."""
        captures, self._is_floor = side == CAPTURED, side == FLOOR
        held = self._watch._training.threads.step
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if captures or side == WRAPPERS else ours.__wrapped__)
        for name, pairs in self._handlers.items():
            idle = tuple((failed, _do_nothing) for failed, _ in pairs)
            setattr(self._events, name, idle if side == WRAPPERS else pairs)
        if captures:
            held.end(None)
        held.armed = captures

    def train(self, stepped: Callable[[], object]) -> None:
        """Make steps until what is called behind each raises Done."""
        for a, b in self._batches:
            self._optimizer.zero_grad()
            self._loss(self._model(a), b).backward()
            if self._is_floor:
                self._at_once([parameter.grad for parameter in self._parameters])
                self._states.keep()
            self._optimizer.step()
            stepped()


class TensorFlow:
    """A custom loop by two functions that update the same variables."""

    row = 20
    sides: tuple[str, ...] = (BARE, CAPTURED)

    def __init__(self, kind: str) -> None:
        tf = start_tensorflow()
        capture_of("TensorFlowCapture")
        make = self._begin(tf, kind)
        self._wrapped = captured_methods()
        self._functions: dict[str, Callable[..., Any]] = {}
        for side in self.sides:
            self.use(side)
            self._functions[side] = make()
            self.use(side)
            self._try()

    def _begin(self, tf: Any, _kind: str) -> Callable[[], Any]:
        """What makes a function."""
        make, self._batches = functions(tf)
        return make

    def _try(self) -> None:
        """Have the function built that is in use."""
        assert self._function is not None
        self._function(*next(iter(self._batches)))

    def use(self, side: str) -> None:
        """Take the steps from now on as this side takes them."""
        for owner, name, ours in self._wrapped:
            setattr(owner, name, ours if side == CAPTURED else ours.__wrapped__)
        self._function = self._functions.get(side)

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

    def use(self, side: str) -> None:
        """Take the steps from now on as this side takes them."""
        super().use(side)
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
    return [(owner, name, value) for owner, name, value in functions if hasattr(value, MARK)]


KINDS: dict[str, Callable[[str], Training]] = {
    **dict.fromkeys(("large", "cnn", "mlp"), PyTorch),
    "function": TensorFlow,
    **dict.fromkeys(("keras-cnn-graph", "keras-cnn-xla", "keras-mlp-graph", "keras-mlp-xla"), Keras),
}


def main(kind: str, rounds: int) -> None:
    """All rounds of one kind."""
    keep_memory()
    training = KINDS[kind](kind)
    taken = Rounds(training, rounds)
    with contextlib.suppress(Done):
        training.train(taken.stepped)
    print(f"{kind}: {taken.told()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture_in_turn")
    parser.add_argument("kind", choices=list(KINDS))
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    main(**vars(parser.parse_args()))
