"""Records of the models and optimizers of a training, by which their final state can be read after their deletion.

The records refer only to the containers of tensors (the dicts of a module, the groups and state of an optimizer), and
only while their owner lives: no lifetime is extended and no cycle arises.
"""

from __future__ import annotations

import sys
import weakref

from ..core.agent import Agent, on_thread
from ..core.digests import distinct, text_entry
from ..core.live_objects import LiveObjects, instances
from ..events.steps import Events, ModelEnded, OptimizerEnded, OptimizerMade, OptimizerNamed, tell
from . import private_api
from .tensor_names import named_tensors, parts_of, places_of, unwrapped
from .tensors import entry, is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.digests import Tensor

_MAX_SEARCHES = 8  # searches of the whole heap, 50 ms each


class Modules:
    """The modules of this process, in the order of their first registered parameter or child."""

    def __init__(self) -> None:
        self._modules = LiveObjects()
        self._searches = 0

    def registered(self, module: Any, _name: str, _value: Any) -> None:
        """Record a module (PyTorch's hook for the registration of a parameter or child)."""
        self._modules.add(module)

    def adopt(self, others: Modules) -> None:
        """Record the modules that others record."""
        for module in others._modules:
            self._modules.add(module)

    def owners(self, parameters: list[Any], module_class: type) -> list[Any]:
        """Return the outermost modules with any of the parameters, without wrappers such as DataParallel."""
        parameter_ids = {id(parameter) for parameter in parameters}
        roots = self._roots(parameter_ids)
        found_ids = {id(tensor) for root in roots for _, tensor in named_tensors(parts_of(root))}
        if not parameter_ids <= found_ids and self._searches < _MAX_SEARCHES:
            self._searches += 1
            self.search(module_class)
            roots = self._roots(parameter_ids)
        return [unwrapped(root) for root in roots]

    def outermost(self) -> list[Any]:
        """Return the modules that are no child of another."""
        alive = list(self._modules)
        children = {id(child) for module in alive for child in private_api.containers(module)[2].values()}
        return [module for module in alive if id(module) not in children]

    def _roots(self, ids: set[int]) -> list[Any]:
        roots = self.outermost()
        owned = {id(root): ids & {id(tensor) for _, tensor in named_tensors(parts_of(root))} for root in roots}
        return _without_traced_graphs([root for root in roots if owned[id(root)]], owned)

    def search(self, module_class: type) -> None:
        """Search the heap for modules that called no hook: copies, unpickled ones, and those before PyTorch 2.0."""
        for candidate in filter(private_api.is_module, instances(module_class)):
            self.registered(candidate, "", None)


def _without_traced_graphs(roots: list[Any], owned: dict[int, set[int]]) -> list[Any]:
    """Drop compiled graphs, which share the parameters of their model (PyTorch before 2.5)."""
    graphs = [root for root in roots if any(kind.__name__ == "GraphModule" for kind in type(root).__mro__)]
    if not graphs or len(roots) == 1:
        return roots
    is_graph = set(map(id, graphs))
    other_parameters: set[int] = set().union(*[owned[id(root)] for root in roots if id(root) not in is_graph])
    return [root for root in roots if id(root) not in is_graph or not owned[id(root)] <= other_parameters]


def has_parameters(module: Any) -> bool:
    """Return whether a module or one of its descendants has a parameter."""
    parameters, _, children = private_api.containers(module)
    if any(parameter is not None for parameter in parameters.values()):
        return True
    return any(has_parameters(child) for child in children.values() if child is not None)


class ModelRecord:
    """The record of a module that an optimizer trains."""

    def __init__(self, module: Any, name: str) -> None:
        self.name = name
        self.thread = on_thread("")
        self.kind = type(module).__name__
        self.module = weakref.ref(module)
        self.ended = False
        self._parts = parts_of(module)

    def refresh(self) -> None:
        """Update the containers of tensors, as submodules may have been added."""
        module = self.module()
        if module is not None:
            self._parts = parts_of(module)

    def named(self) -> Iterator[tuple[str, Any]]:
        return named_tensors(self._parts)

    @property
    def has_buffers(self) -> bool:
        return any(self.buffers())

    def buffers(self) -> list[dict[str, Any]]:
        return [buffers for _, _, buffers in self._parts if buffers]

    def tensors(self) -> list[Tensor]:
        return _read_entries(self.name, lambda: (entry(name, tensor) for name, tensor in self.named()))


class OptimizerRecord:
    """The record of an optimizer: its containers of tensors, and its number of steps."""

    has_buffers = False

    def __init__(self, optimizer: Any, generation: int) -> None:
        self.name = ""  # until it has stepped
        self.thread = on_thread("")
        self.kind = type(optimizer).__name__
        self.generation = generation
        self.steps = 0
        self.alarm = 1 << 62  # the number of steps from which StepsReached is told, set by who handles it
        self.change_count = 0  # sum of the version counters of the parameters after the last step, set by the trail
        self.ended = False
        self.trail: Any = None  # its OptimizerTrail
        self.groups = optimizer.param_groups  # as at its last step: load_state_dict replaces them
        self.state = optimizer.state
        self._names: dict[int, str] = {}

    def stepped(self, optimizer: Any) -> None:
        """Count a step, and update the containers, which load_state_dict replaces."""
        self.steps += 1
        self.groups = optimizer.param_groups
        self.state = optimizer.state

    @property
    def used(self) -> bool:
        """Whether the optimizer has stepped, also in compiled code, which calls no hook."""
        return bool(self.steps or self.state)

    def parameters(self) -> list[Any]:
        """Return all parameters; the list may be the optimizer's own, so do not keep it."""
        if len(self.groups) == 1 and type(self.groups[0]["params"]) is list:
            return self.groups[0]["params"]
        return [parameter for group in self.groups for parameter in group["params"]]

    def name_parameters(self, models: list[ModelRecord]) -> None:
        """Take the names of the parameters from their models."""
        for model in models:
            prefix = f"{model.name}." if len(models) > 1 else ""
            for name, tensor in model.named():
                self._names.setdefault(id(tensor), prefix + name)

    def states(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield parameter, key and value of each tensor in the optimizer's state; those of lists by KEY.INDEX."""
        for parameter in self.parameters():
            for key, value in self.state.get(parameter, {}).items():
                for place, tensor in nested_tensors(str(key), value):
                    yield parameter, place, tensor

    def places(self) -> Iterator[tuple[str, Any]]:
        """Yield the parameters with their places in the groups, in order."""
        return places_of(self.groups)

    def parameter_names(self) -> Iterator[str]:
        """Yield the names of parameters(), in order."""
        for place, parameter in self.places():
            yield self._names.get(id(parameter)) or place

    def tensors(self) -> list[Tensor]:
        return _read_entries(self.name, self._entries)

    def _entries(self) -> Iterator[Tensor]:
        for number, group in enumerate(self.groups):
            for key in group:
                if key not in ("params", "param_names"):
                    yield from entries_of(f"param_groups.{number}.{key}", group[key])
        for place, parameter in self.places():
            if id(parameter) not in self._names:
                yield entry(place, parameter)
            yield from entries_of(self._names.get(id(parameter), place), self.state.get(parameter, {}))


def nested_tensors(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested dicts, lists and tuples, with their names in the manner of entries_of."""
    if is_tensor(value):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, part in _items(value):
            yield from nested_tensors(f"{name}.{key}", part)


def entries_of(name: str, value: Any) -> Iterator[Tensor]:
    """Yield entries for the tensors nested in a value; other values as text, without memory addresses."""
    if is_tensor(value):
        yield entry(name, value)
    elif isinstance(value, dict) or (isinstance(value, (list, tuple)) and any(map(is_tensor, value))):
        for key, part in _items(value):
            yield from entries_of(f"{name}.{key}", part)
    else:
        text = repr(value)
        yield text_entry(name, f"<{type(value).__qualname__}>" if " at 0x" in text else text)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _read_entries(name: str, entries: Callable[[], Iterable[Tensor]]) -> list[Tensor]:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name} was not read, as a CUDA graph is being recorded")
    with torch.no_grad(), private_api.without_overrides(torch):
        return distinct(entries())


class TrainingRecords:
    """The records of all models and optimizers of this process; reports their events."""

    def __init__(self, agent: Agent, events: Events, torch: Any) -> None:
        self._agent, self._events, self._torch = agent, events, torch
        self.modules = Modules()
        self.optimizers: dict[int, OptimizerRecord] = {}  # by id of the optimizer, while it lives
        self.forget()

    def forget(self) -> None:
        """Drop the records of the parent process in a forked child."""
        self.optimizers.clear()
        self._models: dict[int, ModelRecord] = {}  # by id of the module, while it lives

    def current(self, thread: str) -> Iterator[ModelRecord | OptimizerRecord]:
        """Yield the up-to-date records of the models and optimizers that a thread trains."""
        for model in list(self._models.values()):
            if model.thread == thread:
                model.refresh()
                yield model
        for optimizer in list(self.optimizers.values()):
            if optimizer.thread == thread and optimizer.used:
                if not optimizer.name:
                    self.adopt(optimizer)  # it stepped in compiled code only
                yield optimizer

    def add(self, optimizer: Any) -> OptimizerRecord:
        """Create the record of a new optimizer, or of a copy, whose __init__ was not called."""
        record = self.optimizers[id(optimizer)] = OptimizerRecord(optimizer, self._agent.generation)
        self._agent.made_optimizer("torch")
        tell(self._events.optimizer_made, OptimizerMade(record, optimizer))
        weakref.finalize(optimizer, self._agent.attempt, self._optimizer_deleted, id(optimizer), record).atexit = False
        return record

    def of(self, optimizer: Any) -> OptimizerRecord:
        """Return the record of an optimizer."""
        return self.optimizers.get(id(optimizer)) or self.add(optimizer)

    def stepped(self, optimizer: Any) -> OptimizerRecord:
        """Count a step of an optimizer; return its record."""
        record = self.optimizers.get(id(optimizer)) or self.add(optimizer)
        record.stepped(optimizer)
        if not record.name:
            self.adopt(record)
        return record

    def adopt(self, record: OptimizerRecord) -> None:
        """Name an optimizer at its first step, and the models that it trains."""
        record.name = self._agent.name("optimizer")
        models = [self._record_of(module) for module in self.modules.owners(record.parameters(), self._torch.nn.Module)]
        record.name_parameters(models)
        tell(self._events.optimizer_named, OptimizerNamed(record, models))

    def _record_of(self, module: Any) -> ModelRecord:
        model = self._models.get(id(module))
        if model is None:
            model = ModelRecord(module, self._agent.name("model"))
            self._models[id(module)] = model
            weakref.finalize(module, self._agent.attempt, self._end_model, id(module), model).atexit = False
        return model

    def _end_model(self, key: int, record: ModelRecord) -> None:
        if self._models.get(key) is record and not record.ended:
            record.ended = True
            record.refresh()
            tell(self._events.model_ended, ModelEnded(record))
            del self._models[key]

    def _optimizer_deleted(self, key: int, record: OptimizerRecord) -> None:
        if self.optimizers.get(key) is record:
            del self.optimizers[key]
        self._end_optimizer(record)

    def _end_optimizer(self, record: OptimizerRecord) -> None:
        if not record.ended and record.used and record.generation == self._agent.generation:
            record.ended = True
            if not record.name:
                self.adopt(record)  # it stepped in compiled code only
            tell(self._events.optimizer_ended, OptimizerEnded(record))

    def finish(self) -> None:
        """Report the end of all models and optimizers at the end of the process."""
        for record in list(self.optimizers.values()):
            self._agent.attempt(self._end_optimizer, record)
        for key, model in list(self._models.items()):
            self._agent.attempt(self._end_model, key, model)


def closure_in(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Return the closure among the arguments of an optimizer's step, or None."""
    closure = arguments[0] if arguments else keywords.get("closure")
    return closure if callable(closure) and not private_api.has_children(closure) else None


def with_closure(closure: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], position: int = 0) -> Any:
    """Return the arguments of an optimizer's step with another closure in the place of theirs."""
    if len(arguments) > position:
        return (*arguments[:position], closure, *arguments[position + 1 :]), keywords
    return tuple(arguments), {**keywords, "closure": closure}
