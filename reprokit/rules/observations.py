"""Gives rules the saved tensors of a step, and declares their alarms; unsaved values are omitted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reprokit.core.errors import TensorUnavailable
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.trial import TRAIN, TensorTrial, TrialTensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

CLASSIFYING = re.compile("CrossEntropy|NLL|BCE", re.IGNORECASE)  # losses whose labels are classes
EMBEDDINGS = ("Embedding", "EmbeddingBag")  # layers that look up a row for each token
UPDATED_BY = "gradients_kept/"  # what is noted of each optimizer that updates
FEWEST = 8  # samples of the smallest batch that is judged
MOST_CLASSES = 1 << 20  # larger labels are no classes: an untrusted file may hold any number


@dataclass(frozen=True)
class Alarm:
    """A rule's statement about a tensor, with its evidence; the loss stands for the training as a whole."""

    tensor: str
    evidence: str
    is_lasting: bool = False  # whether no later step can mend it, so that what else is wrong then follows from it


@dataclass(frozen=True)
class EvaluationStep:
    """Steps of an evaluation, and the training steps before it."""

    step: int  # the last training step before it
    train_steps: tuple[int, ...]
    eval_steps: tuple[int, ...]


def tensors(trial: TensorTrial, step: int, collection: str, mode: str = TRAIN) -> Iterator[TrialTensor]:
    """Yield the tensors of a collection that were saved at a step."""
    for name in trial.tensor_names(step=step, mode=mode, collection=collection):
        yield trial.tensor(name)


def values(trial: TensorTrial, step: int, collection: str, mode: str = TRAIN) -> Iterator[tuple[TrialTensor, Array]]:
    """Yield the tensors of a collection with each saved value of all calls in a step."""
    for tensor in tensors(trial, step, collection, mode):
        for call in range(tensor.calls(step, mode)):
            try:
                yield tensor, tensor.value(step, mode, call=call)
            except TensorUnavailable:
                break


def number(tensor: TrialTensor, step: int, *names: str, mode: str = TRAIN) -> float | None:
    """Return the first available of these reductions; the prefix abs_ means absolute values."""
    for name in names:
        try:
            return tensor.reduction_value(step, name.removeprefix("abs_"), mode, abs=name.startswith("abs_"))
        except TensorUnavailable:
            continue
    return None


def is_matrix(tensor: TrialTensor, step: int) -> bool:
    """Return whether a tensor belongs to a weight matrix, not to a bias, scale or embedding.

    Biases and scales begin at zero or one and may have no gradient, also the two-dimensional ones of Keras' attention.
    """
    return len(tensor.shape(step, TRAIN)) > 1 and not is_bias(tensor) and layer_of(tensor) not in EMBEDDINGS


def is_bias(tensor: TrialTensor) -> bool:
    """Return whether a tensor is a bias, or the gradient of one."""
    return tensor.name.replace(".", "/").rpartition("/")[2] == "bias"


def layer_of(tensor: TrialTensor) -> str:
    """Return the class of a tensor's module; a parameter takes it from inputs and outputs of its module."""
    module = tensor.name.rpartition("/")[2].rpartition(".")[0]
    neighbors = (f"{module}_{kind}_0" for kind in ("input", "output"))
    layers = (tensor.trial.tensor(name).layer for name in neighbors if tensor.trial.has_tensor(name))
    return tensor.layer or next(layers, "")


def loss(trial: TensorTrial, steps: tuple[int, ...], mode: str = TRAIN) -> float | None:
    """Return the mean loss of these steps; None if no loss was saved."""
    numpy = shards.numpy()
    losses = []
    for step in steps:
        for tensor in tensors(trial, step, "losses", mode):
            for call in range(tensor.calls(step, mode)):
                try:
                    losses.append(tensor.reduction_value(step, "mean", mode, call=call))
                except TensorUnavailable:
                    continue
    return float(numpy.mean(losses)) if losses else None


def loss_scale(trial: TensorTrial, step: int) -> float | None:
    """Return by how much losses are scaled in a step; None where nothing scales them."""
    scales = (tensor for tensor in tensors(trial, step, "conduct") if tensor.name == "loss_scale")
    return next((number(tensor, step, "mean") for tensor in scales), None)


def are_several_trainings(trial: TensorTrial, step: int) -> bool:
    """Return whether a step computes gradients of several losses, in a training of several optimizers or models.

    It accumulates those of one loss if all its backward passes reach the same optimizers.
    """
    if not trial.has_tensor("loss") or not trial.tensor("loss").was_saved(step, TRAIN):
        return False
    is_single = trial.tensor("loss").calls(step, TRAIN) < 2
    is_of_one = is_single or not trial.tensor_names(mode=TRAIN, regex=r"^(model|optimizer)#1[./]")
    return not is_of_one and not _is_accumulated(trial, step)


def _is_accumulated(trial: TensorTrial, step: int) -> bool:
    """Return whether all backward passes since an optimizer's last update reached the same optimizers."""
    noted = (
        value.reshape(-1) for tensor, value in values(trial, step, "conduct") if tensor.name.startswith(UPDATED_BY)
    )
    kinds = [float(value[2]) if value.size > 2 else 0.0 for value in noted]
    return bool(kinds) and all(kind == 1 for kind in kinds)


def optimizers(trial: TensorTrial, step: int) -> frozenset[str]:
    """Return the names of the optimizers that updated in a step, as far as PyTorch's are known."""
    names = (tensor.name for tensor in tensors(trial, step, "conduct"))
    return frozenset(name.removeprefix(UPDATED_BY) for name in names if name.startswith(UPDATED_BY))


def loss_name(trial: TensorTrial) -> str:
    """Return the name of the loss."""
    return next(iter(trial.collection("losses").tensor_names), "the loss")


def labeled(trial: TensorTrial, step: int, mode: str = TRAIN) -> Iterator[tuple[str, Array, Array | None]]:
    """Yield name, values and predicted scores of labels that are classes."""
    for name in trial.given_to_loss("labels", 1, step, mode):
        tensor = trial.tensor(name)
        score_names = trial.given_to_loss("predictions", 0, step, mode)
        if name.startswith("labels/"):  # predictions and labels have several parts
            score_names = [other for other in score_names if other == f"predictions/{name[len('labels/') :]}"]
        if name.endswith("_input_1"):
            score_names = [other for other in score_names if other == f"{name[:-1]}0"]
            if not CLASSIFYING.search(name) and not CLASSIFYING.search(tensor.layer):
                continue
        for call in range(tensor.calls(step, mode)):
            try:
                labels = tensor.value(step, mode, call=call)
                scores = trial.tensor(score_names[0]).value(step, mode, call=call) if score_names else None
            except TensorUnavailable:
                continue
            classes = _classes(labels)
            if classes is not None and not _is_of_language(trial, step, scores):
                yield name, classes, scores


def label_weights(trial: TensorTrial, step: int, name: str, labels: Array) -> Array:
    """Return the weight of each label in the loss, by the weights of samples or classes that the loss was given."""
    numpy = shards.numpy()
    of_samples, of_classes = f"{name[:-1]}2", f"{name.removesuffix('input_1')}weight_0"
    for other in (of_samples, of_classes):
        if not trial.has_tensor(other) or not trial.tensor(other).has_value(step, TRAIN):
            continue
        weights: Array = trial.tensor(other).value(step, TRAIN).reshape(-1).astype("float64")
        if other == of_classes:
            weights = weights if weights.size > 1 else numpy.array([1.0, *weights])  # that of positive samples only
            weights = weights[labels] if labels.max(initial=0) < weights.size else weights
        if weights.shape == labels.shape:
            return weights
    unweighted: Array = numpy.ones(labels.shape)
    return unweighted


def predicted_pairs(trial: TensorTrial, steps: Iterable[int], mode: str) -> dict[str, Counter[tuple[int, int]]]:
    """Return the counts of (label, predicted class) over these steps, by the name of the labels."""
    counts: dict[str, Counter[tuple[int, int]]] = {}
    for step in steps:
        for name, labels, scores in labeled(trial, step, mode):
            if scores is not None:
                pairs = zip(labels.tolist(), predicted(scores).tolist(), strict=False)
                counts.setdefault(name, Counter()).update(pairs)
    return counts


def _classes(labels: Array) -> Array | None:
    """Return labels as integers, decoded if one-hot; None if they are no classes of samples."""
    numpy = shards.numpy()
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "biuf":
        is_one_hot = numpy.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()
        labels = labels.argmax(axis=1) if is_one_hot else labels
    labels = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or labels.dtype.kind not in "biuf":
        return None
    whole: Array = labels.astype("int64")
    are_whole = labels.dtype.kind != "f" or numpy.isin(labels, (0.0, 1.0)).all()
    return whole if are_whole and ((whole >= 0) & (whole < MOST_CLASSES)).all() else None


def _is_of_language(trial: TensorTrial, step: int, scores: Array | None) -> bool:
    """Return whether the classes are tokens of a vocabulary, of which some are always rare."""
    embeddings = (trial.tensor(name) for name in trial.tensor_names(step=step, mode=TRAIN, collection="weights"))
    sizes = {tensor.shape(step, TRAIN)[0] for tensor in embeddings if layer_of(tensor) in EMBEDDINGS}
    return scores is not None and scores.ndim == 2 and scores.shape[1] in sizes


def predicted(scores: Array) -> Array:
    """Return the predicted class for each row of scores."""
    if scores.ndim == 2 and scores.shape[1] > 1:
        best: Array = scores.argmax(axis=1)
        return best
    numpy = shards.numpy()
    flat = scores.reshape(-1)
    is_probability = flat.size and float(numpy.min(flat)) >= 0 and float(numpy.max(flat)) <= 1
    above: Array = (flat > (0.5 if is_probability else 0)).astype("int64")
    return above
