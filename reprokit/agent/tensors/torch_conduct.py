"""Saves what a PyTorch training does besides computing: gradients that nobody zeroed, and the modes of its models.

Rules read these few numbers of a step as tensors of the collection `conduct`.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from functools import partial

from ..core.user_frames import users_frames
from ..pytorch import private_api, tensors
from ..pytorch.tensor_names import unwrapped
from .tensor_rules import TRAIN
from .tensor_writer import NumberArray

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..events.steps import ModelCalled
    from .saved_steps import SavedSteps

CONDUCT, LOSS_SCALE = "conduct", "loss_scale"
CALLS_BEFORE = 3  # one may be made to see what shapes a model has
MAX_NAMED = 3  # layers or parameters in a description
SAMPLE = 2  # parameters at either end of an optimizer's, by which it is seen whether a backward pass reaches it


class KeptGradients:
    """Tells of an optimizer's gradients which ones still hold those of its last update.

    A gradient that was zeroed, replaced or changed by hand since then has another version, or only zeros.
    """

    def __init__(self) -> None:
        self._versions: dict[int, tuple[int, int]] = {}  # by parameter: of its gradient
        self._candidates: dict[int, Any] = {}  # parameters whose gradients a backward pass found as they were
        self._added: set[int] = set()

    def backward_begins(self, parameters: Sequence[Any]) -> None:
        """Note the gradients that are as the last update, or the last backward pass since then, left them."""
        self._candidates = {}
        for parameter in parameters if self._versions else ():
            version = self._versions.get(id(parameter))
            if version is None:
                continue
            if version == _version(parameter) and _has_values(parameter.grad):
                self._candidates[id(parameter)] = parameter
            else:
                del self._versions[id(parameter)]
                self._added.discard(id(parameter))

    def backward_ended(self) -> None:
        """Note to which of them the backward pass added its own."""
        for key, parameter in self._candidates.items():
            version = _version(parameter)
            if version is not None and version != self._versions[key]:
                self._versions[key] = version
                self._added.add(key)
        self._candidates = {}

    def update_due(self, parameters: Sequence[Any]) -> list[int]:
        """Return the places of the parameters whose gradients hold those of the last update; begin anew."""
        places = [place for place, parameter in enumerate(parameters) if id(parameter) in self._added]
        versions = {id(parameter): _version(parameter) for parameter in parameters}
        self._versions = {key: version for key, version in versions.items() if version is not None}
        self._added, self._candidates = set(), {}
        return places


def _version(parameter: Any) -> tuple[int, int] | None:
    """Return identity and version of a parameter's gradient; None without one that can be read."""
    gradient = parameter.grad
    local = None if gradient is None else _local(gradient)
    return None if local is None else (id(gradient), private_api.changes_of([local]))


def _local(gradient: Any) -> Any:
    """Return a gradient, or this rank's shard of it, which is read without the other ranks; None if it cannot be."""
    local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return local if tensors.is_plain(local) else None


def _has_values(gradient: Any) -> bool:
    """Return whether a gradient is not zero throughout."""
    return bool((private_api.stored_values(_local(gradient)) != 0).any())


class ReachedOptimizers:
    """Which optimizers each backward pass gives gradients: those of one loss all reach the same."""

    def __init__(self) -> None:
        self._passes: weakref.WeakKeyDictionary[Any, set[frozenset[int]]] = weakref.WeakKeyDictionary()
        self._before: list[tuple[Any, list[Any]]] = []

    def backward_begins(self) -> None:
        """Note the gradients of all optimizers that have updated."""
        self._before = [(optimizer, _sample(optimizer)) for optimizer in self._passes]

    def backward_ended(self) -> None:
        """Note to which optimizers the backward pass gave other gradients."""
        reached = frozenset(id(optimizer) for optimizer, before in self._before if _sample(optimizer) != before)
        for optimizer, _ in self._before:
            self._passes[optimizer].add(reached)
        self._before = []

    def update_due(self, optimizer: Any) -> int:
        """Return how many kinds of passes there were since the optimizer's last update; 0 if nobody looked."""
        kinds = len(self._passes.get(optimizer, ()))
        self._passes[optimizer] = set()
        return kinds


def _sample(optimizer: Any) -> list[Any]:
    parameters = list(optimizer.parameters())
    return [_version(parameter) for parameter in (*parameters[:SAMPLE], *parameters[-SAMPLE:])]


class ModelConduct:
    """How one model was called."""

    def __init__(self, module: Any, forget: Callable[[Any], object]) -> None:
        self.module = weakref.ref(module, forget)
        self.layers = [name for name, layer in _layers(module) if _drops(layer) or _normalizes_batches(layer)]
        self.calls = [0, 0]  # with gradients, since the last update: in training mode, in eval mode
        self.is_trained = False
        self.calls_before = 0  # without gradients in training mode, before it was trained, and judged by no loss
        self._last: Any = None  # reference to what it was given last without gradients

    def is_meant(self, arguments: Sequence[Any]) -> bool:
        """Return whether dropout without gradients is meant: to make what it is trained on, or to ask the same again.

        The first is done before it is trained, as in rollouts; the second gives the spread of its answers.
        """
        given = next(filter(tensors.is_tensor, arguments), None)
        is_same = given is not None and self._last is not None and self._last() is given
        self._last = None if given is None else weakref.ref(given)
        return is_same or self.calls_before >= CALLS_BEFORE


class TrainingConduct:
    """Saves the conduct of this process' training: a few numbers a step."""

    def __init__(self, steps: SavedSteps, name_of_module: Callable[[Any], str]) -> None:
        self._steps, self._name_of_module = steps, name_of_module
        self.forget()

    def forget(self) -> None:
        """Start without models and optimizers, also in a forked child."""
        self._kept: weakref.WeakKeyDictionary[Any, KeptGradients] = weakref.WeakKeyDictionary()  # by optimizer
        self._reached = ReachedOptimizers()
        self._models: dict[int, ModelConduct] = {}  # by id of the module, while it lives
        self._called: ModelConduct | None = None  # what was called last, if that counts as a call before training

    def model_called(self, event: ModelCalled) -> None:
        """Count a call with gradients; save one without, of a trained model in training mode whose dropout is on."""
        module = unwrapped(event.module)
        self._called = None
        model = self._models.get(id(module))
        if model is None:
            models, key = self._models, id(module)
            model = models[key] = ModelConduct(module, lambda _: models.pop(key, None))
        if event.has_gradients:
            model.calls[0 if module.training else 1] += 1
        elif not model.is_trained:
            model.calls_before += module.training
            self._called = model if module.training else None
        elif module.training:
            layers = [name for name, layer in _layers(module) if layer.training and _drops(layer)]
            if layers:
                name = f"{self._name_of_module(module)}_dropout_without_gradients"
                numbers = [len(layers), model.is_meant(event.arguments)]
                self._put(name, numbers, lambda: _facts(module, layers))

    def loss_called(self) -> None:
        """Do not count the last call if it was made without gradients before training: it is an evaluation's."""
        if self._called is not None:
            self._called.calls_before -= 1
            self._called = None

    def backward_begins(self, loss: Any) -> None:
        """Save by how much a loss is scaled, and look at the gradients that are there already."""
        scale = private_api.factor_of(loss)
        if scale != 1:
            self._put(LOSS_SCALE, [scale], dict)
        for optimizer, kept in self._kept.items():
            kept.backward_begins(optimizer.parameters())
        self._reached.backward_begins()

    def backward_ended(self) -> None:
        """Look at what became of them."""
        for kept in self._kept.values():
            kept.backward_ended()
        self._reached.backward_ended()

    def update_due(
        self, optimizer: Any, name: str, parameters: Sequence[Any], names: Callable[[], Sequence[str]]
    ) -> None:
        """Save how many gradients were not zeroed, and in which mode the models of an optimizer were called."""
        kept = self._kept.setdefault(optimizer, KeptGradients())
        places, owned = kept.update_due(parameters), {id(parameter) for parameter in parameters}
        count = sum(parameter.grad is not None for parameter in parameters)
        numbers = [len(places), count, self._reached.update_due(optimizer)]
        self._put(f"gradients_kept/{name}", numbers, lambda: {"module": _named(names())})
        for model in self._models.values():
            module = model.module()
            if module is None or not any(model.calls):
                continue
            if any(id(parameter) in owned and parameter.requires_grad for parameter in module.parameters()):
                calls, model.calls, model.is_trained = model.calls, [0, 0], True
                if model.layers:
                    facts = partial(_facts, module, model.layers)
                    self._put(f"{self._name_of_module(module)}_modes", calls, facts)

    def _put(self, name: str, numbers: Sequence[float], facts: Callable[[], Mapping[str, object]]) -> None:
        steps, choice = self._steps, self._steps.rules.choice(name, (CONDUCT,), TRAIN)
        if choice is not None:
            key, values = steps.value_key(name, TRAIN), array("d", numbers)
            steps.writer.declare(name, (CONDUCT,), facts)
            address, count = values.buffer_info()
            reducible = NumberArray(address, count, True, values)
            steps.writer.put(key, choice, "float64", (count,), (address, 8 * count), lambda: reducible)


def _layers(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the layers of a model, named by path and class."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        yield (f"{name} ({kind})" if name else kind), layer


def _drops(layer: Any) -> bool:
    """Return whether a layer drops values out in training mode: also between recurrent layers, and in attention."""
    if "Dropout" in type(layer).__name__:
        return bool(getattr(layer, "p", 0) > 0)
    share = getattr(layer, "dropout", 0)
    return isinstance(share, float) and share > 0 and getattr(layer, "num_layers", 2) > 1


def _normalizes_batches(layer: Any) -> bool:
    return "BatchNorm" in type(layer).__name__ and bool(getattr(layer, "track_running_stats", False))


def _named(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _facts(module: Any, layers: Sequence[str]) -> Mapping[str, object]:
    """Return what the index says of a model: its class, the layers in question and the line that called it."""
    frame = next(users_frames(sys._getframe(2)), None)
    facts: dict[str, object] = {"class": type(module).__name__, "module": _named(layers)}
    if frame is not None:
        facts["place"] = [frame.f_code.co_filename, frame.f_lineno]
    return facts
