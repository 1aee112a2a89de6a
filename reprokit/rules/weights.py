"""Rules on parameters and their gradients."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reprokit.rules.observations import Alarm, is_bias, is_matrix, loss, number, tensors, values
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import FROZEN, TRAIN, TensorTrial


@dataclass
class ExplodingTensor:
    """A tensor holds NaN or infinity."""

    trial: TensorTrial
    only_nan: bool = False

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for collection in ("losses", "gradients", "weights", "biases", "outputs"):
            for tensor in tensors(self.trial, step, collection):
                total = number(tensor, step, "sum", "l2", "l1", "max", "mean", "abs_mean", "abs_max")
                if total is None or math.isfinite(total):
                    continue
                ends = number(tensor, step, "min"), number(tensor, step, "max")  # finite values may sum to infinity
                if all(end is None or math.isnan(end) for end in ends) and math.isnan(total):
                    yield Alarm(tensor.name, "it holds NaN", is_lasting=collection in ("weights", "biases"))
                elif not self.only_nan and any(end is None or math.isinf(end) for end in ends):
                    yield Alarm(tensor.name, "it holds infinity")


@dataclass
class FiniteExplosion:
    """All gradients together become far larger than in the first steps, or a weight than at first, without infinity."""

    trial: TensorTrial
    gradients: float = 1000.0  # times the largest norm of the first steps
    weights: float = 100.0  # times the first mean absolute value
    floor: float = 1.0  # smaller weights are no explosion, whatever they grew from
    first: int = 5  # saved steps
    patience: int = 3
    _references: dict[str, list[float]] = field(default_factory=dict)
    _high: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for kind in ("gradient", "gradient_unclipped"):
            squares = {
                tensor.name: size * size
                for tensor in tensors(self.trial, step, "gradients")
                if tensor.name.startswith(f"{kind}/") and (size := number(tensor, step, "l2")) is not None
            }
            if squares and self._is_high(kind, norm := math.sqrt(sum(squares.values())), self.gradients):
                largest, before = max(squares, key=lambda name: squares[name]), max(self._references[kind])
                since = f"{norm / before:.1e} times the largest of the first {self.first} saved steps"
                yield Alarm(largest, f"the norm of all gradients is {norm:.1e}, {since}; most of it is here")
        for tensor in tensors(self.trial, step, "weights"):
            size = number(tensor, step, "abs_mean") if is_matrix(tensor, step) else None
            if size is not None and self._is_high(tensor.name, size, self.weights, 1, self.floor):
                growth = f"{size / self._references[tensor.name][0]:.1e} times what it was at first"
                yield Alarm(tensor.name, f"mean |weight| is {size:.1e}, {growth}")

    def _is_high(self, name: str, size: float, threshold: float, first: int = 0, floor: float = 0.0) -> bool:
        """Return whether a size has been far above those of its first steps for some steps in a row."""
        reference = self._references.setdefault(name, [])
        if len(reference) < (first or self.first):
            reference.append(size)
            return False
        is_high = math.isfinite(size) and size > floor and 0 < max(reference) * threshold < size
        self._high[name] = self._high[name] + 1 if is_high else 0
        return self._high[name] >= self.patience


@dataclass
class VanishingGradient:
    """The mean absolute gradient of a layer is near zero while that of another layer is not."""

    trial: TensorTrial
    threshold: float = 1e-7
    patience: int = 3
    _low: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        means = {tensor: number(tensor, step, "abs_mean") for tensor in tensors(self.trial, step, "gradients")}
        sizes = {tensor: size for tensor, size in means.items() if size is not None and is_matrix(tensor, step)}
        largest = max(sizes.values(), default=0.0)
        for tensor, size in sizes.items():
            self._low[tensor.name] = self._low[tensor.name] + 1 if size < self.threshold <= largest else 0
            if self._low[tensor.name] >= self.patience:
                evidence = (
                    f"mean |gradient| {size:.1e} is below {self.threshold:g}; that of another layer is {largest:.1e}"
                )
                yield Alarm(tensor.name, evidence)


@dataclass
class AllZero:
    """A gradient, or what a module returns, is zero throughout; that of a bias may be, as its parts cancel out."""

    trial: TensorTrial
    threshold: float = 100.0  # percent
    patience: int = 3
    _zero: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for collection in ("gradients", "outputs"):
            for tensor in tensors(self.trial, step, collection):
                share = None if is_bias(tensor) else self._share(tensor, step)
                if share is None:
                    continue
                self._zero[tensor.name] = self._zero[tensor.name] + 1 if share >= self.threshold else 0
                if self._zero[tensor.name] >= self.patience:
                    yield Alarm(tensor.name, f"{share:g} % of its values are zero at {self.patience} steps in a row")

    def _share(self, tensor: Any, step: int) -> float | None:
        if self.threshold < 100 and tensor.has_value(step, TRAIN):
            value = tensor.value(step, TRAIN)
            return 100.0 * float((value == 0).mean()) if value.size else None
        size = number(tensor, step, "l1", "l2", "abs_max", "abs_mean", "abs_sum")
        return None if size is None or not math.prod(tensor.shape(step, TRAIN)) else 100.0 * (size == 0)


@dataclass
class UnchangedTensor:
    """A weight keeps its value though the training goes on; a bias before a normalization may, and a frozen weight."""

    trial: TensorTrial
    num_steps: int = 3
    converged: float = 1e-6  # a weight that moved before may rest where its gradient is smaller, and not zero
    _moved: set[str] = field(default_factory=set)
    _since: dict[str, tuple[object, int]] = field(default_factory=dict)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor in tensors(self.trial, step, "weights"):
            now = tensor.fingerprint(step, TRAIN)
            before, count = self._since.get(tensor.name, (None, 0))
            if before not in (None, now):
                self._moved.add(tensor.name)
            count = count + 1 if now == before else 0
            self._since[tensor.name] = now, count
            if count < self.num_steps or FROZEN in tensor.collections:
                continue
            reason = self._reason(tensor.name, step)
            if reason is not None:
                yield Alarm(tensor.name, f"it is the same at {count + 1} saved steps in a row{reason}")

    def _reason(self, name: str, step: int) -> str | None:
        """Return what its gradient says, as the end of a sentence; None if it has none at this step only."""
        names = set(self.trial.tensor_names(step=step, mode=TRAIN, collection="gradients"))
        for gradient in (f"gradient/{name}", f"gradient/{name}.values"):  # dense or sparse
            if gradient in names:
                size = number(self.trial.tensor(gradient), step, "abs_max")
                if size and size < self.converged and name in self._moved:
                    return None
                return "" if size == 0 else ", though it has a gradient"
            if self.trial.has_tensor(gradient):
                return None  # frozen meanwhile, or not used in this step
        return ", as it gets no gradient" if names else ""


@dataclass
class TensorVariance:
    """The variance of a weight is very large or small."""

    trial: TensorTrial
    max_threshold: float = 10.0
    min_threshold: float = 1e-5

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor in tensors(self.trial, step, "weights"):
            variance = number(tensor, step, "variance")
            if variance is None or not is_matrix(tensor, step):
                continue
            if not self.min_threshold <= variance <= self.max_threshold:
                limits = f"{self.min_threshold:g} to {self.max_threshold:g}"
                yield Alarm(tensor.name, f"its variance is {variance:.3g}, outside of {limits}")


@dataclass
class WeightUpdateRatio:
    """An update is very large or small beside the weight."""

    trial: TensorTrial
    large_threshold: float = 10.0
    small_threshold: float = 1e-8
    epsilon: float = 1e-9
    _before: dict[str, Any] = field(default_factory=dict)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        numpy = shards.numpy()
        for tensor, value in values(self.trial, step, "weights"):
            before = self._before.get(tensor.name)
            self._before[tensor.name] = value
            if before is None or before.shape != value.shape or not is_matrix(tensor, step) or not before.any():
                continue
            change = float(numpy.abs(value - before).mean(dtype="float64"))
            ratio = change / (float(numpy.abs(before).mean(dtype="float64")) + self.epsilon)
            if ratio > self.large_threshold or 0 < ratio < self.small_threshold:
                limits = f"{self.small_threshold:g} to {self.large_threshold:g}"
                yield Alarm(tensor.name, f"mean |update| is {ratio:.2e} of mean |weight|, outside of {limits}")


@dataclass
class PoorWeightInitialization:
    """In the first steps the loss does not fall, and variances of layers or the spread of gradients say why."""

    trial: TensorTrial
    threshold: float = 10.0
    distribution_range: float = 0.001
    patience: int = 5
    steps: int = 10
    _losses: deque[float] = field(default_factory=deque)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        step_loss = loss(self.trial, (step,))
        if step_loss is None or len(self._losses) >= self.steps:
            return
        self._losses.append(step_loss)
        recent = list(self._losses)[1:]
        if len(recent) < self.patience or min(recent) < self._losses[0] * (1 - 1e-3):
            return
        variances = {
            tensor.name: size
            for tensor in tensors(self.trial, step, "inputs")
            if (size := number(tensor, step, "variance")) and tensor.layer in ("ReLU", "Tanh", "Sigmoid", "GELU")
        }
        if variances and max(variances.values()) > self.threshold * min(variances.values()):
            name = min(variances, key=lambda subject: variances[subject])
            ratio = max(variances.values()) / variances[name]
            yield Alarm(name, f"the loss does not fall, and variances of activations differ {ratio:.3g} times by layer")
        numpy = shards.numpy()
        for tensor, value in values(self.trial, step, "gradients"):
            if is_matrix(tensor, step):
                low, high = numpy.percentile(value.astype("float64"), (5, 95))
                if high - low < self.distribution_range:
                    yield Alarm(tensor.name, f"the loss does not fall, 90 % of gradients lie within {high - low:.1e}")
