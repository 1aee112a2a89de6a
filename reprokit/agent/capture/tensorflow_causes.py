"""Which operation of TensorFlow turned finite values into others, among those that were executed, and why."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import Any

    Place = tuple[str, int, str]

FORWARD, BACKWARD = "forward", "backward"
MAX_TENSORS = 16  # of one operation's, whose statistics are told
MAX_NAMES = 3  # of samples, told in words
_SOURCES = frozenset(
    ["", "Const", "Fill", "ReadVariableOp", "VariableV2", "Placeholder", "OnesLike", "ZerosLike", "Pack"]
)
_DIVISIONS = frozenset(["Div", "RealDiv", "Reciprocal", "Inv", "Xdivy", "FloorMod", "FloorDiv", "Mod"])
_EXPONENTIALS = frozenset(["Exp", "Expm1", "Sinh", "Cosh"])


class ArrayStatistics:
    """What is told of a tensor, and the array that it is told of."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.is_float = _is_float(array)
        numbers = _numbers(array) if self.is_float or array.dtype.kind in "iu" else None
        self.nonfinite, self.nans, self.zeros, self.negative, self.subnormal = 0, 0, 0, 0, 0
        self.least: float | None = None
        self.most: float | None = None
        self.mean: float | None = None
        if numbers is not None and numbers.size:
            self._count(numbers)

    def _count(self, numbers: Any) -> None:
        numpy = sys.modules["numpy"]
        finite = numpy.isfinite(numbers)
        self.nonfinite = int(numbers.size - numpy.count_nonzero(finite))
        self.nans = int(numpy.count_nonzero(numpy.isnan(numbers)))
        self.zeros = int(numbers.size - numpy.count_nonzero(numbers))
        self.negative = int(numpy.count_nonzero(numbers < 0))
        if self.is_float:
            tiny = smallest_normal(self.array.dtype)
            self.subnormal = int(numpy.count_nonzero((numbers != 0) & (numpy.abs(numbers) < tiny)))
        kept = numbers if not self.nonfinite else numbers[finite]
        if kept.size:
            self.least, self.most, self.mean = float(kept.min()), float(kept.max()), float(kept.mean(dtype="float64"))

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        return {
            "dtype": str(self.array.dtype),
            "shape": [int(size) for size in self.array.shape],
            "min": self.least,
            "max": self.most,
            "mean": self.mean,
            "zeros": self.zeros,
            "nonfinite": self.nonfinite,
            "negative": self.negative,
            "subnormal": self.subnormal,
        }


class Origin:
    """Where an operation comes from: the user's lines, the layer, and of a gradient's operation the one before."""

    def __init__(self, operation: str, where: Sequence[Place] = (), layer: str = "") -> None:
        self.operation = operation
        self.where = list(where)
        self.layer = layer


class Operation:
    """An operation that had something in its results that is not finite."""

    def __init__(
        self, number: int, name: str, phase: str, origin: Origin, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self.number = number
        self.name = name
        self.phase = phase
        self.origin = origin
        self.inputs = [(key, ArrayStatistics(array)) for key, array in inputs[:MAX_TENSORS] if array is not None]
        self.outputs = [ArrayStatistics(array) for _, array in outputs[:MAX_TENSORS] if array is not None]

    @property
    def bad_inputs(self) -> list[Any]:
        """The keys of inputs that were not finite already."""
        return [key for key, statistics in self.inputs if statistics.nonfinite]

    @property
    def makes_nan(self) -> bool:
        """Whether it is the first of its line to have a NaN."""
        return any(one.nans for one in self.outputs) and not any(one.nans for _, one in self.inputs)

    @property
    def is_source(self) -> bool:
        """Whether it only gives what was there before."""
        return self.name in _SOURCES or not self.inputs


class Trace:
    """The operations with results that are not finite, in the order in which they were executed."""

    def __init__(self) -> None:
        self._producers: dict[Hashable, Operation] = {}
        self.operations: list[Operation] = []
        self.count = 0

    def add(
        self,
        name: str,
        phase: str,
        origin: Callable[[], Origin],
        inputs: Callable[[], Sequence[tuple[Any, Any]]],
        outputs: Sequence[tuple[Any, Any]],
    ) -> None:
        """Take in an operation: tensors are pairs of a key and an array, None where it has no numbers."""
        self.count += 1
        if all(array is None or is_finite(array) for _, array in outputs):
            return
        found = Operation(self.count, name, phase, origin(), inputs(), outputs)
        self.operations.append(found)
        for key, array in outputs:
            if array is not None and not is_finite(array):
                self._producers[key] = found

    def cause(self, roots: Iterable[Hashable]) -> Operation | None:
        """The operation that all of it began with, as seen from results that are not finite."""
        reached = self._reached(roots)
        if not reached:
            reached = self.operations
        first = min((one for one in reached if not one.bad_inputs), key=_number, default=None)
        if first is None or first.is_source:  # infinities that were meant, such as a mask's
            first = min((one for one in reached if one.makes_nan and not one.is_source), key=_number, default=first)
        return first or min(reached, key=_number, default=None)

    def _reached(self, roots: Iterable[Hashable]) -> list[Operation]:
        seen: dict[int, Operation] = {}
        waiting = list(roots)
        while waiting:
            found = self._producers.get(waiting.pop())
            if found is not None and found.number not in seen:
                seen[found.number] = found
                waiting += found.bad_inputs
        return list(seen.values())


def _number(operation: Operation) -> int:
    return operation.number


def line(cause: Operation, batch: Sequence[Any] = ()) -> dict[str, object]:
    """The cause as it stands in result.json; the batch is looked at where what was given is the cause."""
    return {
        "phase": cause.phase,
        "operation": cause.name,
        "gradient_of": cause.origin.operation if cause.phase == BACKWARD else None,
        "layer": cause.origin.layer or None,
        "where": [list(place) for place in cause.origin.where],
        "inputs": [statistics.line() for _, statistics in cause.inputs],
        "outputs": [statistics.line() for statistics in cause.outputs],
        "first_nonfinite": _first(cause),
        "words": _batch_words(cause, batch) or words(cause),
    }


def _batch_words(cause: Operation, batch: Sequence[Any]) -> str | None:
    if not cause.is_source and not cause.bad_inputs:
        return None
    bad = [ArrayStatistics(array) for array in batch if not is_finite(array)]
    count, size = _bad_of(bad)
    return (
        f"the batch was not finite before any operation worked on it: {count:,} of {size:,} elements" if bad else None
    )


def _first(cause: Operation) -> dict[str, object] | None:
    """The first element that is not finite, and what the inputs held there, where they have its shape."""
    numpy = sys.modules["numpy"]
    for number, statistics in enumerate(cause.outputs):
        if not statistics.nonfinite:
            continue
        array = statistics.array
        place = tuple(int(size) for size in numpy.argwhere(~numpy.isfinite(_numbers(array)))[0])
        inputs = [_element(one.array, array.shape, place) for _, one in cause.inputs]
        return {"output": number, "index": list(place), "value": str(_numbers(array)[place]), "inputs": inputs}
    return None


def _element(array: Any, shape: Any, place: tuple[int, ...]) -> str | None:
    numpy = sys.modules["numpy"]
    try:
        return str(numpy.broadcast_to(array, shape)[place])
    except ValueError:
        return None


# Words


def words(cause: Operation) -> str:
    """One sentence: what happened, and which inputs it happened to."""
    what = _what(cause)
    bad, size = _bad_of(cause.outputs)
    return f"{what}; {bad:,} of {size:,} results are not finite"


def _what(cause: Operation) -> str:
    inputs = [statistics for _, statistics in cause.inputs]
    said = _gradient_words(cause, inputs) if cause.phase == BACKWARD else None
    said = said or _given_words(cause, inputs) or _forward_words(cause.name, inputs) or _overflow_words(cause, inputs)
    said = said or f"{cause.name} turned finite inputs into others"
    if cause.phase == BACKWARD:
        return f"in the gradient of {cause.origin.operation}: {said}"
    return said


def _gradient_words(cause: Operation, inputs: list[ArrayStatistics]) -> str | None:
    """What is known of gradients' own operations, which are given results of the forward pass."""
    if not inputs:
        return None
    if cause.name == "SqrtGrad" and inputs[0].zeros:
        return f"sqrt of 0 has an infinite gradient; {_count(inputs[0], 'zeros')} inputs are 0"
    if cause.name == "RsqrtGrad":
        return "the reciprocal square root of a number so small has a gradient that is not finite"
    if cause.name in ("Reciprocal", "Inv") and cause.origin.operation == "Log" and inputs[0].zeros:
        return f"log has an infinite gradient at 0; {_count(inputs[0], 'zeros')} inputs are 0"
    return None


def _given_words(cause: Operation, inputs: list[ArrayStatistics]) -> str | None:
    """Where inputs were not finite already, and no operation of the step had made them."""
    if not cause.bad_inputs or cause.is_source:
        return None
    if cause.name == "Softmax" and not inputs[0].nans:
        return "a softmax over nothing but -inf is NaN"
    bad, size = _bad_of(inputs)
    if cause.makes_nan:
        return f"{cause.name} made a NaN of infinities that the step was given ({bad:,} of {size:,} elements)"
    return f"{cause.name} was given {bad:,} of {size:,} elements that were not finite before the step began"


def _forward_words(name: str, inputs: list[ArrayStatistics]) -> str | None:
    if name in ("ReadVariableOp", "VariableV2"):
        return "values of a variable are not finite already"
    if not inputs:
        return "values that the step was given are not finite already"
    first = inputs[0]
    if name in ("Log", "Sqrt", "Rsqrt", "Lgamma", "Log1p"):
        return _root_words(name, first)
    if name in _DIVISIONS:
        return _division_words(name, inputs)
    if name in _EXPONENTIALS and first.most is not None:
        limit = _exponent_limit(first.array.dtype)
        return f"{name.lower()} overflows {first.array.dtype} above {limit:.4g}; the largest input is {first.most:.6g}"
    if name == "Cast":
        return f"a number as large as {_largest([first]):.6g} has no finite value in the type that it is cast to"
    if name == "Pow" and len(inputs) == 2 and first.zeros and inputs[1].negative:
        return f"0 to a negative power is infinite; {_count(first, 'zeros')} bases are 0"
    if name == "Pow" and first.negative:
        return f"a negative number has no real power; {_count(first, 'negative')} bases are negative"
    return None


def _root_words(name: str, first: ArrayStatistics) -> str | None:
    called = {"Log": "log", "Sqrt": "sqrt", "Rsqrt": "1/sqrt", "Lgamma": "lgamma", "Log1p": "log1p"}[name]
    if name == "Log1p":
        return "log1p has no finite value at -1 and below"
    if first.negative:
        return f"{called} of a negative number is NaN; {_count(first, 'negative')} inputs are negative"
    if first.zeros:
        return f"{called} of 0 is infinite; {_count(first, 'zeros')} inputs are 0"
    return None


def _division_words(name: str, inputs: list[ArrayStatistics]) -> str | None:
    numpy = sys.modules["numpy"]
    divisor = inputs[-1]
    if not divisor.zeros:
        return None
    told = f"{_count(divisor, 'zeros')} divisors are 0"
    if name not in ("Reciprocal", "Inv") and len(inputs) == 2:
        both = (_numbers(inputs[0].array) == 0) & (_numbers(divisor.array) == 0)
        if numpy.any(both):
            return f"0/0 is NaN; {told}"
    return f"a division by 0 is infinite; {told}"


def _overflow_words(cause: Operation, inputs: list[ArrayStatistics]) -> str | None:
    """Sums and products whose results do not fit into their type."""
    infinite = [one for one in cause.outputs if one.nonfinite and not one.nans]
    if not infinite or not any(one.is_float for one in inputs):
        return None
    dtype = infinite[0].array.dtype
    return (
        f"{cause.name} overflows {dtype}, whose largest number is {largest(dtype):.6g};"
        f" the largest input is {_largest(inputs):.6g}"
    )


def _largest(inputs: Iterable[ArrayStatistics]) -> float:
    found: list[float] = [
        value for one in inputs if one.is_float for value in (one.least, one.most) if value is not None
    ]
    return max(map(abs, found), default=0.0)


def _count(statistics: ArrayStatistics, what: str) -> str:
    return f"{getattr(statistics, what):,} of {statistics.array.size:,}"


def _bad_of(outputs: list[ArrayStatistics]) -> tuple[int, int]:
    bad = [one for one in outputs if one.nonfinite]
    return sum(one.nonfinite for one in bad), sum(one.array.size for one in bad)


# Numbers, whose types may be such as NumPy itself does not know


def _is_float(array: Any) -> bool:
    return array.dtype.kind in "fc" or (array.dtype.kind == "V" and "float" in array.dtype.name)


def is_finite(array: Any) -> bool:
    """Whether an array holds no infinity and no NaN, or nothing that could be one."""
    if not _is_float(array):
        return True
    return bool(sys.modules["numpy"].isfinite(_numbers(array)).all())


def nonfinite_count(array: Any) -> int:
    """How many elements are infinite or NaN."""
    numpy = sys.modules["numpy"]
    return int(array.size - numpy.count_nonzero(numpy.isfinite(_numbers(array)))) if _is_float(array) else 0


def _numbers(array: Any) -> Any:
    """The array in a type that NumPy can compute with: complex numbers by their size."""
    if array.dtype.kind == "c":
        return abs(array)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def _limits(dtype: Any) -> Any:
    try:
        return sys.modules["numpy"].finfo(dtype)
    except ValueError:
        return sys.modules["ml_dtypes"].finfo(dtype)


def largest(dtype: Any) -> float:
    """The largest finite number of a type."""
    return float(_limits(dtype).max)


def smallest_normal(dtype: Any) -> float:
    """The smallest positive number of a type that has all of its digits."""
    return float(_limits(dtype).tiny)


def _exponent_limit(dtype: Any) -> float:
    from math import log

    return log(largest(dtype))
