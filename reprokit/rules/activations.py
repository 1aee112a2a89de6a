"""Rules on the outputs of activation functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import TensorUnavailable
from reprokit.rules.observations import Alarm, number, tensors, values
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TRAIN, TensorTrial, TrialTensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MANY = 16  # different samples of a batch


@dataclass
class RecentShares:
    """Counts the units of each tensor and call that were idle over the last steps."""

    steps: int
    _shares: dict[tuple[str, int], deque[Any]] = field(default_factory=dict)

    def idle(self, key: tuple[str, int], active: Array, threshold: float) -> float | None:
        """Return the share of units whose mean activity is below the threshold; None until there are enough steps."""
        shares = self._shares.setdefault(key, deque(maxlen=self.steps))
        if shares and shares[0].shape != active.shape:
            shares.clear()
        shares.append(active)
        if len(shares) < self.steps:
            return None
        return float((shards.numpy().mean(shares, axis=0) < threshold).mean())


def by_unit(value: Array) -> Array:
    """Return a row for each sample and a column for each neuron, or channel of an image."""
    if value.ndim == 4:
        value = shards.numpy().moveaxis(value, 1, -1)
    rows: Array = value.reshape(-1, value.shape[-1] if value.ndim else 1)
    return rows


def outputs_of(trial: TensorTrial, step: int, *layers: str) -> Iterator[tuple[TrialTensor, tuple[str, int], Array]]:
    """Yield what layers of these classes returned, by unit, with its name and number within a pass of the model.

    A model may use a module at several places, and a step may have several passes, as of a GAN's critic.
    """
    rows: dict[str, list[Array]] = {}
    for tensor, value in values(trial, step, "outputs"):
        if tensor.layer in layers and value.size:
            rows.setdefault(tensor.name, []).append(by_unit(value))
    for name, calls in rows.items():
        uses = _uses(trial, step, name, calls)
        for use in range(uses):
            yield trial.tensor(name), (name, use), shards.numpy().concatenate(calls[use::uses])


def _uses(trial: TensorTrial, step: int, name: str, calls: list[Array]) -> int:
    """Return how many of a module's calls belong to one pass of its model."""
    prefix = f"{name.partition('.')[0]}." if name.startswith("model#") else ""  # of further models
    passes = [
        tensor.calls(step, TRAIN)
        for tensor in tensors(trial, step, "outputs")
        if tensor.name == f"{prefix}{tensor.layer}_output_0" and "losses" not in tensor.collections
    ]
    uses, rest = divmod(len(calls), max(passes, default=1))
    is_repeated = (
        uses and not rest and all(len({call.shape[1] for call in calls[use::uses]}) == 1 for use in range(uses))
    )
    return uses if is_repeated else len(calls)


def has_few_samples(tensor: TrialTensor, step: int) -> bool:
    """Return whether a layer was given the same few samples again and again, as the states of a small game."""
    name, count, different = f"{tensor.name.removesuffix('_output_0')}_input_0", 0, set()
    if not tensor.trial.has_tensor(name):
        return False
    inputs = tensor.trial.tensor(name)
    for call in range(inputs.calls(step, TRAIN)):
        try:
            rows = by_unit(inputs.value(step, TRAIN, call=call))
        except TensorUnavailable:
            return False
        for row in rows:
            count += 1
            different.add(row.tobytes())
            if len(different) >= MANY:
                return False
    return len(different) < count


@dataclass
class DyingReLU:
    """Most neurons of a ReLU layer are never active, in batches that show them enough different samples."""

    trial: TensorTrial
    threshold_inactivity: float = 1.0  # percent of values
    threshold_layer: float = 50.0  # percent of neurons
    patience: int = 5

    def __post_init__(self) -> None:
        self._recent = RecentShares(self.patience)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        seen = set()
        for tensor, key, value in outputs_of(self.trial, step, "ReLU", "ReLU6"):
            seen.add(tensor.name)
            if has_few_samples(tensor, step):
                continue
            active = (value > 0).mean(axis=0)
            idle = self._recent.idle(key, active, self.threshold_inactivity / 100)
            if idle is not None and 100 * idle > self.threshold_layer:
                yield Alarm(
                    tensor.name, f"{100 * idle:.0f} % of its neurons were idle at {self.patience} steps in a row"
                )
        for tensor in tensors(self.trial, step, "outputs"):
            if tensor.layer in ("ReLU", "ReLU6") and tensor.name not in seen and number(tensor, step, "max") == 0:
                yield Alarm(tensor.name, "its largest value is 0")


@dataclass
class SaturatedActivation:
    """Most neurons of a tanh or sigmoid layer are at the ends of their range, where they have no gradient."""

    trial: TensorTrial
    threshold_tanh_min: float = -9.4999
    threshold_tanh_max: float = 9.4999
    threshold_sigmoid_min: float = -23.0
    threshold_sigmoid_max: float = 16.99999
    threshold_inactivity: float = 1.0  # percent of values
    threshold_layer: float = 50.0  # percent of neurons
    slope: float = 0.03  # mean derivative of tanh below which a neuron counts as saturated too
    patience: int = 3

    def __post_init__(self) -> None:
        self._recent, self._slopes = RecentShares(self.patience), RecentShares(self.patience)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor, key, value in outputs_of(self.trial, step, "Tanh", "Sigmoid"):
            rows = value.astype("float64")
            low, high = self._ends(tensor.layer)
            active = ((rows > low) & (rows < high)).mean(axis=0)
            idle = [self._recent.idle(key, active, self.threshold_inactivity / 100)]
            if tensor.layer == "Tanh":
                idle.append(self._slopes.idle(key, (1 - rows * rows).mean(axis=0), self.slope))
            worst = max((share for share in idle if share is not None), default=0.0)
            if 100 * worst > self.threshold_layer:
                yield Alarm(tensor.name, f"{100 * worst:.0f} % of its neurons are saturated")

    def _ends(self, layer: str) -> tuple[float, float]:
        """Return the outputs of the function at the thresholds, which refer to its inputs."""
        numpy = shards.numpy()
        if layer == "Tanh":
            return float(numpy.tanh(self.threshold_tanh_min)), float(numpy.tanh(self.threshold_tanh_max))
        low, high = self.threshold_sigmoid_min, self.threshold_sigmoid_max
        return float(1 / (1 + numpy.exp(-low))), float(1 / (1 + numpy.exp(-high)))
