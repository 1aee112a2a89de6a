"""The models and optimizers of a training: what is kept of them so that their end can be told after their death.

Only the containers of tensors are held (the dicts of a module, the groups and state of an optimizer), and
only as long as their owner lives: no lifetime grows and no cycle arises.
"""

from __future__ import annotations

import sys
import weakref

from ..agent import Agent, on_thread
from ..core import live_objects
from ..core.digests import distinct, text_entry
from ..events import Events, ModelEnded, OptimizerEnded, OptimizerMade, OptimizerNamed, tell
from . import private_api
from .tensors import entry, is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..core.digests import Tensor

_WRAPPERS = frozenset(["DistributedDataParallel", "DataParallel", "OptimizedModule"])
_MAX_SEARCHES = 8  # of the whole heap: 50 ms each


class Modules:
    """The modules of this process in the order in which they got their first parameter or child."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}
        self._searches = 0

    def registered(self, module: Any, _name: str, _value: Any) -> None:
        """PyTorch's registration hook: a module gets a parameter or a child."""
        key = id(module)
        if key not in self._references:
            references = self._references
            references[key] = weakref.ref(module, lambda _: references.pop(key, None))

    def owners(self, parameters: list[Any], module_class: type) -> list[Any]:
        """Return the outermost modules that hold any of the parameters; wrappers stand for what they wrap."""
        wanted = {id(parameter) for parameter in parameters}
        roots = self._roots(wanted)
        held = {id(tensor) for root in roots for _, tensor in named_tensors(parts_of(root))}
        if not wanted <= held and self._searches < _MAX_SEARCHES:
            self._searches += 1
            self._search(module_class)
            roots = self._roots(wanted)
        return [unwrapped(root) for root in roots]

    def outermost(self) -> list[Any]:
        """Return the modules that are within no other."""
        found = [reference() for reference in list(self._references.values())]
        alive = [module for module in found if module is not None]
        children = {id(child) for module in alive for child in private_api.containers(module)[2].values()}
        return [module for module in alive if id(module) not in children]

    def _roots(self, wanted: set[int]) -> list[Any]:
        roots = self.outermost()
        held = {id(root): wanted & {id(tensor) for _, tensor in named_tensors(parts_of(root))} for root in roots}
        return _without_graphs([root for root in roots if held[id(root)]], held)

    def _search(self, module_class: type) -> None:
        """Copies and unpickled modules register nothing, nor do those of PyTorch before 2.0."""
        for candidate in filter(private_api.is_module, live_objects.instances(module_class)):
            self.registered(candidate, "", None)


def _without_graphs(roots: list[Any], held: dict[int, set[int]]) -> list[Any]:
    """Graphs that were compiled of a model hold its parameters too (PyTorch before 2.5)."""
    graphs = [root for root in roots if any(kind.__name__ == "GraphModule" for kind in type(root).__mro__)]
    if not graphs or len(roots) == 1:
        return roots
    is_graph = set(map(id, graphs))
    others: set[int] = set().union(*[held[id(root)] for root in roots if id(root) not in is_graph])
    return [root for root in roots if id(root) not in is_graph or not held[id(root)] <= others]


def unwrapped(module: Any) -> Any:
    """Return what a wrapper of one module wraps."""
    while type(module).__name__ in _WRAPPERS and len(private_api.containers(module)[2]) == 1:
        (module,) = private_api.containers(module)[2].values()
    return module


def module_name(models: Iterable[Any], wanted: Any) -> str:
    """Return what a module is called in its model, with the model's number where there are several."""
    models, wanted = list(models), unwrapped(wanted)
    for number, model in enumerate(models):
        for name, module in model.named_modules():
            if module is wanted:
                prefix = [f"model#{number}"] if len(models) > 1 else []
                return ".".join([*prefix, *([name] if name else [])]) or type(module).__name__
    return type(wanted).__name__


def has_parameters(module: Any) -> bool:
    """Return whether the module or one below it has a parameter."""
    parameters, _, children = private_api.containers(module)
    if any(parameter is not None for parameter in parameters.values()):
        return True
    return any(has_parameters(child) for child in children.values() if child is not None)


def parts_of(module: Any, prefix: str = "", above: tuple[int, ...] = ()) -> list[tuple[str, Any, Any]]:
    """Prefix, parameters and buffers of the module and all below it, each path to a shared one."""
    parameters, buffers, children = private_api.containers(module)
    parts = [(prefix, parameters, buffers)]
    for name, child in children.items():
        if child is not None and id(child) not in above:
            parts += parts_of(child, f"{prefix}{name}.", (*above, id(module)))
    return parts


def named_tensors(parts: list[tuple[str, Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield every parameter and buffer under each of its names."""
    for prefix, parameters, buffers in parts:
        for container in (parameters, buffers):
            for name, tensor in container.items():
                if tensor is not None:
                    yield prefix + name, tensor


class ModelRecord:
    """A module that an optimizer trains."""

    def __init__(self, module: Any, name: str) -> None:
        self.name = name
        self.thread = on_thread("")
        self.kind = type(module).__name__
        self.module = weakref.ref(module)
        self.ended = False
        self._parts = parts_of(module)

    def refresh(self) -> None:
        """Take in what was added to the module since."""
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
        return _read(self.name, lambda: (entry(name, tensor) for name, tensor in self.named()))


class OptimizerRecord:
    """An optimizer and how often it stepped."""

    has_buffers = False

    def __init__(self, optimizer: Any, generation: int) -> None:
        self.name = ""  # until it has stepped
        self.thread = on_thread("")
        self.kind = type(optimizer).__name__
        self.generation = generation
        self.steps = 0
        self.ended = False
        self.trail: Any = None  # what the trail keeps of it
        self._groups = optimizer.param_groups
        self._state = optimizer.state
        self._names: dict[int, str] = {}

    def stepped(self, optimizer: Any) -> None:
        """Count a step; the containers may be others than before (load_state_dict)."""
        self.steps += 1
        self._groups = optimizer.param_groups
        self._state = optimizer.state

    @property
    def used(self) -> bool:
        """Whether it stepped, be it in compiled code, which calls no hook."""
        return bool(self.steps or self._state)

    def parameters(self) -> list[Any]:
        """Return all of them: perhaps a list of the optimizer's, which is not to be kept."""
        if len(self._groups) == 1 and type(self._groups[0]["params"]) is list:
            return self._groups[0]["params"]
        return [parameter for group in self._groups for parameter in group["params"]]

    def name_parameters(self, models: list[ModelRecord]) -> None:
        """Call parameters as their models do."""
        for model in models:
            prefix = f"{model.name}." if len(models) > 1 else ""
            for name, tensor in model.named():
                self._names.setdefault(id(tensor), prefix + name)

    def states(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield each tensor of the optimizer's state with its parameter and its name."""
        for parameter in self.parameters():
            for key, value in self._state.get(parameter, {}).items():
                if is_tensor(value):
                    yield parameter, str(key), value

    def parameter_names(self) -> Iterator[str]:
        """Yield a name for each of parameters()."""
        for number, group in enumerate(self._groups):
            for position, parameter in enumerate(group["params"]):
                yield self._names.get(id(parameter)) or f"param_groups.{number}.params.{position}"

    def tensors(self) -> list[Tensor]:
        return _read(self.name, self._entries)

    def _entries(self) -> Iterator[Tensor]:
        for number, group in enumerate(self._groups):
            for key in group:
                if key not in ("params", "param_names"):
                    yield from entries_of(f"param_groups.{number}.{key}", group[key])
            for position, parameter in enumerate(group["params"]):
                name = self._names.get(id(parameter))
                if name is None:
                    name = f"param_groups.{number}.params.{position}"
                    yield entry(name, parameter)
                yield from entries_of(name, self._state.get(parameter, {}))


def entries_of(name: str, value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value of any nesting; other things in it by their text, where it repeats."""
    if is_tensor(value):
        yield entry(name, value)
    elif isinstance(value, dict):
        for key in value:
            yield from entries_of(f"{name}.{key}", value[key])
    elif isinstance(value, (list, tuple)) and any(is_tensor(part) for part in value):
        for number, part in enumerate(value):
            yield from entries_of(f"{name}.{number}", part)
    else:
        text = repr(value)
        yield text_entry(name, f"<{type(value).__qualname__}>" if " at 0x" in text else text)


def _read(name: str, entries: Callable[[], Iterable[Tensor]]) -> list[Tensor]:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name} was not read, as a CUDA graph is being recorded")
    with torch.no_grad(), private_api.without_overrides(torch):
        return distinct(entries())


class Records:
    """The records of this process, and the events of optimizers and models."""

    def __init__(self, agent: Agent, events: Events, torch: Any) -> None:
        self._agent, self._events, self._torch = agent, events, torch
        self.modules = Modules()
        self.forget()

    def forget(self) -> None:
        """In a forked child: drop what the parent noted."""
        self._optimizers: dict[int, OptimizerRecord] = {}  # by id of the optimizer, while it lives
        self._models: dict[int, ModelRecord] = {}  # by id of the module, while it lives

    def current(self, thread: str) -> Iterator[ModelRecord | OptimizerRecord]:
        """Yield those of a thread that take part in its training, as they are now."""
        for model in list(self._models.values()):
            if model.thread == thread:
                model.refresh()
                yield model
        for optimizer in list(self._optimizers.values()):
            if optimizer.thread == thread and optimizer.used:
                if not optimizer.name:
                    self.adopt(optimizer)  # it stepped in compiled code only
                yield optimizer

    def made(self, optimizer: Any) -> OptimizerRecord:
        """Note a new optimizer, be it a copy, which was not initialized; return its record."""
        record = self._optimizers[id(optimizer)] = OptimizerRecord(optimizer, self._agent.generation)
        tell(self._events.optimizer_made, OptimizerMade(record, optimizer))
        weakref.finalize(optimizer, self._agent.attempt, self._optimizer_dies, id(optimizer), record).atexit = False
        return record

    def of(self, optimizer: Any) -> OptimizerRecord:
        """Return the record of an optimizer."""
        return self._optimizers.get(id(optimizer)) or self.made(optimizer)

    def stepped(self, optimizer: Any) -> OptimizerRecord:
        """Note that an optimizer has stepped; return its record."""
        record = self._optimizers.get(id(optimizer)) or self.made(optimizer)
        record.stepped(optimizer)
        if not record.name:
            self.adopt(record)
        return record

    def adopt(self, record: OptimizerRecord) -> None:
        """Name the optimizer, and the models whose parameters it has, at its first step."""
        record.name = self._agent.name("optimizer")
        models = [self._model(module) for module in self.modules.owners(record.parameters(), self._torch.nn.Module)]
        record.name_parameters(models)
        tell(self._events.optimizer_named, OptimizerNamed(record, models))

    def _model(self, module: Any) -> ModelRecord:
        model = self._models.get(id(module))
        if model is None:
            model = ModelRecord(module, self._agent.name("model"))
            self._models[id(module)] = model
            weakref.finalize(module, self._agent.attempt, self._model_ends, id(module), model).atexit = False
        return model

    def _model_ends(self, key: int, record: ModelRecord) -> None:
        if self._models.get(key) is record and not record.ended:
            record.ended = True
            record.refresh()
            tell(self._events.model_ended, ModelEnded(record))
            del self._models[key]

    def _optimizer_dies(self, key: int, record: OptimizerRecord) -> None:
        if self._optimizers.get(key) is record:
            del self._optimizers[key]
        self._optimizer_ends(record)

    def _optimizer_ends(self, record: OptimizerRecord) -> None:
        if not record.ended and record.used and record.generation == self._agent.generation:
            record.ended = True
            if not record.name:
                self.adopt(record)  # it stepped in compiled code only
            tell(self._events.optimizer_ended, OptimizerEnded(record))

    def finish(self) -> None:
        """The process ends, and all with it."""
        for record in list(self._optimizers.values()):
            self._agent.attempt(self._optimizer_ends, record)
        for key, model in list(self._models.items()):
            self._agent.attempt(self._model_ends, key, model)
