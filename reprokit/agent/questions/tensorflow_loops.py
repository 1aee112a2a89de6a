"""Finds what a loop of TensorFlow that runs eagerly trains, before its first update says so."""

from __future__ import annotations

from ..core import live_objects
from ..tensorflow import private_api
from ..tensorflow.state import OptimizerStep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def step_of_loop() -> OptimizerStep | None:
    """Return the step of the only optimizer that there is; None where it cannot be told what it trains."""
    kinds = [*private_api.keras_classes("BaseOptimizer"), *private_api.keras_classes("_BaseOptimizer")]
    optimizers = _outermost(live_objects.instances(*kinds), lambda one: [getattr(one, "inner_optimizer", None)])
    if len(optimizers) != 1:
        return None
    layers = live_objects.instances(*private_api.keras_classes("Layer"))
    variables = private_api.trained(getattr(optimizers[0], "inner_optimizer", optimizers[0]))
    if not variables:
        models = [one for one in _outermost(layers, private_api.layers) if one.trainable_variables]
        if len(models) != 1:
            return None
        variables = list(models[0].trainable_variables)
    known = {id(variable) for variable in variables}
    others = {id(variable): variable for layer in layers for variable in layer.variables}
    beside = [variable for key, variable in others.items() if key not in known]
    return OptimizerStep(optimizers[0], variables, is_eager=True, others=beside)


def _outermost(objects: list[Any], parts_of: Any) -> list[Any]:
    """Return those that are no parts of others."""
    inner = {id(part) for one in objects for part in parts_of(one) if part is not one}
    return [one for one in objects if id(one) not in inner]
