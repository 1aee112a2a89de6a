"""Finds what loops of TensorFlow train, before the first update of an eager one shows it, and what they forget."""

from __future__ import annotations

import weakref

from ..core import live_objects
from . import private_api
from .state import OptimizerStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any


def live_optimizers() -> list[Any]:
    """Return the optimizers of this process, without those inside of others, as in loss scaling."""
    kinds = [*private_api.keras_classes("BaseOptimizer"), *private_api.keras_classes("_BaseOptimizer")]
    return _outermost(live_objects.instances(*kinds), lambda candidate: [getattr(candidate, "inner_optimizer", None)])


def step_of_loop() -> OptimizerStep | None:
    """Return the step of the only optimizer; None if it is unknown what it trains."""
    optimizers = live_optimizers()
    if len(optimizers) != 1:
        return None
    layers = _layers()
    variables = private_api.trained(getattr(optimizers[0], "inner_optimizer", optimizers[0]))
    if not variables:
        trainable = [list(candidate.trainable_variables) for candidate in models_of(layers)]
        # A Sequential of Keras 3 holds the same variables as the Functional in it, which is no layer of it.
        by_ids = {frozenset(map(id, each)): each for each in trainable if each}
        if len(by_ids) != 1:
            return None
        variables = next(iter(by_ids.values()))
    trained = {id(variable) for variable in variables}
    others = {id(variable): variable for layer in layers for variable in layer.variables}
    untrained = [variable for key, variable in others.items() if key not in trained]
    return OptimizerStep(optimizers[0], variables, is_eager=True, others=untrained)


class ForgottenVariables:
    """Trainable variables of trained models that gradient tapes record, but that no optimizer is given."""

    def __init__(self) -> None:
        self._recorded: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._trained: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._untrained: list[weakref.ref[Any]] | None = None  # None: other variables were trained since

    def differentiated(self, tape: Any) -> None:
        """Note the variables that a tape has recorded."""
        self._recorded.update({id(variable): variable for variable in tape.watched_variables()})

    def updated(self, variables: list[Any]) -> None:
        """Note the variables that an optimizer is given."""
        given = {id(plain): plain for plain in map(private_api.plain, variables) if plain is not None}  # None under JAX
        if not all(key in self._trained for key in given):
            self._trained.update(given)
            self._untrained = None

    def find(self, optimizers: Container[Any]) -> list[Any]:
        """Return the variables; none if there is an optimizer beside these, as it is unknown what that one trains."""
        if self._untrained is None:
            is_known = all(optimizer in optimizers for optimizer in live_optimizers())
            self._untrained = [weakref.ref(variable) for variable in self._find()] if is_known else []
        variables = [reference() for reference in self._untrained]
        return [
            variable
            for variable in variables
            if variable is not None and variable.trainable and id(private_api.plain(variable)) in self._recorded
        ]

    def _find(self) -> Iterator[Any]:
        for model in models_of(_layers()):
            by_training: dict[bool, list[Any]] = {True: [], False: []}
            for variable in model.trainable_variables:
                by_training[id(private_api.plain(variable)) in self._trained].append(variable)
            if by_training[True]:
                yield from by_training[False]


def models_of(layers: list[Any]) -> list[Any]:
    """Return the layers that are not parts of others."""
    return _outermost(layers, private_api.layers)


def _layers() -> list[Any]:
    return live_objects.instances(*private_api.keras_classes("Layer"))


def _outermost(objects: list[Any], parts_of: Any) -> list[Any]:
    """Return the objects that are not parts of others."""
    inner = {id(part) for owner in objects for part in parts_of(owner) if part is not owner}
    return [owner for owner in objects if id(owner) not in inner]
