"""The state of a PyTorch training: what its models, optimizers, schedules and scalers hold, entry by entry."""

from __future__ import annotations

import sys
from functools import partial

from ..core.live_objects import LiveObjects
from ..core.state_entries import StateEntry, StateKind
from . import private_api
from .tensor_names import TensorNames, parameters_of
from .tensors import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from .state import Modules

# Settings that only choose between implementations, and notes of schedules: equal states may differ in them.
IMPLEMENTATION = frozenset(["capturable", "differentiable", "foreach", "fused", "params", "param_names"])
NOTES = IMPLEMENTATION | private_api.NOTES_OF_SCHEDULES


class TrainingObjects:
    """The optimizers, schedules and scalers that a script has made, in the order of making, while they live."""

    def __init__(self, modules: Callable[[], Modules]) -> None:
        self.modules = modules  # returns all modules of the process
        self.optimizers, self.schedules, self.scalers = LiveObjects(), LiveObjects(), LiveObjects()

    def owners(self) -> list[Any]:
        """Return the models that the optimizers train."""
        trained = [parameter for optimizer in self.optimizers for parameter in parameters_of(optimizer)]
        return self.modules().owners(trained, sys.modules["torch"].nn.Module)

    def names(self) -> TensorNames:
        """Return the names of the models' tensors and of the optimizers' parameters."""
        return TensorNames(self.owners(), list(self.optimizers))

    def entries(
        self, names: TensorNames, others: Mapping[str, Any], *, has_details: bool = True
    ) -> Iterator[StateEntry]:
        """Yield all entries, those of gradients and modules' settings only with details.

        The other tensors are those of models without an optimizer.
        """
        parameters = {**names.of_models, **names.alone}
        for kind, tensors in (
            (StateKind.PARAMETERS, parameters),
            (StateKind.BUFFERS, names.buffers),
            (StateKind.OTHERS, others),
        ):
            yield from (tensor_entry(kind, name, tensor) for name, tensor in tensors.items())
        if has_details:
            yield from (attribute_entry(StateKind.GRADIENTS, *named, "grad") for named in parameters.items())
            yield from self._module_settings()
        of_optimizers = [
            optimizer_entries(number, optimizer, list(map(names.of, parameters_of(optimizer))))
            for number, optimizer in enumerate(self.optimizers)
        ]
        for kind in (StateKind.OPTIMIZER, StateKind.SETTINGS):
            yield from (entry for entries in of_optimizers for entry in entries if entry.kind is kind)
        for kind, objects in ((StateKind.SCHEDULE, self.schedules), (StateKind.SCALER, self.scalers)):
            for number, owner in enumerate(objects):
                yield stateful_entry(kind, f"{type(owner).__name__}#{number}", owner)

    def _module_settings(self) -> Iterator[StateEntry]:
        """Yield the plain numbers that models keep, and the flags of their parameters."""
        for head, root in numbered(self.modules().outermost()):
            for path, module in root.named_modules(prefix=head):
                for name, value in vars(module).items():
                    if type(value) in (bool, int, float) and not name.startswith("_"):
                        yield attribute_entry(StateKind.MODULES, f"{path}.{name}", module, name)
                for name, tensor in private_api.containers(module)[0].items():
                    if tensor is not None:
                        yield attribute_entry(
                            StateKind.MODULES, f"{path}.{name}.requires_grad", tensor, "requires_grad"
                        )


def tensor_entry(kind: StateKind, name: str, tensor: Any) -> StateEntry:
    """Return the entry of a parameter or buffer, which is put back without raising its version."""

    def put_back(value: Any) -> None:
        with sys.modules["torch"].no_grad():
            tensor.data.copy_(value)

    return StateEntry(kind, name, lambda: tensor, put_back)


def attribute_entry(kind: StateKind, name: str, owner: Any, attribute: str) -> StateEntry:
    """Return the entry of a number or gradient that a module or tensor has as an attribute."""

    def put_back(value: Any) -> None:
        if attribute in vars(owner):
            vars(owner)[attribute] = value  # unlike setattr, without calling the script's code
        else:
            setattr(owner, attribute, value.to(owner.device) if is_tensor(value) else value)

    return StateEntry(kind, name, partial(getattr, owner, attribute), put_back)


def stateful_entry(kind: StateKind, name: str, owner: Any) -> StateEntry:
    """Return the entry of a schedule or scaler."""
    return StateEntry(kind, name, owner.state_dict, lambda state: owner.load_state_dict(state) if state else None)


def numbered(objects: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield objects with their names: the class, and the number among those of this class."""
    counts: dict[str, int] = {}
    for each in objects:
        kind = type(each).__name__
        counts[kind] = counts.get(kind, -1) + 1
        yield f"{kind}#{counts[kind]}", each


# Optimizers


def optimizer_entries(number: int, optimizer: Any, names: Sequence[str]) -> list[StateEntry]:
    """Return the state of each parameter, which have these names, then other state, then the settings of each group."""
    head = f"optimizer#{number}"
    parameters = parameters_of(optimizer)
    entries = [_parameter_entry(head, optimizer, *named) for named in zip(names, parameters)]
    ids = set(map(id, parameters))

    def read() -> dict[Any, Any]:
        state = optimizer.state
        return {key: state[key] for key in state if id(key) not in ids and isinstance(key, (str, int))}

    def put_back(value: Mapping[Any, Any]) -> None:
        optimizer.state.update(value)

    entries.append(StateEntry(StateKind.OPTIMIZER, f"{head}.state", read, put_back))
    for place, group in enumerate(optimizer.param_groups):
        entries.append(_group_entry(f"{head}.param_groups.{place}", group))
    return entries


def _parameter_entry(head: str, optimizer: Any, name: str, parameter: Any) -> StateEntry:
    """Return the entry of a parameter's state, whose tensors are put back on the device of the parameter."""

    def read() -> Any:
        return optimizer.state[parameter] if parameter in optimizer.state else None

    def put_back(value: Any) -> None:
        _require_fit(name, parameter, value or {})
        if value is None:
            optimizer.state.pop(parameter, None)
        else:
            optimizer.state[parameter] = _moved(value, parameter)

    # A parameter of no model may have the optimizer's name in its own.
    return StateEntry(StateKind.OPTIMIZER, name if name.startswith(f"{head}.") else f"{head}.{name}", read, put_back)


def _group_entry(name: str, group: dict[str, Any]) -> StateEntry:
    """Return the entry of a group's settings; those that only choose between implementations stay the group's own."""

    def read() -> dict[str, Any]:
        return {key: group[key] for key in group if key != "params"}

    def put_back(values: Mapping[str, Any]) -> None:
        group.update({key: values[key] for key in values if key not in IMPLEMENTATION})

    return StateEntry(StateKind.SETTINGS, name, read, put_back)


def _require_fit(name: str, parameter: Any, state: Mapping[str, Any]) -> None:
    for key, value in state.items():
        if is_tensor(value) and value.dim() == parameter.dim() and value.dim():
            if value.shape != parameter.shape:
                shapes = _shape(value), _shape(parameter)
                raise ValueError(f"{key} of {name} has the shape {shapes[0]}, the parameter {shapes[1]}")


def _shape(tensor: Any) -> str:
    return "x".join([str(int(size)) for size in tensor.shape]) or "()"


def _moved(value: Any, parameter: Any) -> Any:
    """Return a parameter's state on the parameter's device; step counts stay on their own."""
    if isinstance(value, dict):
        return {key: part if key == "step" else _moved(part, parameter) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(part, parameter) for part in value)
    return value.to(parameter.device) if is_tensor(value) else value
