"""Rules on the inputs of a model: labels, images, sequences."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from reprokit.rules.observations import (
    EMBEDDINGS,
    FEWEST,
    Alarm,
    EvaluationStep,
    are_several_trainings,
    label_weights,
    labeled,
    predicted,
    predicted_pairs,
    tensors,
    values,
)
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import EVAL, TensorTrial


@dataclass
class ClassImbalance:
    """Some classes are rare among the labels, and not weighted for it, or batches hold one class each."""

    trial: TensorTrial
    threshold_imbalance: float = 10.0
    threshold_misprediction: float = 0.7
    samples: int = 500
    batches: int = 10
    _counts: Counter[int] = field(default_factory=Counter)
    _weighted: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))  # as the loss weights them
    _missed: Counter[int] = field(default_factory=Counter)
    _classes: int = 2
    _pure: list[bool] = field(default_factory=list)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        calls = [*labeled(self.trial, step)]
        if all((labels == labels[:1]).all() for _, labels, _ in calls) and are_several_trainings(self.trial, step):
            return  # as in a GAN, whose labels tell true samples from false ones
        batches: dict[str, set[int]] = {}  # of all calls of the step
        for name, labels, scores in calls:
            self._counts.update(labels.tolist())
            for label, weight in zip(
                labels.tolist(), label_weights(self.trial, step, name, labels).tolist(), strict=True
            ):
                self._weighted[label] += weight
            if scores is not None:
                self._classes = max(self._classes, scores.shape[1] if scores.ndim == 2 else 2)
                self._missed.update(labels[predicted(scores) != labels].tolist())
            if len(labels) >= FEWEST:
                batches.setdefault(name, set()).update(labels.tolist())
        self._pure.extend(len(classes) == 1 for classes in batches.values())
        for name in batches:
            yield from self._judge(name)

    def _judge(self, name: str) -> Iterator[Alarm]:
        total = self._counts.total()
        most, largest = self._counts.most_common(1)[0] if total else (0, 0)
        pure = sum(self._pure)
        if len(self._pure) >= self.batches and pure > 0.8 * len(self._pure) and (largest < 0.9 * total or total > 500):
            yield Alarm(
                name, f"{pure} of {len(self._pure)} batches hold one class only: the data seem not to be shuffled"
            )
        elif total >= self.samples:
            every = [self._counts[label] for label in range(max(self._classes, max(self._counts) + 1))]
            weights = [self._weighted[label] for label in range(len(every))]
            if largest > self.threshold_imbalance * min(every) and max(weights) > self.threshold_imbalance * min(
                weights
            ):
                rare = every.index(min(every))
                missed = self._missed[rare] / every[rare] if every[rare] else math.nan
                often = (
                    f", of which {100 * missed:.0f} % were mispredicted"
                    if missed > self.threshold_misprediction
                    else ""
                )
                yield Alarm(name, f"class {most} has {largest} of {total} labels, class {rare} {every[rare]}{often}")


@dataclass
class Confusion:
    """In an evaluation, a class is often predicted as another; rows are normalized by the size of their class."""

    trial: TensorTrial
    min_diag: float = 0.9
    max_off_diag: float = 0.1

    def invoke_at_evaluation(self, evaluation: EvaluationStep) -> Iterator[Alarm]:
        for name, pairs in predicted_pairs(self.trial, evaluation.eval_steps, EVAL).items():
            yield from self._judge(name, pairs)

    def _judge(self, name: str, pairs: Counter[tuple[int, int]]) -> Iterator[Alarm]:
        sizes: Counter[int] = Counter()
        for (label, _), count in pairs.items():
            sizes[label] += count
        for label, size in sorted(sizes.items()):
            share = pairs[label, label] / size
            other, count = max(((b, n) for (a, b), n in pairs.items() if a == label and b != label),
                               key=lambda pair: pair[1], default=(label, 0))  # fmt: skip
            if share < self.min_diag or count / size > self.max_off_diag:
                confused = f", {100 * count / size:.0f} % are taken for class {other}" if count else ""
                yield Alarm(name, f"of class {label} {100 * share:.0f} % are predicted right{confused}")


@dataclass
class ImageSums:
    """The sums of the images so far, by channel."""

    count: int = 0
    means: Any = 0.0
    squares: Any = 0.0
    smallest: float = math.inf
    largest: float = -math.inf


@dataclass
class CheckInputImages:
    """Images that a model is given are not normalized to a mean of zero.

    Those normalized by the statistics of other images have negative values, and a mean below their standard deviation.
    """

    trial: TensorTrial
    threshold_mean: float = 0.2
    threshold_samples: int = 500
    accept_unit_range: bool = True  # images between 0 and 1 are scaled, though their mean is not zero
    _sums: dict[str, ImageSums] = field(default_factory=dict)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        for tensor, value in values(self.trial, step, "inputs"):
            if tensor.name.endswith("_input_0") and value.size and (value.dtype.kind == "f" or value.dtype == "uint8"):
                images = channels_last(value)
                if images is not None:
                    yield from self._judge(tensor.name, images, len(value))

    def _judge(self, name: str, images: Any, count: int) -> Iterator[Alarm]:
        sums = self._sums.setdefault(name, ImageSums())
        pixels = images.reshape(-1, images.shape[-1]).astype("float64")
        sums.means = sums.means + count * pixels.mean(axis=0)
        sums.squares = sums.squares + count * (pixels * pixels).mean(axis=0)
        sums.count += count
        sums.smallest = min(sums.smallest, float(images.min()))
        sums.largest = max(sums.largest, float(images.max()))
        means = sums.means / sums.count
        mean = float(shards.numpy().abs(means).max())
        is_scaled = self.accept_unit_range and sums.largest <= 1
        is_scaled |= sums.smallest < 0 and bool((2 * means * means < sums.squares / sums.count).all())
        if sums.count >= self.threshold_samples and mean > self.threshold_mean and not is_scaled:
            yield Alarm(
                name, f"mean of a channel {mean:.3g}, largest value {sums.largest:.3g}: images are not normalized"
            )


def channels_last(value: Any) -> Any:
    """Return images with their channels last, flat ones with one channel; None if these are no images."""
    numpy = shards.numpy()
    if value.ndim == 4 and value.shape[1] in (1, 3, 4):
        return numpy.moveaxis(value, 1, -1)
    if value.ndim == 4 and value.shape[-1] in (1, 3, 4) and value.shape[1] == value.shape[2]:
        return value
    # Rows of whole numbers up to 255 are taken for the bytes of images.
    if value.ndim != 2 or value.shape[1] < 16 or value.min() < 0 or not 16 <= value.max() <= 255:
        return None
    return value.reshape(-1, 1) if (value == numpy.floor(value)).all() else None


@dataclass
class NLPSequenceRatio:
    """Most of the tokens that a model is given are padding, or another token that is named."""

    trial: TensorTrial
    token_values: str = "0"  # separated by spaces
    token_thresholds_percent: str = "50"
    tokens: int = 500
    _counts: Counter[tuple[str, float]] = field(default_factory=Counter)
    _totals: Counter[str] = field(default_factory=Counter)

    def invoke_at_step(self, step: int) -> Iterator[Alarm]:
        limits = dict(
            zip(map(int, self.token_values.split()), map(float, self.token_thresholds_percent.split()), strict=True)
        )
        outputs = tensors(self.trial, step, "outputs")
        # Of Keras only the inputs of the whole model are saved.
        layers = EMBEDDINGS if all(output.layer not in EMBEDDINGS for output in outputs) else (*EMBEDDINGS, "")
        for tensor, value in values(self.trial, step, "inputs"):
            is_sequence = value.ndim == 2 and value.shape[1] >= FEWEST and value.dtype.kind in "iu"
            if tensor.layer not in layers or "labels" in tensor.collections or not is_sequence:
                continue
            self._totals[tensor.name] += value.size
            for token, percent in limits.items():
                self._counts[tensor.name, token] += int((value == token).sum())
                share = 100 * self._counts[tensor.name, token] / self._totals[tensor.name]
                if self._totals[tensor.name] >= self.tokens and share > percent:
                    yield Alarm(tensor.name, f"{share:.0f} % of the tokens are {token}")
