"""Finds which operator turned finite values into others, among those that were executed, and says what that means.

What is computed of values is the same in PyTorch and NumPy (TensorFlow's arrays): ``library`` is either of them.
"""

from __future__ import annotations

import functools
import math
import operator
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from typing import Any

    Place = tuple[str, int, str]

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
MAX_TENSORS = 16  # of one operator's, whose statistics are told
MAX_TOLD = 500  # calls whose inputs are described
MAX_NAMES = 3  # of samples and lines, told in words
CALLED_WITH = "what the model was called with"
_DIVISIONS = {"div", "true_divide", "floor_divide", "reciprocal", "remainder", "fmod", "xlogy", "addcdiv"}
_DIVISIONS |= {"realdiv", "inv", "xdivy", "floormod", "floordiv", "mod"}  # TensorFlow's
_EXPONENTIALS = {"exp": 1.0, "expm1": 1.0, "exp2": math.log(2), "sinh": 1.0, "cosh": 1.0}
_SUSPECT = ": another rank's gradients, or code beside the framework's operators"
_LOGARITHMS = {"log", "log2", "log10", "lgamma", "digamma"}
_ROOTS = {*_LOGARITHMS, "sqrt", "rsqrt"}
_ARCS = {"acos", "asin", "atanh"}
# Phase, operators, and of which of their tensors: what it has, whether the results are NaN (None: they may be), what
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


class Statistics:
    """What is told of a tensor as it is now, from its values in a type that its library can compute with."""

    def __init__(self, library: Any, values: Any, name: str, dtype: str, shape: Sequence[int], limits: Any) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = [int(size) for size in shape]
        self.largest = None if limits is None else float(limits.max)  # finite number of its data type
        self.least: float | None = None
        self.most: float | None = None
        self.mean: float | None = None
        finite = library.isfinite(values)
        self.nonfinite, self.nans = int((~finite).sum()), int(library.isnan(values).sum())
        self.zeros, self.negative = int((values == 0).sum()), int((values < 0).sum())
        tiny = 0.0 if limits is None else float(limits.tiny)
        self.subnormal = int(((values != 0) & (abs(values) < tiny)).sum()) if tiny else 0
        kept = values[finite] if self.nonfinite else values
        if product(kept.shape):
            self.least, self.most = float(kept.min()), float(kept.max())
            self.mean = float(kept.mean(dtype=library.float64))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return product(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it can hold what is not finite."""
        return self.largest is not None

    @property
    def size_of_most(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.least or 0.0), abs(self.most or 0.0))

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        names = ("name", "dtype", "shape", "min", "max", "mean", "zeros", "nonfinite", "negative", "subnormal")
        return {name: getattr(self, {"min": "least", "max": "most"}.get(name, name)) for name in names}


class Origin:
    """Where an operator comes from: the user's lines and layer, and of a gradient's operator the one before."""

    def __init__(self, where: Sequence[Place], layer: str = "", gradient_of: str = "", node: str = "") -> None:
        self.where = list(where)
        self.layer = layer
        self.gradient_of = gradient_of  # aten::sqrt
        self.node = node  # whose backward pass it is of: SqrtBackward0


class OperatorEvent:
    """A call of an operator with something in its results that is not finite."""

    def __init__(self, number: int, name: str, phase: str, origin: Origin) -> None:
        self.number = number
        self.name = name  # aten::div, RealDiv
        self.phase = phase
        self.origin = origin
        self.parents: list[OperatorEvent] = []  # who made the inputs that were not finite
        self.given: list[tuple[str, Statistics]] = []  # inputs that were not, which nobody made: a name and statistics
        self.lines: list[Place] | None = None  # of the script, that may have made those; None where others may have
        self.is_meant = False  # an infinity was asked for by number
        self.makes_nan = False  # it has a NaN, and its inputs had none
        self.inputs: list[Statistics] = []
        self.outputs: list[Statistics] = []
        self.first: dict[str, object] | None = None
        self.rows: list[int] = []  # of the first axis of the results, in which something is not finite
        self.batch: range | None = None  # which of the step's samples were worked on; None: all of them
        self.of_samples: list[int] = []  # of which it made what is not finite, where the batch told it that it is in

    @property
    def is_origin(self) -> bool:
        """Whether all that it was given was finite."""
        return not (self.parents or self.given or self.is_meant)

    @property
    def is_known(self) -> bool:
        """Whether it began here, or with what the script was given."""
        return self.is_origin or bool(self.lines) or any(name for name, _ in self.given)

    @property
    def operation(self) -> str:
        """What the user knows it by."""
        return self.origin.node or self.name

    @property
    def short(self) -> str:
        """The operator's name alone: div_ of aten::div_ is div."""
        return _short(self.name)

    def tell(
        self, library: Any, inputs: list[Statistics], outputs: list[Statistics], values: Any, given: Sequence[Any] = ()
    ) -> None:
        """Keep what is told of inputs and results, and where the values of the first result are not finite.

        ``given`` are the values of inputs, of which those at the same place are told.
        """
        self.inputs, self.outputs = inputs[:MAX_TENSORS], outputs[:MAX_TENSORS]
        if values is not None:
            places = library.argwhere(~library.isfinite(values))
            index = places[0].tolist()
            self.first = {"output": 0, "index": index, "value": str(values[tuple(index)].item())}
            if given:
                self.first["inputs"] = [_element(library, one, values.shape, tuple(index)) for one in given]
            self.rows = library.unique(places[:, 0]).tolist() if index else []


def _element(library: Any, values: Any, shape: Any, place: tuple[int, ...]) -> str | None:
    try:
        return str(library.broadcast_to(values, shape)[place].item())
    except (ValueError, RuntimeError):  # of another shape
        return None


def _short(name: str) -> str:
    return name.rpartition("::")[2].rstrip("_").lower()


class Trace:
    """The calls with results that are not finite, and which of them made each."""

    def __init__(self) -> None:
        self.events: list[OperatorEvent] = []
        self.count = 0  # of all calls
        self._makers: dict[Hashable, OperatorEvent] = {}  # by what stands for a tensor

    def maker(self, keys: Iterable[Hashable]) -> OperatorEvent | None:
        """Return who made what is not finite in this tensor."""
        return next((self._makers[key] for key in keys if key in self._makers), None)

    def add(self, event: OperatorEvent, keys: Iterable[Hashable]) -> None:
        """Take in a call that made these tensors."""
        self.events.append(event)
        self._makers.update(dict.fromkeys(keys, event))

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These are another's now, and finite."""
        for key in keys:
            self._makers.pop(key, None)

    def hand_on(self, maker: OperatorEvent | None, key: Hashable) -> None:
        """A variable has what this call made; what it is added to stays another's, where it is finite."""
        if maker is not None:
            self._makers[key] = maker

    def reached(self, keys: Iterable[Hashable]) -> list[OperatorEvent]:
        """Return the calls that what is not finite in these tensors came from; all where that leads nowhere."""
        return self.made(*keys) or self.events

    def made(self, *keys: Hashable) -> list[OperatorEvent]:
        """Return the calls that what is not finite in these tensors came from."""
        seen: dict[int, OperatorEvent] = {}
        waiting = [self._makers[key] for key in keys if key in self._makers]
        while waiting:
            event = waiting.pop()
            if event.number not in seen:
                seen[event.number] = event
                waiting += event.parents
        return list(seen.values())


def cause(reached: Iterable[OperatorEvent]) -> OperatorEvent | None:
    """Return what it began with, of the calls that a value which is not finite came from."""
    calls = sorted(reached, key=lambda event: event.number)
    wanted: list[Callable[[OperatorEvent], bool]] = [
        lambda event: event.is_origin,
        lambda event: event.is_known,  # the batch or a parameter
        lambda event: event.makes_nan and not event.is_meant,  # infinities that were meant, such as a mask's
        lambda event: True,
    ]
    return next((event for wants in wanted for event in calls if wants(event)), None)


def line(event: OperatorEvent, samples: int | None) -> dict[str, Any]:
    """Return the cause as it stands in result.json."""
    return {
        "phase": event.phase,
        "operation": None if event.lines else event.operation,
        "operator": event.name,
        "gradient_of": event.origin.gradient_of or None,
        "layer": event.origin.layer or None,
        "where": [list(place) for place in event.lines or event.origin.where],
        "inputs": [one.line() for one in event.inputs],
        "outputs": [one.line() for one in event.outputs],
        "first_nonfinite": event.first,
        "samples": _samples(event, samples),
        "words": words(event, samples),
    }


# Words


def words(event: OperatorEvent, samples: int | None = None) -> str:
    """One sentence: what happened, to how many elements, in which samples."""
    if event.lines is not None:
        name, one = next(pair for pair in event.given if pair[0] in ("", CALLED_WITH))
        return _script_words(name or f"what {event.name} was given", event.lines, one)
    named = [(name, one) for name, one in event.given if name]
    if named and not event.is_origin:
        name, one = named[0]
        return f"{name} was not finite before any operator worked on it: {one.nonfinite:,} of {one.size:,} elements"
    if event.is_meant and not (event.parents or event.given):
        return f"{event.name} was given a number that is not finite, which the script has made"
    if not (event.is_origin or event.parents or event.makes_nan or event.is_meant):
        return f"what {event.name} was given was not finite, and no operator of this process made it" + _SUSPECT
    what = _gradient_words(event) if event.phase == BACKWARD else None
    if what is None:
        inputs = "finite inputs" if event.is_origin else "infinite inputs"
        what = _forward_words(event) or _overflow_words(event)
        what = what or f"{event.name} made of {inputs} what is not a number"
        if event.origin.gradient_of and event.phase == BACKWARD:
            what = f"in the gradient of {event.origin.gradient_of}: {what}"
    return what + _in_samples(event, samples)


def _script_words(what: str, lines: list[Place], one: Statistics) -> str:
    counted = f"{one.nonfinite:,} of {one.size:,} elements"
    if not lines:
        return f"{what} was not finite ({counted}): no operator of this process made it, nor is the script's line known"
    named = ", ".join(f"{file}:{line}" for file, line, _ in lines[:MAX_NAMES])
    several = "one of the lines" if len(lines) > 1 else "the line"
    return f"{what} came not finite from {several} {named} of the script: {counted}"


def _samples(event: OperatorEvent, samples: int | None) -> list[int] | None:
    """Return those of the step in which the results are not finite, where that is known of some of them only."""
    if event.of_samples:
        return sorted(set(event.of_samples))
    batch = range(samples or 0) if event.batch is None else event.batch
    shape = next((one.shape for one in event.outputs if one.nonfinite), [])
    is_of_samples = event.phase in (FORWARD, BACKWARD) and shape[:1] == [len(batch)]
    return [batch[row] for row in event.rows] if is_of_samples and 0 < len(event.rows) < len(batch) else None


def _in_samples(event: OperatorEvent, samples: int | None) -> str:
    bad = [one for one in event.outputs if one.nonfinite]
    count, whole = sum(one.nonfinite for one in bad), sum(one.size for one in bad)
    told = f"; {count:,} of {whole:,} results {'is' if count == 1 else 'are'} not finite"
    rows = _samples(event, samples)
    if rows is None:
        return told
    names = ", ".join(str(row) for row in rows[:MAX_NAMES])
    more = f" and {len(rows) - MAX_NAMES} more" if len(rows) > MAX_NAMES else ""
    return f"{told}, in sample{'s' if len(rows) > 1 else ''} {names}{more}"


def _counted(phase: str, name: str, tensors: dict[str, Statistics], has_nan: bool) -> str | None:
    """Return what an operator makes of zeros or negative numbers, and how many of them there are."""
    for of, names, which, what, is_nan, text, nouns in _MEANINGS:
        one = tensors.get(which)
        count = 0 if of != phase or name not in names or one is None else getattr(one, what)
        if one is not None and count and is_nan in (None, has_nan):
            words = text.format("1/sqrt" if (phase, name) == (FORWARD, "rsqrt") else name)
            called = "0" if what == "zeros" else what
            return f"{words}; {count:,} of {one.size:,} {nouns} {'is' if count == 1 else 'are'} {called}"
    return None


def _gradient_words(event: OperatorEvent) -> str | None:
    """Return what is known of gradients, from what is kept of the forward pass for them."""
    name = re.sub(r"backward\d*$", "", event.origin.node.lower()) or _short(event.origin.gradient_of)
    inputs = {one.name: one for one in event.inputs}
    before = inputs.get("saved self")
    if name in _ARCS and before is not None and before.size_of_most >= 1:
        return f"{name} has an infinite gradient at 1 and -1; the largest input is {before.size_of_most:.6g}"
    return _counted(BACKWARD, name, inputs, False)


def _forward_words(event: OperatorEvent) -> str | None:
    name, floats = event.short, [one for one in event.inputs if one.is_float and not one.name.startswith("saved")]
    result = event.outputs[0] if event.outputs else None
    named = [one for one in event.inputs if one.name in ("other", "saved other", "tensor2")]
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


def _cast_words(before: Statistics, after: Statistics) -> str | None:
    if after.largest is None or before.size_of_most <= after.largest:
        return None
    return (
        f"{before.size_of_most:.6g} is beyond {after.dtype}, whose largest number is {after.largest:.6g},"
        f" to which {before.dtype} was cast"
    )


def _overflow_words(event: OperatorEvent) -> str | None:
    """Sums and products whose results do not fit into their type."""
    infinite = [one for one in event.outputs if one.nonfinite > one.nans and one.largest is not None]
    floats = [one for one in event.inputs if one.is_float]
    if not infinite or not floats or not event.is_origin:
        return None
    largest = max(one.size_of_most for one in floats)
    return (
        f"{event.name} overflows {infinite[0].dtype}, whose largest number is {infinite[0].largest:.6g};"
        f" the largest input is {largest:.6g}"
    )
