"""Which operator of PyTorch turned finite values into others, among those that were executed, and what that means."""

from __future__ import annotations

import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    Place = tuple[str, int, str]

FORWARD, BACKWARD = "forward", "backward"
MAX_TENSORS = 16  # of one operator's, whose statistics are told
MAX_NAMES = 3  # of samples, told in words
_DIVISIONS = frozenset(["div", "true_divide", "floor_divide", "reciprocal", "remainder", "fmod", "xlogy"])
_EXPONENTIALS = {"exp": 1.0, "expm1": 1.0, "exp2": math.log(2), "sinh": 1.0, "cosh": 1.0}
_SUSPECT = ": another rank's gradients, or code beside PyTorch's operators"
_LOGARITHMS = frozenset(["log", "log2", "log10", "log1p", "lgamma", "digamma"])


class Statistics:
    """What is told of a tensor as it is now."""

    def __init__(self, torch: Any, name: str, tensor: Any) -> None:
        self.name = name
        self.dtype = str(tensor.dtype).rpartition(".")[2]
        self.shape = [int(size) for size in tensor.shape]
        self.size = tensor.numel()
        self.is_float = tensor.is_floating_point() or tensor.is_complex()
        self.largest = float(torch.finfo(tensor.dtype).max) if self.is_float else None
        self.nonfinite, self.nans, self.zeros, self.negative, self.subnormal = 0, 0, 0, 0, 0
        self.least: float | None = None
        self.most: float | None = None
        self.mean: float | None = None
        if self.size:
            self._count(torch, numbers(torch, tensor))

    def _count(self, torch: Any, values: Any) -> None:
        finite = torch.isfinite(values)
        self.nonfinite = self.size - int(finite.sum())
        self.nans = int(torch.isnan(values).sum())
        self.zeros = int((values == 0).sum())
        self.negative = int((values < 0).sum())
        if self.is_float:
            tiny = torch.finfo(getattr(torch, self.dtype)).tiny
            self.subnormal = int(((values != 0) & (values.abs() < tiny)).sum())
        kept = values[finite] if self.nonfinite else values
        if kept.numel():
            self.least, self.most = float(kept.min()), float(kept.max())
            self.mean = float(kept.mean(dtype=torch.float64))

    @property
    def size_of_most(self) -> float:
        """The largest finite absolute value."""
        return max(abs(self.least or 0.0), abs(self.most or 0.0))

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        return {
            "name": self.name,
            "dtype": self.dtype,
            "shape": self.shape,
            "min": self.least,
            "max": self.most,
            "mean": self.mean,
            "zeros": self.zeros,
            "nonfinite": self.nonfinite,
            "negative": self.negative,
            "subnormal": self.subnormal,
        }


class OperatorEvent:
    """A call of an operator with something in its results that is not finite."""

    def __init__(self, number: int, name: str, phase: str, where: Sequence[Place], layer: str) -> None:
        self.number = number
        self.name = name  # aten::div
        self.phase = phase
        self.where = list(where)
        self.layer = layer
        self.node = ""  # whose backward pass it is of: SqrtBackward0
        self.gradient_of = ""  # aten::sqrt
        self.parents: list[OperatorEvent] = []  # who made the inputs that were not finite
        self.given: list[tuple[str, Statistics]] = []  # inputs that were not, which nobody made: a name and statistics
        self.is_meant = False  # an infinity was asked for by number
        self.makes_nan = False  # it has a NaN, and its inputs had none
        self.inputs: list[Statistics] = []
        self.outputs: list[Statistics] = []
        self.first: dict[str, object] | None = None
        self.rows: list[int] = []  # of the first axis of the results, in which something is not finite

    @property
    def is_origin(self) -> bool:
        """Whether all that it was given was finite."""
        return not (self.parents or self.given or self.is_meant)

    @property
    def is_known(self) -> bool:
        """Whether it began here, or with what the script was given."""
        return self.is_origin or any(name for name, _ in self.given)

    @property
    def operation(self) -> str:
        """What the user knows it by."""
        return self.node or self.name

    @property
    def short(self) -> str:
        """The operator's name alone: div_ of aten::div_ is div."""
        return self.name.rpartition("::")[2].rstrip("_")


def cause(reached: Iterable[OperatorEvent]) -> OperatorEvent | None:
    """What it began with, of the calls that a value which is not finite came from."""
    calls = sorted(reached, key=lambda event: event.number)
    wanted: list[Callable[[OperatorEvent], bool]] = [
        lambda event: event.is_origin,
        lambda event: event.is_known,  # the batch or a parameter
        lambda event: event.makes_nan and not event.is_meant,  # infinities that were meant, such as a mask's
        lambda event: True,
    ]
    for wants in wanted:
        found = next(filter(wants, calls), None)
        if found is not None:
            return found
    return None


def reached_from(events: Iterable[OperatorEvent]) -> list[OperatorEvent]:
    """These calls and all that what was not finite in them came from."""
    seen: dict[int, OperatorEvent] = {}
    waiting = list(events)
    while waiting:
        event = waiting.pop()
        if event.number not in seen:
            seen[event.number] = event
            waiting += event.parents
    return list(seen.values())


def line(event: OperatorEvent, samples: int | None) -> dict[str, object]:
    """The cause as it stands in result.json."""
    return {
        "phase": event.phase,
        "operation": event.operation,
        "operator": event.name,
        "gradient_of": event.gradient_of or None,
        "layer": event.layer or None,
        "where": [list(place) for place in event.where],
        "inputs": [one.line() for one in event.inputs],
        "outputs": [one.line() for one in event.outputs],
        "first_nonfinite": event.first,
        "samples": _samples(event, samples),
        "words": words(event, samples),
    }


# Words


def words(event: OperatorEvent, samples: int | None = None) -> str:
    """One sentence: what happened, to how many elements, in which samples."""
    named = [(name, one) for name, one in event.given if name]
    if named and not event.is_origin:
        name, one = named[0]
        return f"{name} was not finite before any operator worked on it: {one.nonfinite:,} of {one.size:,} elements"
    if not (event.is_origin or event.parents or event.makes_nan or event.is_meant):
        return f"what {event.name} was given was not finite, and no operator of this process made it" + _SUSPECT
    what = _gradient_words(event) if event.phase == BACKWARD and event.node else None
    what = what or _forward_words(event) or _overflow_words(event)
    if what is None:
        inputs = "finite inputs" if event.is_origin else "infinite inputs"
        of = f" in the gradient of {event.gradient_of}" if event.gradient_of and event.phase == BACKWARD else ""
        what = f"{event.name}{of} made of {inputs} what is not a number"
    return what + _in_samples(event, samples)


def _samples(event: OperatorEvent, samples: int | None) -> list[int] | None:
    """Those of the batch in which the results are not finite, where that is known of some of them only."""
    bad = [one for one in event.outputs if one.nonfinite]
    is_told = samples is not None and bad and bad[0].shape[:1] == [samples] and 0 < len(event.rows) < samples
    return event.rows if is_told else None


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


def _count(one: Statistics, what: str) -> str:
    return f"{getattr(one, what):,} of {one.size:,}"


def _is_or_are(one: Statistics, what: str) -> str:
    return "is" if getattr(one, what) == 1 else "are"


def _named(event: OperatorEvent, name: str) -> Statistics | None:
    """The input of this name."""
    return next((one for one in event.inputs if one.name == name), None)


def _gradient_words(event: OperatorEvent) -> str | None:
    """What is known of gradients, from what their nodes keep of the forward pass."""
    name = re.sub(r"Backward\d*$", "", event.node)
    before, result, divisor = (_named(event, f"saved {kept}") for kept in ("self", "result", "other"))
    if name in ("Sqrt", "Rsqrt") and result is not None and result.zeros:
        zeros, what = _count(result, "zeros"), "inputs" if name == "Sqrt" else "results"
        return f"{name.lower()} of 0 has an infinite gradient; {zeros} {what} {_is_or_are(result, 'zeros')} 0"
    if name.startswith("Log") and before is not None and before.zeros:
        are = _is_or_are(before, "zeros")
        return f"{name.lower()} of 0 has an infinite gradient; {_count(before, 'zeros')} inputs {are} 0"
    if name == "Div" and divisor is not None and divisor.zeros:
        are = _is_or_are(divisor, "zeros")
        return f"a division by 0 has no gradient; {_count(divisor, 'zeros')} divisors {are} 0"
    if name == "Pow" and before is not None and before.zeros:
        are = _is_or_are(before, "zeros")
        return f"a power below 1 has an infinite gradient at 0; {_count(before, 'zeros')} bases {are} 0"
    if name in ("Acos", "Asin", "Atanh") and before is not None and before.size_of_most >= 1:
        return f"{name.lower()} has an infinite gradient at 1 and -1; the largest input is {before.size_of_most:.6g}"
    return None


def _forward_words(event: OperatorEvent) -> str | None:
    name, floats = event.short, [one for one in event.inputs if one.is_float and not one.name.startswith("saved")]
    first = floats[0] if floats else None
    if name in _DIVISIONS:
        return _division_words(event, floats)
    if first is None:
        return None
    if name in _LOGARITHMS or name in ("sqrt", "rsqrt"):
        return _root_words(name, first)
    if name in _EXPONENTIALS and first.largest is not None:
        limit = math.log(first.largest) / _EXPONENTIALS[name]
        if first.size_of_most > limit:
            return f"{name} overflows {first.dtype} above {limit:.4g}; the largest input is {first.size_of_most:.6g}"
    if name in ("acos", "asin", "atanh") and first.size_of_most >= 1:
        return f"{name} has no finite value there; the largest input is {first.size_of_most:.6g}"
    if name == "pow" and first.zeros and event.outputs and not event.outputs[0].nans:
        return f"0 to a negative power is infinite; {_count(first, 'zeros')} bases {_is_or_are(first, 'zeros')} 0"
    if name == "pow" and first.negative and event.outputs and event.outputs[0].nans:
        are = _is_or_are(first, "negative")
        return f"a negative number has no real power; {_count(first, 'negative')} bases {are} negative"
    if name in ("_to_copy", "copy") and event.outputs and event.outputs[0].dtype != first.dtype:
        return _cast_words(first, event.outputs[0])
    if "softmax" in name and first.nonfinite:
        return f"{name.lstrip('_')} of nothing but infinities is NaN, as where a mask leaves nothing of a row"
    return None


def _root_words(name: str, first: Statistics) -> str | None:
    called = "1/sqrt" if name == "rsqrt" else name
    if name == "log1p":
        return "log1p has no finite value at -1 and below" if first.least is not None and first.least <= -1 else None
    if first.negative:
        are = _is_or_are(first, "negative")
        return f"{called} of a negative number is NaN; {_count(first, 'negative')} inputs {are} negative"
    if first.zeros:
        return f"{called} of 0 is infinite; {_count(first, 'zeros')} inputs {_is_or_are(first, 'zeros')} 0"
    return None


def _division_words(event: OperatorEvent, floats: list[Statistics]) -> str | None:
    divisors = [one for one in event.inputs if one.name in ("other", "saved other")] or floats
    if event.short == "reciprocal":
        divisors = floats
    if not divisors or not divisors[-1].zeros:
        return None
    divisor = divisors[-1]
    told = f"{_count(divisor, 'zeros')} divisors {_is_or_are(divisor, 'zeros')} 0"
    if event.outputs and event.outputs[0].nans:
        return f"0/0 is NaN; {told}"
    return f"a division by 0 is infinite; {told}"


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
    of = f" in the gradient of {event.gradient_of}" if event.gradient_of and event.phase == BACKWARD else ""
    return (
        f"{event.name}{of} overflows {infinite[0].dtype}, whose largest number is {infinite[0].largest:.6g};"
        f" the largest input is {largest:.6g}"
    )


# Numbers


def numbers(torch: Any, tensor: Any) -> Any:
    """The values of any tensor in a type that can be computed with: complex numbers by their size."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        return tensor.abs()
    if tensor.dtype is torch.bool:
        return tensor.to(torch.uint8)
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def is_finite(torch: Any, tensor: Any) -> bool:
    """Whether a tensor holds no infinity and no NaN, or nothing that could be one."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    if tensor.layout is not torch.strided or tensor.element_size() < 2:
        tensor = numbers(torch, tensor)
    return bool(torch.isfinite(tensor.detach()).all())
