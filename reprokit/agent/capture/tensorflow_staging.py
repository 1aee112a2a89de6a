"""Keeps what a graph computed until somebody asks for it: a reference to each tensor, by TensorFlow's staging area."""

from __future__ import annotations

import itertools
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_numbers = itertools.count()


class Last:
    """The last numbers that a graph came to, one a run, as many as it had NaN to begin with.

    Two operations keep them, where a variable takes five: the kernels of a small graph are in no cache.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._name = f"reprokit_last_{next(_numbers)}"
        tensorflow = sys.modules["tensorflow"]
        with sys.modules["tensorflow.python.framework.ops"].init_scope():
            nothing = tensorflow.constant(float("nan"))
            for _ in range(count):
                tensorflow.raw_ops.Stage(values=[nothing], shared_name=self._name)

    def put(self, number: Any) -> None:
        """In the graph that is being built, for each run of it: one more float32 in the place of the first."""
        tensorflow = sys.modules["tensorflow"]
        kept = tensorflow.raw_ops.Stage(values=[number], shared_name=self._name)
        with tensorflow.control_dependencies([kept]):
            tensorflow.raw_ops.Unstage(dtypes=[tensorflow.float32], shared_name=self._name)

    def numbers(self) -> list[float]:
        """All of them."""
        raw, types = sys.modules["tensorflow"].raw_ops, [sys.modules["tensorflow"].float32]
        size = int(raw.StageSize(dtypes=types, shared_name=self._name))  # more, where a graph broke off in between
        places = range(max(0, size - self._count), size)
        return [float(raw.StagePeek(index=place, dtypes=types, shared_name=self._name)[0]) for place in places]


class Area:
    """Nested values of one pattern, one a run of the graph, in the order of the runs."""

    def __init__(self) -> None:
        self.name = f"reprokit_{next(_numbers)}"
        self.kept: Any = None  # the operation that keeps them
        self._pattern: Any = None
        self._flat: list[Any] = []
        self._places: list[int] = []  # of what is kept; the rest is no tensor
        self._types: list[Any] = []

    def put(self, given: Any) -> bool:
        """In the graph that is being built; whether that graph's values are of the types of graphs' before it."""
        tensorflow, known = sys.modules["tensorflow"], self._types
        self._pattern = given
        self._flat = tensorflow.nest.flatten(given, expand_composites=True)
        self._places = [place for place, one in enumerate(self._flat) if _can_be_kept(tensorflow, one)]
        tensors = [self._flat[place] for place in self._places]
        self._types = [one.dtype for one in tensors]
        self.kept = tensorflow.raw_ops.Stage(values=tensors, shared_name=self.name)
        return not known or known == self._types

    def drop(self) -> Any:
        """Let go of what was put first, which must be there; in a graph, one of the tensors that it gives there."""
        return sys.modules["tensorflow"].raw_ops.Unstage(dtypes=self._types, shared_name=self.name)[0]

    def count(self) -> int:
        """How many are kept."""
        return int(sys.modules["tensorflow"].raw_ops.StageSize(dtypes=self._types, shared_name=self.name))

    def clear(self) -> None:
        """Let go of all."""
        sys.modules["tensorflow"].raw_ops.StageClear(dtypes=self._types, shared_name=self.name)

    def size(self) -> int:
        """Bytes of the first."""
        return sum(one.dtype.size * int(one.shape.num_elements()) for one in self._peek(0)) if self.count() else 0

    def get(self, number: int) -> Any:
        """One of them."""
        flat = list(self._flat)
        for place, value in zip(self._places, self._peek(number)):  # noqa: B905
            flat[place] = value
        return sys.modules["tensorflow"].nest.pack_sequence_as(self._pattern, flat, expand_composites=True)

    def _peek(self, number: int) -> Any:
        raw = sys.modules["tensorflow"].raw_ops
        return raw.StagePeek(index=number, dtypes=self._types, shared_name=self.name)


def is_one_for_all() -> bool:
    """Whether eager code asks the area that a graph has: each processor of TensorFlow's has its own."""
    return len(sys.modules["tensorflow"].config.list_logical_devices("CPU")) == 1


def _can_be_kept(tensorflow: Any, one: Any) -> bool:
    return isinstance(one, tensorflow.Tensor) and one.dtype not in (tensorflow.resource, tensorflow.variant)
