"""Why operators of PyTorch compute what is not finite, where their arguments show it: the reason as the field says it.

A reason is looked for by the operator's name and from the values of its arguments, not from its results.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ...pytorch.operators import PytorchOperator

MEAN = 1  # the number of reduction="mean"


class FailingCall:
    """The arguments of a call: tensors as they are, and others with their defaults."""

    def __init__(self, torch: Any, name: str, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        self.torch = torch
        self.name = name.rpartition("::")[2].rstrip("_").lstrip("_")
        self._given, self._attributes = values, attributes

    def tensor(self, name: str) -> Any:
        """Return a tensor argument; None if there is none."""
        value = self._given.get(name)
        return value if isinstance(value, self.torch.Tensor) else None

    def attribute(self, name: str) -> Any:
        """Return an argument that is no tensor, or its default; None if there is none."""
        return self._attributes.get(name)

    def integers(self, name: str) -> list[int]:
        """Return a list of integers, given as such or as a tensor."""
        tensor = self.tensor(name)
        value = self._given.get(name) if tensor is None else tensor.flatten().tolist()
        return [int(number) for number in value or ()]


def reason_of(torch: Any, operator: PytorchOperator, args: Any, kwargs: Any) -> str | None:
    """Return why a call's results are not finite; None where that is not known from its arguments."""
    find = _REASONS.get(operator.name.rpartition("::")[2].rstrip("_").lstrip("_"))
    if find is None:
        return None
    values = {**dict(zip(operator.names, args)), **kwargs}
    return find(FailingCall(torch, operator.name, values, operator.attributes(args, kwargs)))


def _ctc_loss(call: FailingCall) -> str | None:
    """A path has a step for each label, and one for the blank between two that are equal."""
    targets, steps, lengths = call.tensor("targets"), call.integers("input_lengths"), call.integers("target_lengths")
    if targets is None or len(steps) != len(lengths):
        return None
    flat, bad = targets.flatten().tolist(), []
    for sample, (available, length) in enumerate(zip(steps, lengths)):
        begin = sample * targets.shape[1] if targets.dim() > 1 else sum(lengths[:sample])
        labels = flat[begin : begin + length]
        needed = length + sum(label == following for label, following in zip(labels, labels[1:]))
        if needed > available:
            bad.append((sample, length, needed, available))
    if not bad:
        return None
    sample, length, needed, available = bad[0]
    repeats = f", {needed} with blanks between repeats" if needed > length else ""
    others = f", nor do those of {len(bad) - 1} others" if len(bad) > 1 else ""
    return (
        f"the target of sample {sample} ({_counted(length, 'label')}{repeats}) does not fit into"
        f" {_counted(available, 'input step')}{others}: there is no path, so the CTC loss is infinite"
        " (zero_infinity=True makes it 0)"
    )


def _deviation(call: FailingCall) -> str | None:
    values, correction = call.tensor("self"), call.attribute("correction")
    if values is None:
        return None
    if correction is None:  # of the oldest overload it is a flag, and else 1 by default
        correction = 1 if call.attribute("unbiased") in (None, True) else 0
    count = _reduced_count(values, call.attribute("dim"))
    if count - float(correction) > 0:
        return None
    what = "standard deviation" if call.name.startswith("std") else "variance"
    number = f"n - {correction:g} = {count - float(correction):g}" if correction else "n = 0"
    advice = " (correction=0 divides by n)" if correction and count else ""
    return f"the {what} of {_counted(count, 'value')} divides by {number}{advice}"


def _mean(call: FailingCall) -> str | None:
    values = call.tensor("self")
    is_empty = values is not None and _reduced_count(values, call.attribute("dim")) == 0
    return "the mean of no values is 0/0, which is NaN" if is_empty else None


def _pointwise_loss(call: FailingCall) -> str | None:
    values = call.tensor("self")
    is_empty = values is not None and not values.numel() and call.attribute("reduction") == MEAN
    return "the loss is the mean over no values: 0/0, which is NaN" if is_empty else None


def _likelihood(call: FailingCall) -> str | None:
    """The mean over labels divides by the sum of their weights; ignored ones have none."""
    target, weight, ignored = call.tensor("target"), call.tensor("weight"), call.attribute("ignore_index")
    if target is None or call.attribute("reduction") != MEAN:
        return None
    counted = target[target != ignored]
    if not target.numel():
        return "the loss is the mean over no labels: 0/0, which is NaN"
    if not counted.numel():
        return f"all {target.numel():,} labels are ignore_index ({ignored}): the loss is the mean over none, 0/0"
    if weight is not None and not bool(weight[counted].any()):
        return f"the classes of all {counted.numel():,} labels have the weight 0: their weighted mean is 0/0"
    return None


def _softmax(call: FailingCall) -> str | None:
    values, axis = call.tensor("self"), call.attribute("dim")
    if values is None or not values.dim() or not isinstance(axis, int):
        return None
    if bool(values.isnan().any()):
        return None
    empty = (values == -float("inf")).all(axis)
    if bool(empty.any()):
        count = f"{int(empty.sum()):,} of {empty.numel():,} rows {'is' if int(empty.sum()) == 1 else 'are'}"
        return f"{call.name} of nothing but -inf is NaN, as where a mask leaves nothing of a row; {count} such"
    if bool((values == float("inf")).any()):
        return f"{call.name} of an infinite value is inf - inf, which is NaN"
    return None


def _logit(call: FailingCall) -> str | None:
    values = call.tensor("self")
    if values is None or call.attribute("eps") is not None:
        return None
    count, outside = int(((values == 0) | (values == 1)).sum()), int(((values < 0) | (values > 1)).sum())
    if outside:
        return f"logit of a number outside of 0 to 1 is NaN; {outside:,} of {values.numel():,} inputs are"
    return f"logit of 0 or 1 is infinite; {count:,} of {values.numel():,} inputs are" if count else None


def _inverse_error(call: FailingCall) -> str | None:
    values = call.tensor("self")
    count = 0 if values is None else int((values.abs() >= 1).sum())
    return f"erfinv is infinite at 1 and -1, and NaN beyond; {count:,} inputs are there" if count else None


def _norm(call: FailingCall) -> str | None:
    """Normalizing divides by the root of the variance plus eps."""
    epsilon = call.attribute("eps")
    if epsilon != 0:
        return None
    what = {"native_layer_norm": "a row", "native_group_norm": "a group"}.get(call.name, "a channel")
    return f"eps is 0, and the values of {what} are equal: normalizing divides by their standard deviation, 0"


def _log_determinant(call: FailingCall) -> str | None:
    matrix = call.tensor("A")
    if matrix is None:
        matrix = call.tensor("self")
    is_singular = matrix is not None and bool((call.torch.linalg.det(matrix.detach()) == 0).any())
    return "the matrix is singular: the logarithm of its determinant, 0, is -inf" if is_singular else None


def _log_sum(call: FailingCall) -> str | None:
    values, axes = call.tensor("self"), call.attribute("dim")
    is_empty = values is not None and _reduced_count(values, axes) == 0
    return "logsumexp of no values is -inf, the logarithm of 0" if is_empty else None


def _reduced_count(values: Any, axes: Any) -> int:
    """Return how many values each result is made of."""
    if axes is None or axes == [] or not values.dim():
        return int(values.numel())
    count = 1
    for axis in [axes] if isinstance(axes, int) else axes:
        count *= int(values.shape[axis])
    return count


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


_REASONS: dict[str, Callable[[FailingCall], str | None]] = {
    "ctc_loss": _ctc_loss,
    **dict.fromkeys(["std", "var", "std_mean", "var_mean"], _deviation),
    "mean": _mean,
    **dict.fromkeys(["nll_loss_forward", "nll_loss2d_forward"], _likelihood),
    **dict.fromkeys(["softmax", "log_softmax"], _softmax),
    **dict.fromkeys(["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"], _pointwise_loss),
    "logit": _logit,
    "erfinv": _inverse_error,
    **dict.fromkeys(["native_layer_norm", "native_group_norm", "native_batch_norm"], _norm),
    "native_batch_norm_legit": _norm,
    "linalg_slogdet": _log_determinant,
    "logsumexp": _log_sum,
}
