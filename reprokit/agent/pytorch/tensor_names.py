"""The names of a PyTorch training's modules and tensors, for the trail, captures, questions and saved tensors.

A parameter or buffer is named by its path in its model, as in state_dict(); a parameter of no model by its place in its
optimizer's param_groups. The number of the model, or of that optimizer, precedes the name if there are several.
"""

from __future__ import annotations

import weakref

from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

_WRAPPERS = frozenset(["DistributedDataParallel", "DataParallel", "OptimizedModule"])


def unwrapped(module: Any) -> Any:
    """Return the module inside of wrappers such as DistributedDataParallel."""
    while type(module).__name__ in _WRAPPERS and len(private_api.containers(module)[2]) == 1:
        (module,) = private_api.containers(module)[2].values()
    return module


def is_compiled(module: Any) -> bool:
    """Return whether a module is what torch.compile returns for a module."""
    return type(module).__name__ == "OptimizedModule"


def module_name(models: Iterable[Any], target: Any) -> str:
    """Return the name of a module in its model, prefixed by the model's number if there are several models."""
    models, target = list(models), unwrapped(target)
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            if module is target:
                prefix = [f"model#{number}"] if len(models) > 1 else []
                return ".".join([*prefix, *([name] if name else [])]) or type(module).__name__
    return type(target).__name__


def parts_of(module: Any, prefix: str = "", above: tuple[int, ...] = ()) -> list[tuple[str, Any, Any]]:
    """Return prefix, parameters and buffers of a module and its descendants; shared ones once for each path."""
    parameters, buffers, children = private_api.containers(module)
    parts = [(prefix, parameters, buffers)]
    for name, child in children.items():
        if child is not None and id(child) not in above:
            parts += parts_of(child, f"{prefix}{name}.", (*above, id(module)))
    return parts


def named_tensors(parts: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield all parameters and buffers with their full names."""
    for prefix, parameters, buffers in parts:
        for container in (parameters, buffers):
            for name, tensor in container.items():
                if tensor is not None:
                    yield prefix + name, tensor


def parameters_of(optimizer: Any) -> list[Any]:
    """Return an optimizer's parameters, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def places_of(groups: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of an optimizer's groups, each with its place, as in the optimizer's state_dict()."""
    for number, group in enumerate(groups):
        for position, parameter in enumerate(group["params"]):
            yield f"param_groups.{number}.params.{position}", parameter


class TensorNames:
    """The names of the tensors of some models, and of the parameters of some optimizers."""

    def __init__(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        self.models = models
        self._names: dict[int, str] = {}
        self.of_models: dict[str, Any] = {}  # their parameters, under each of their names
        self.buffers: dict[str, Any] = {}
        self.parameters: dict[str, Any] = {}  # of the optimizers
        self.alone: dict[str, Any] = {}  # those of them that are in no model
        for number, model in enumerate(models):
            head = f"model#{number}." if len(models) > 1 else ""
            for prefix, parameters, buffers in parts_of(model, head):
                self.of_models.update(named_tensors([(prefix, parameters, {})]))
                self.buffers.update(named_tensors([(prefix, {}, buffers)]))
        for name, tensor in self.tensors.items():
            self._names.setdefault(id(tensor), name)
        of_models = set(self._names)
        for number, optimizer in enumerate(optimizers):
            head = f"optimizer#{number}." if len(optimizers) > 1 else ""
            for place, parameter in places_of(getattr(optimizer, "param_groups", ())):
                name = self._names.setdefault(id(parameter), head + place)
                self.parameters.setdefault(name, parameter)
                if id(parameter) not in of_models:
                    self.alone.setdefault(name, parameter)

    @property
    def tensors(self) -> dict[str, Any]:
        """The parameters and buffers of the models, under each of their names."""
        return {**self.of_models, **self.buffers}

    def of(self, tensor: Any) -> str:
        """Return the name of a tensor; a shared one has the first of its names."""
        return self._names[id(tensor)]

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self._names


class PathsInRoots:
    """The paths of modules and parameters in the outermost module that contains them.

    Names of further outermost modules begin with their number: model#1.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Any]] = []
        self._modules: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._tensors: dict[int, tuple[weakref.ref[Any], list[str]]] = {}

    def _collect(self, hooks: Any) -> None:
        for root in hooks.modules.outermost():
            if not any(known() is root for known in self._roots):
                self._roots.append(weakref.ref(root))
        self._modules, self._tensors = {}, {}
        for number, reference in enumerate(self._roots):
            root = reference()
            if root is not None:
                self._add(root, f"model#{number}." if number else "")

    def _add(self, outer: Any, prefix: str) -> None:
        root = unwrapped(outer)
        for name, module in root.named_modules():
            path = prefix + (name or type(root).__name__)
            self._modules.setdefault(id(module), (weakref.ref(module), path))
        if is_compiled(outer):  # the modules within it run unseen
            self._modules[id(outer)] = weakref.ref(outer), prefix + type(root).__name__
        for name, tensor in named_tensors(parts_of(root, prefix)):
            entry = self._tensors.setdefault(id(tensor), (weakref.ref(tensor), []))
            entry[1].append(name)

    def of_module(self, module: Any, hooks: Any) -> str:
        """Return a module's path; of a module without a parent, such as a loss, its class name.

        A graph that torch.compile made has an empty name.
        """
        entry = self._modules.get(id(module))
        if entry is None or entry[0]() is not module:
            self._collect(hooks)
            is_graph = any(kind.__name__ == "GraphModule" for kind in type(module).__mro__)
            new_entry = weakref.ref(module), "" if is_graph else type(module).__name__
            entry = self._modules.setdefault(id(module), new_entry)
        return entry[1]

    def of_tensor(self, tensor: Any, hooks: Any) -> list[str]:
        """Return the paths of a parameter or buffer; a shared one has several."""
        entry = self._tensors.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            self._collect(hooks)
            entry = self._tensors.setdefault(id(tensor), (weakref.ref(tensor), []))
        return entry[1]
