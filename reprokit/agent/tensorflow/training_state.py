"""The state of a TensorFlow or Keras training: the variables that a step may change, and the generators."""

from __future__ import annotations

import sys
from functools import partial

from ..core.state_entries import StateEntry, StateKind, generator_state, put_generator
from . import private_api
from .state import optimizer_variables
from .tensor_names import distinct_names, name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .state import OptimizerStep

# Variables of optimizers that are no state of a parameter, by suffix of their names.
OF_OPTIMIZERS = {
    "learning_rate": StateKind.SETTINGS,
    "dynamic_scale": StateKind.SCALER,
    "step_counter": StateKind.SCALER,
}
_SEED = "seed_generator_state"  # in the name of a seed generator's variable


def variables_of(step: OptimizerStep) -> dict[StateKind, list[Any]]:
    """Return the variables that a step may change, by kind of state."""
    model, generator = step.model, keras_generator()
    parameters, metrics, seeds = list(getattr(model, "trainable_weights", model)), [], seed_states(model)
    if hasattr(model, "weights"):
        trained = {id(variable) for variable in parameters}
        buffers = [variable for variable in model.weights if id(variable) not in trained]
        metrics = [variable for metric in model.metrics for variable in metric.variables]
    else:
        seeds = [variable for variable in step.other_variables if _SEED in name_of(variable)]
        buffers = [variable for variable in step.other_variables if _SEED not in name_of(variable)]
    if generator is not None and not any(private_api.plain(generator.state) is seed for seed in seeds):
        seeds.append(generator.state)
    of_optimizer: dict[StateKind, list[Any]] = {StateKind.OPTIMIZER: [], StateKind.SETTINGS: [], StateKind.SCALER: []}
    for variable in optimizer_variables(step.optimizer):
        ends = [kind for end, kind in OF_OPTIMIZERS.items() if name_of(variable).partition(":")[0].endswith(end)]
        of_optimizer[ends[0] if ends else StateKind.OPTIMIZER].append(variable)
    return {
        StateKind.PARAMETERS: parameters,
        StateKind.BUFFERS: buffers,
        StateKind.METRICS: metrics,
        **of_optimizer,
        StateKind.SEEDS: seeds,
    }


def variable_entries(kind: StateKind, variables: Sequence[Any]) -> list[StateEntry]:
    """Return the entries of variables; a value is read as an eager tensor, and put back from a tensor or array."""
    return [
        StateEntry(kind, name, partial(read_variable, each), partial(put_variable, each))
        for name, each in zip(distinct_names(variables), variables)
    ]


def seed_states(model: Any) -> list[Any]:
    """Return the states of the seed generators of a model of Keras 3."""
    variables = getattr(model, "variables", None)
    return [state for state in variables if _SEED in name_of(state)] if isinstance(variables, list) else []


def as_array(value: Any) -> Any:
    """Return a tensor, variable or array as a NumPy array, without a copy if it is in host memory."""
    value = private_api.primary(plain(value))
    if hasattr(value, "handle"):
        value = read_variable(value)
    if private_api.has_value(value):
        return private_api.value(value)
    return sys.modules["numpy"].asarray(value)


def read_variable(variable: Any) -> Any:
    """Return a variable's value as an eager tensor that shares its memory; a later update allocates another."""
    variable = private_api.primary(plain(variable))
    raw = sys.modules["tensorflow"].raw_ops
    with private_api.ops().init_scope():
        return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def resource_id(variable: Any) -> int:
    """Return an id that is the same for a Keras 3 variable and for the TensorFlow variable in it."""
    return id(private_api.primary(plain(variable)))  # of a mirrored one, that of the first replica


def plain(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras 3 variable; others unchanged."""
    return private_api.plain(variable) if hasattr(variable, "path") else variable


def put_variable(variable: Any, value: Any) -> None:
    """Assign a value, outside of any graph that is being built."""
    variable = plain(variable)
    with private_api.ops().init_scope():
        variable.assign(value)


def put_variables(values: Iterable[tuple[Any, Any]]) -> None:
    """Assign values to variables, outside of any graph that is being built."""
    for variable, value in values:
        put_variable(variable, value)


def keras_generator() -> Any:
    """Return Keras 3's global seed generator, for layers without their own; None if it was never used."""
    module = private_api.module("keras_state")
    return None if module is None else module.get_global_attribute("global_seed_generator")


def eager_state() -> dict[str, Any] | None:
    """Return the seed of eager operations, and the state of the generator from which they draw their own."""
    if private_api.context() is None:
        return None
    generator = private_api.seed_generator()
    operations = {} if generator is None else {"operations": generator_state(generator)}
    return {"seed": private_api.eager_seed(), **operations}


def eager_entry() -> StateEntry:
    """Return the entry of the eager seed and its generator."""

    def put_back(state: Mapping[str, Any]) -> None:
        if private_api.context() is not None and state.get("operations") is not None:
            put_generator(private_api.set_eager_seed(state.get("seed")), state["operations"])

    return StateEntry(StateKind.TENSORFLOW, "tensorflow", eager_state, put_back)
