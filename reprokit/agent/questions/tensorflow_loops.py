"""Finds what an eager loop of TensorFlow trains, before its first update shows it."""

from __future__ import annotations

from ..core import live_objects
from ..tensorflow import private_api
from ..tensorflow.state import OptimizerStep

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    layers = live_objects.instances(*private_api.keras_classes("Layer"))
    variables = private_api.trained(getattr(optimizers[0], "inner_optimizer", optimizers[0]))
    if not variables:
        models = [candidate for candidate in _outermost(layers, private_api.layers) if candidate.trainable_variables]
        if len(models) != 1:
            return None
        variables = list(models[0].trainable_variables)
    trained = {id(variable) for variable in variables}
    others = {id(variable): variable for layer in layers for variable in layer.variables}
    untrained = [variable for key, variable in others.items() if key not in trained]
    return OptimizerStep(optimizers[0], variables, is_eager=True, others=untrained)


def _outermost(objects: list[Any], parts_of: Any) -> list[Any]:
    """Return the objects that are not parts of others."""
    inner = {id(part) for owner in objects for part in parts_of(owner) if part is not owner}
    return [owner for owner in objects if id(owner) not in inner]
