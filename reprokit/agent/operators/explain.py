"""Finds which of the executed operators turned finite values into non-finite ones, and describes how.

Statistics are computed in the same way by PyTorch and NumPy (for TensorFlow): ``library`` is either of them.
"""

from __future__ import annotations

import functools
import math
import operator
import re

from ..events.operators import BACKWARD, FORWARD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import Any

    Place = tuple[str, int, str]

MAX_TENSORS = 16  # of one operator, whose statistics are reported
MAX_DESCRIBED = 500  # calls whose inputs are described
MAX_NAMES = 3  # samples or lines that a sentence names
CALLED_WITH = "what the model was called with"
_DIVISIONS = {"div", "true_divide", "floor_divide", "reciprocal", "remainder", "fmod", "xlogy", "addcdiv"}
_DIVISIONS |= {"realdiv", "inv", "xdivy", "floormod", "floordiv", "mod"}  # TensorFlow's
_EXPONENTIALS = {"exp": 1.0, "expm1": 1.0, "exp2": math.log(2), "sinh": 1.0, "cosh": 1.0}
_POSSIBLE_SOURCES = ": another rank's gradients, or code beside the framework's operators"
_LOGARITHMS = {"log", "log2", "log10", "lgamma", "digamma"}
_ROOTS = {*_LOGARITHMS, "sqrt", "rsqrt"}
_ADDING_AND_MULTIPLYING = re.compile(
    "add|sub|mul|mm|matmul|dot|mv|conv|linear|einsum|sum|mean|prod|square|pow|norm|exp|cosh|sinh|scale|lerp|mse|var"
)
_ARCS = {"acos", "asin", "atanh"}
# Phase, operators, which of their tensors, which values it has, whether the results are NaN (None: either), what
# that means, and what is counted.
_MEANINGS = (
    (BACKWARD, {"sqrt"}, "saved result", "zeros", None, "{} of 0 has an infinite gradient", "inputs"),
    (BACKWARD, {"rsqrt"}, "saved result", "zeros", None, "{} of 0 has an infinite gradient", "results"),
    (BACKWARD, {*_LOGARITHMS, "log1p"}, "saved self", "zeros", None, "{} of 0 has an infinite gradient", "inputs"),
    (BACKWARD, {"div"}, "saved other", "zeros", None, "a division by 0 has no gradient", "divisors"),
    (BACKWARD, {"pow"}, "saved self", "zeros", None, "a power below 1 has an infinite gradient at 0", "bases"),
    (FORWARD, _DIVISIONS, "divisor", "zeros", True, "0/0 is NaN", "divisors"),
    (FORWARD, _DIVISIONS, "divisor", "zeros", None, "a division by 0 is infinite", "divisors"),
    (FORWARD, _ROOTS, "input", "negative", None, "{} of a negative number is NaN", "inputs"),
    (FORWARD, _ROOTS, "input", "zeros", None, "{} of 0 is infinite", "inputs"),
    (FORWARD, {"pow"}, "input", "zeros", False, "0 to a negative power is infinite", "bases"),
    (FORWARD, {"pow"}, "input", "negative", True, "a negative number has no real power", "bases"),
)


def product(shape: Sequence[int]) -> int:
    """Return the number of elements; math.prod needs Python 3.8."""
    return functools.reduce(operator.mul, shape, 1)


class OperandStatistics:
    """Statistics of a tensor's current values, which are given in a dtype that its library can compute with."""

    def __init__(self, library: Any, values: Any, name: str, dtype: str, shape: Sequence[int], limits: Any) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = [int(size) for size in shape]
        self.largest = None if limits is None else float(limits.max)  # the largest finite number of its dtype
        self.least: float | None = None
        self.most: float | None = None
        self.mean: float | None = None
        finite = library.isfinite(values)
        self.nonfinite, self.nans = int((~finite).sum()), int(library.isnan(values).sum())
        self.zeros, self.negative = int((values == 0).sum()), int((values < 0).sum())
        tiny = 0.0 if limits is None else float(limits.tiny)
        self.subnormal = int(((values != 0) & (abs(values) < tiny)).sum()) if tiny else 0
        finite_values = values[finite] if self.nonfinite else values
        if product(finite_values.shape):
            self.least, self.most = float(finite_values.min()), float(finite_values.max())
            self.mean = float(finite_values.mean(dtype=library.float64))

    @property
    def size(self) -> int:
        """The number of its elements."""
        return product(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether its dtype has non-finite values."""
        return self.largest is not None

    @property
    def size_of_most(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.least or 0.0), abs(self.most or 0.0))

    def line(self) -> dict[str, object]:
        """Return the statistics as in result.json."""
        names = ("name", "dtype", "shape", "min", "max", "mean", "zeros", "nonfinite", "negative", "subnormal")
        return {name: getattr(self, {"min": "least", "max": "most"}.get(name, name)) for name in names}


class CallOrigin:
    """Where a call comes from: the user's lines and layer, and for a gradient's operator the one it differentiates."""

    def __init__(self, where: Sequence[Place], layer: str = "", gradient_of: str = "", node: str = "") -> None:
        self.where = list(where)
        self.layer = layer
        self.gradient_of = gradient_of  # aten::sqrt
        self.node = node  # autograd node that executes it: SqrtBackward0


class OperatorEvent:
    """A call of an operator whose results are not all finite."""

    def __init__(self, number: int, name: str, phase: str, origin: CallOrigin) -> None:
        self.number = number
        self.name = name  # aten::div, RealDiv
        self.phase = phase
        self.origin = origin
        self.parents: list[OperatorEvent] = []  # that produced its non-finite inputs
        self.foreign_inputs: list[tuple[str, OperandStatistics]] = []  # non-finite ones that no operator produced
        self.lines: list[Place] | None = None  # of the script, that may have produced those; None: not only the script
        self.is_intended = False  # the script passed an infinity as a number
        self.introduces_nan = False  # its results have a NaN, and its inputs had none
        self.inputs: list[OperandStatistics] = []
        self.outputs: list[OperandStatistics] = []
        self.first: dict[str, object] | None = None
        self.reason: str | None = None  # of its results, where its arguments show it
        self.rows: list[int] = []  # indices of the results' first axis at which something is not finite
        self.samples: range | None = None  # the step's samples that it worked on; None: all of them
        self.affected_samples: list[int] = []  # whose rows in the collated batch are not finite

    @property
    def is_origin(self) -> bool:
        """Whether all of its inputs were finite."""
        return not (self.parents or self.foreign_inputs or self.is_intended)

    @property
    def has_known_cause(self) -> bool:
        """Whether the problem began here, or with inputs whose origin is known."""
        return self.is_origin or bool(self.lines) or any(name for name, _ in self.foreign_inputs)

    @property
    def operation(self) -> str:
        """The name that users know: the autograd node's, else the operator's."""
        return self.origin.node or self.name

    @property
    def short(self) -> str:
        """The bare name of the operator: div for aten::div_."""
        return _short(self.name)

    def describe(
        self,
        library: Any,
        inputs: list[OperandStatistics],
        outputs: list[OperandStatistics],
        values: Any,
        operands: Sequence[Any] = (),
    ) -> None:
        """Record statistics of inputs and results, and where the first result's values are not finite.

        ``operands`` are the inputs' values; those at the same position are recorded, too.
        """
        self.inputs, self.outputs = inputs[:MAX_TENSORS], outputs[:MAX_TENSORS]
        if values is not None:
            places = library.argwhere(~library.isfinite(values))
            index = places[0].tolist()
            self.first = {"output": 0, "index": index, "value": str(values[tuple(index)].item())}
            if operands:
                self.first["inputs"] = [_element(library, array, values.shape, tuple(index)) for array in operands]
            self.rows = library.unique(places[:, 0]).tolist() if index else []


def _element(library: Any, values: Any, shape: Any, place: tuple[int, ...]) -> str | None:
    try:
        return str(library.broadcast_to(values, shape)[place].item())
    except (ValueError, RuntimeError):  # of another shape
        return None


def _short(name: str) -> str:
    return name.rpartition("::")[2].rstrip("_").lower()


class OperatorTrace:
    """The calls with non-finite results, and which call produced each tensor."""

    def __init__(self) -> None:
        self.events: list[OperatorEvent] = []
        self.count = 0  # of all calls
        self._producers: dict[Hashable, OperatorEvent] = {}  # by a key that identifies a tensor

    def producer(self, keys: Iterable[Hashable]) -> OperatorEvent | None:
        """Return the call that produced the non-finite values under any of these keys, or None."""
        return next((self._producers[key] for key in keys if key in self._producers), None)

    def add(self, event: OperatorEvent, keys: Iterable[Hashable]) -> None:
        """Record a call that produced the tensors under these keys."""
        self.events.append(event)
        self._producers.update(dict.fromkeys(keys, event))

    def add_keys(self, event: OperatorEvent, keys: Iterable[Hashable]) -> None:
        """Record that the first call whose results have these contents is this one, unless an earlier one is."""
        for key in keys:
            self._producers.setdefault(key, event)

    def forget(self, keys: Iterable[Hashable]) -> None:
        """Drop the producers of these tensors, which now hold other, finite values."""
        for key in keys:
            self._producers.pop(key, None)

    def assign(self, producer: OperatorEvent | None, key: Hashable) -> None:
        """Record that a variable now has this call's values; with None, its own producer stays."""
        if producer is not None:
            self._producers[key] = producer

    def ancestors_or_all(self, keys: Iterable[Hashable]) -> list[OperatorEvent]:
        """Return the calls that led to the non-finite values of these tensors; if none did, all calls."""
        return self.ancestors(*keys) or self.events

    def ancestors(self, *keys: Hashable) -> list[OperatorEvent]:
        """Return the calls that led to the non-finite values of these tensors."""
        events_by_number: dict[int, OperatorEvent] = {}
        queue = [self._producers[key] for key in keys if key in self._producers]
        while queue:
            event = queue.pop()
            if event.number not in events_by_number:
                events_by_number[event.number] = event
                queue += event.parents
        return list(events_by_number.values())


def cause(reached: Iterable[OperatorEvent]) -> OperatorEvent | None:
    """Return the first cause among the calls that led to a non-finite value; None if there are no calls."""
    calls = sorted(reached, key=lambda event: event.number)
    criteria: list[Callable[[OperatorEvent], bool]] = [
        lambda event: event.is_origin,
        lambda event: event.has_known_cause,  # inputs were the batch or a parameter
        lambda event: event.introduces_nan and not event.is_intended,  # infinities that were meant, such as a mask's
        lambda event: True,
    ]
    return next((event for criterion in criteria for event in calls if criterion(event)), None)


def line(event: OperatorEvent, samples: int | None) -> dict[str, Any]:
    """Return the cause as it stands in result.json."""
    return {
        "phase": event.phase,
        "operation": None if event.lines else event.operation,
        "operator": event.name,
        "gradient_of": event.origin.gradient_of or None,
        "layer": event.origin.layer or None,
        "where": [list(place) for place in event.lines or event.origin.where],
        "inputs": [tensor.line() for tensor in event.inputs],
        "outputs": [tensor.line() for tensor in event.outputs],
        "first_nonfinite": event.first,
        "samples": _samples(event, samples),
        "words": words(event, samples),
    }


# Words


def words(event: OperatorEvent, samples: int | None = None) -> str:
    """Return a sentence: what happened, to how many elements, in which samples."""
    if event.lines is not None:
        name, bad = next(pair for pair in event.foreign_inputs if pair[0] in ("", CALLED_WITH))
        return _script_words(name or f"what {event.name} was given", event.lines, bad)
    named = [(name, bad) for name, bad in event.foreign_inputs if name]
    if named and not event.is_origin:
        name, bad = named[0]
        return f"{name} was not finite before any operator worked on it: {bad.nonfinite:,} of {bad.size:,} elements"
    if event.is_intended and not (event.parents or event.foreign_inputs):
        return f"{event.name} was given a number that is not finite, which the script has made"
    if not (event.is_origin or event.parents or event.introduces_nan or event.is_intended):
        return (
            f"what {event.name} was given was not finite, and no operator of this process made it" + _POSSIBLE_SOURCES
        )
    if event.reason is not None:
        rows = _samples(event, samples)
        return event.reason if rows is None else f"{event.reason}{_named_samples(rows)}"
    what = _gradient_words(event) if event.phase == BACKWARD else None
    if what is None:
        inputs = "finite inputs" if event.is_origin else "infinite inputs"
        what = _forward_words(event) or _overflow_words(event)
        what = what or f"{event.name} made of {inputs} what is not a number"
        if event.origin.gradient_of and event.phase == BACKWARD:
            what = f"in the gradient of {event.origin.gradient_of}: {what}"
    return what + _in_samples(event, samples)


def _script_words(what: str, lines: list[Place], statistics: OperandStatistics) -> str:
    counted = f"{statistics.nonfinite:,} of {statistics.size:,} elements"
    if not lines:
        return f"{what} was not finite ({counted}): no operator of this process made it, nor is the script's line known"
    named = ", ".join(f"{file}:{line}" for file, line, _ in lines[:MAX_NAMES])
    several = "one of the lines" if len(lines) > 1 else "the line"
    return f"{what} came not finite from {several} {named} of the script: {counted}"


def _samples(event: OperatorEvent, samples: int | None) -> list[int] | None:
    """Return the step's samples whose results are not finite; None if that is unknown, or true of all samples."""
    if event.affected_samples:
        return sorted(set(event.affected_samples))
    batch = range(samples or 0) if event.samples is None else event.samples
    shape = next((tensor.shape for tensor in event.outputs if tensor.nonfinite), [])
    is_of_samples = event.phase in (FORWARD, BACKWARD) and shape[:1] == [len(batch)]
    return [batch[row] for row in event.rows] if is_of_samples and 0 < len(event.rows) < len(batch) else None


def _in_samples(event: OperatorEvent, samples: int | None) -> str:
    bad = [tensor for tensor in event.outputs if tensor.nonfinite]
    count, whole = sum(tensor.nonfinite for tensor in bad), sum(tensor.size for tensor in bad)
    text = f"; {count:,} of {whole:,} results {'is' if count == 1 else 'are'} not finite"
    rows = _samples(event, samples)
    if rows is None:
        return text
    return text + _named_samples(rows)


def _named_samples(rows: Sequence[int]) -> str:
    names = ", ".join(str(row) for row in rows[:MAX_NAMES])
    more = f" and {len(rows) - MAX_NAMES} more" if len(rows) > MAX_NAMES else ""
    return f", in sample{'s' if len(rows) > 1 else ''} {names}{more}"


def _counted(phase: str, name: str, tensors: dict[str, OperandStatistics], has_nan: bool) -> str | None:
    """Return what an operator does with zeros or negative numbers, and how many there are; None if it has none."""
    for of, names, which, attribute, is_nan, text, nouns in _MEANINGS:
        tensor = tensors.get(which)
        count = 0 if of != phase or name not in names or tensor is None else getattr(tensor, attribute)
        if tensor is not None and count and is_nan in (None, has_nan):
            words = text.format("1/sqrt" if (phase, name) == (FORWARD, "rsqrt") else name)
            called = "0" if attribute == "zeros" else attribute
            return f"{words}; {count:,} of {tensor.size:,} {nouns} {'is' if count == 1 else 'are'} {called}"
    return None


def _gradient_words(event: OperatorEvent) -> str | None:
    """Return why a gradient is not finite, from the tensors that the graph saved in the forward pass."""
    name = re.sub(r"backward\d*$", "", event.origin.node.lower()) or _short(event.origin.gradient_of)
    inputs = {tensor.name: tensor for tensor in event.inputs}
    before = inputs.get("saved self")
    if name in _ARCS and before is not None and before.size_of_most >= 1:
        return f"{name} has an infinite gradient at 1 and -1; the largest input is {before.size_of_most:.6g}"
    return _counted(BACKWARD, name, inputs, False)


def _forward_words(event: OperatorEvent) -> str | None:
    name, floats = event.short, [each for each in event.inputs if each.is_float and not each.name.startswith("saved")]
    result = event.outputs[0] if event.outputs else None
    named = [each for each in event.inputs if each.name in ("other", "saved other", "tensor2")]
    divisors = floats if name in ("reciprocal", "inv") or not named else named
    tensors = {"input": floats[0]} if floats else {}
    tensors.update({"divisor": divisors[-1]} if divisors else {})
    words = _counted(FORWARD, name, tensors, result is not None and bool(result.nans))
    if words is not None or not floats:
        return words
    first = floats[0]
    if name == "log1p" and first.least is not None and first.least <= -1:
        return "log1p has no finite value at -1 and below"
    if name in _EXPONENTIALS and first.largest is not None:
        limit = math.log(first.largest) / _EXPONENTIALS[name]
        if first.size_of_most > limit:
            return f"{name} overflows {first.dtype} above {limit:.4g}; the largest input is {first.size_of_most:.6g}"
    if name in _ARCS and first.size_of_most >= 1:
        return f"{name} has no finite value there; the largest input is {first.size_of_most:.6g}"
    if name in ("_to_copy", "copy", "cast") and result is not None and result.dtype != first.dtype:
        return _cast_words(first, result)
    if "softmax" in name and first.nonfinite:
        return f"{name.lstrip('_')} of nothing but infinities is NaN, as where a mask leaves nothing of a row"
    return None


def _cast_words(before: OperandStatistics, after: OperandStatistics) -> str | None:
    if after.largest is None or before.size_of_most <= after.largest:
        return None
    return (
        f"{before.size_of_most:.6g} is beyond {after.dtype}, whose largest number is {after.largest:.6g},"
        f" to which {before.dtype} was cast"
    )


def _overflow_words(event: OperatorEvent) -> str | None:
    """Return words for infinities; that it is an overflow is said of operators that add and multiply alone."""
    infinite = [tensor for tensor in event.outputs if tensor.nonfinite > tensor.nans and tensor.largest is not None]
    floats = [tensor for tensor in event.inputs if tensor.is_float]
    if not infinite or not floats or not event.is_origin:
        return None
    largest = max(tensor.size_of_most for tensor in floats)
    if not _ADDING_AND_MULTIPLYING.search(event.short):
        return f"{event.name} made infinities of finite inputs; the largest input is {largest:.6g}"
    return (
        f"{event.name} overflows {infinite[0].dtype}, whose largest number is {infinite[0].largest:.6g};"
        f" the largest input is {largest:.6g}"
    )
