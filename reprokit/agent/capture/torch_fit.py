"""Puts the state of a snapshot into what a script built: models are found by names and shapes."""

from __future__ import annotations

import sys
import weakref

from ..core.signal_errors import pass_on
from ..pytorch.state import Modules, module_name, named_tensors, parts_of
from ..pytorch.tensors import dtype_name
from .store import NAMES, SnapshotError, SnapshotFile, saved_optimizers
from .torch_state import SnapshotReader, parameters_of, put_optimizer, put_random, put_stateful

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any


MAX_NAMED = 3  # differences that are told


class ParameterNames:
    """Parameters are called as their models call them."""

    def __init__(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        self.models = models
        self._names: dict[int, str] = {}
        self.tensors: dict[str, Any] = {}  # of the models, under each of their names
        self.parameters: dict[str, Any] = {}  # of the optimizers
        for number, model in enumerate(models):
            prefix = f"model#{number}." if len(models) > 1 else ""
            for part, tensor in named_tensors(parts_of(model)):
                self.tensors[prefix + part] = tensor
                self._names.setdefault(id(tensor), prefix + part)
        for count, optimizer in enumerate(optimizers):
            for number, group in enumerate(getattr(optimizer, "param_groups", ())):
                for position, parameter in enumerate(group["params"]):
                    part = f"optimizer#{count}.group{number}.{position}"
                    self.parameters.setdefault(self._names.setdefault(id(parameter), part), parameter)

    def of(self, parameters: Sequence[Any]) -> list[tuple[str, Any]]:
        """Return parameters of these optimizers with their names."""
        return [(self._names[id(parameter)], parameter) for parameter in parameters]


class ModelMatch:
    """A model of the snapshot, and the script's module that it is put into."""

    def __init__(self, entry: Mapping[str, Any], reader: SnapshotReader, module: Any) -> None:
        self.module = module
        self._entry = entry
        self._reader = reader
        self._tensors = ParameterNames([module], []).tensors
        self._kept = {name: reader.saved(kept) for name, kept in entry["tensors"].items()}

    def differences(self) -> Iterator[str]:
        """Yield what does not fit, a phrase each."""
        kind = type(self.module).__name__
        for name, kept in self._kept.items():
            tensor = self._tensors.get(name)
            if tensor is None:
                yield f"the script's {kind} has no {name}, which is {list(kept.shape)} in the snapshot"
            elif hasattr(tensor, "materialize"):
                continue
            elif tuple(tensor.shape) != kept.shape:
                yield f"{name} is {list(kept.shape)} in the snapshot and {list(tensor.shape)} in the script's {kind}"
            elif dtype_name(tensor) != NAMES[kept.dtype]:
                yield f"{name} is {NAMES[kept.dtype]} in the snapshot and {dtype_name(tensor)} in the script's {kind}"
        for name, tensor in self._tensors.items():
            if name not in self._kept:
                yield f"the snapshot has no {name}, which is {list(tensor.shape)} in the script's {kind}"

    def put(self, *, has_graph: bool = False) -> None:
        """Write parameters and buffers, and what of it was training.

        ``has_graph`` tells that a graph may have been built on what is there, and is to know nothing of it.
        """
        with sys.modules["torch"].no_grad():
            for name, kept in self._kept.items():
                tensor = self._tensors[name]
                if hasattr(tensor, "materialize"):  # of a lazy module that has not seen any input
                    tensor.materialize(kept.shape)
                (tensor.data if has_graph else tensor).copy_(self._reader.tensor(kept.name))
        flags = self._entry.get("training") or {}
        for name, child in self.module.named_modules():
            if isinstance(flags.get(name), bool):
                child.training = flags[name]


def _best_match(models: Sequence[ModelMatch]) -> ModelMatch:
    """Return the one with the fewest differences, which must be none."""
    counted = [(len(list(model.differences())), number) for number, model in enumerate(models)]
    count, number = min(counted)
    if count:
        told = [text for _, text in zip(range(MAX_NAMED), models[number].differences())]
        more = f", and {count - MAX_NAMED:,} more" if count > MAX_NAMED else ""
        raise SnapshotError(f"the snapshot is of another model: {'; '.join(told)}{more}")
    return models[number]


def restore(snapshot: SnapshotFile, model: Any, optimizers: Sequence[Any]) -> list[str]:
    """Put a model, its optimizers and the random states back to the start of the captured step; what to know of it."""
    torch: Any = sys.modules["torch"]
    reader, header = SnapshotReader(torch, snapshot.tensors), snapshot.facts
    if not header.models:
        raise SnapshotError("the snapshot holds no model")
    _best_match([ModelMatch(entry, reader, model) for entry in header.models]).put()
    for optimizer, entry in zip(optimizers, saved_optimizers(header, len(optimizers))):
        put_optimizer(optimizer, entry, reader)
    put_random(torch, header.random, reader)
    return list(header.notes)


class ScriptObjects:
    """What the script built, and what the snapshot has for it."""

    def __init__(
        self,
        torch: Any,
        snapshot: SnapshotFile,
        modules: Modules,
        problem: Callable[[str], None],
    ) -> None:
        self._torch = torch
        self._header = snapshot.facts
        # What the script has made, in order, while it lives.
        self.made_optimizers, self.made_scalers, self.made_schedules = MadeObjects(), MadeObjects(), MadeObjects()
        self._modules = modules
        self._models: list[ModelMatch] = []  # once they were found
        self.reader = SnapshotReader(torch, snapshot.tensors)
        self._problem = problem  # tells something beside the result

    @property
    def optimizers(self) -> list[Any]:
        """The script's optimizers."""
        return list(self.made_optimizers)

    @property
    def models(self) -> list[ModelMatch]:
        """The snapshot's models, each with the script's module that it fits; raises SnapshotError where none does."""
        if not self._models:
            parameters = [parameter for optimizer in self.optimizers for parameter in parameters_of(optimizer)]
            free, found = self._modules.owners(parameters, self._torch.nn.Module), []
            for entry in self._header.models:
                if not free:
                    raise SnapshotError(f"the script has no model for the snapshot's {entry.get('class')}")
                model = _best_match([ModelMatch(entry, self.reader, module) for module in free])
                free = [module for module in free if module is not model.module]
                found.append(model)
            self._models = found
        return self._models

    # State

    def put(self) -> None:
        """Write the snapshot's state into all of it; raises SnapshotError where a model is another."""
        for model in self.models:
            model.put(has_graph=True)  # of a GAN's other half
        self._put_parameters(self._header.parameters)
        for optimizer, entry in self._matched():
            self._put_one("the state of an optimizer", put_optimizer, optimizer, entry)
        for made, kept in (
            (self.made_scalers, self._header.scalers),
            (self.made_schedules, self._header.schedules),
        ):
            for owner, entry in zip(list(made), kept):
                self._put_one(f"the state of a {type(owner).__name__}", put_stateful, owner, entry)

    def put_random(self, states: Mapping[str, Any] | None = None) -> None:
        """Put the generators back, last of all: to these states, or to those of the first forward pass."""
        put_random(self._torch, states or self._header.random, self.reader)

    def _put_parameters(self, kept: Mapping[str, str]) -> None:
        """Those that are in no model."""
        known = self.names().parameters if kept else {}
        for name in kept:
            value, parameter = self.reader.tensor(kept[name]), known.get(name)
            if parameter is None or parameter.shape != value.shape:
                here = "there is none" if parameter is None else f"it is {list(parameter.shape)}"
                raise SnapshotError(
                    f"parameter {name} is {list(value.shape)} in the snapshot, and in the script {here}"
                )
            with self._torch.no_grad():
                parameter.data.copy_(value)

    def _put_one(self, what: str, put: Callable[..., Any], owner: Any, entry: Any) -> None:
        """Gradients hardly depend on it: what does not fit is told, and the trial goes on."""
        try:
            put(owner, entry, self.reader)
        except Exception as error:
            self._problem(f"{what} was not put: {error}")
            pass_on(error)

    # Optimizers

    def _matched(self) -> list[tuple[Any, Any]]:
        """Each optimizer of the snapshot with the script's own: the first that is left of its class and sizes."""
        found, left = [], self.optimizers
        for entry in self._header.optimizers:
            sizes = [len(names) for names in entry.get("parameters") or []]
            fitting = [one for one in left if [len(group["params"]) for group in one.param_groups] == sizes]
            best = [one for one in fitting if type(one).__name__ == entry.get("class")] or fitting
            if best:
                left = [one for one in left if one is not best[0]]
                found.append((best[0], entry))
        return found

    def captured_optimizers(self) -> list[Any]:
        """Return the optimizers that the captured step was about, first the one that was to update; none: unknown."""
        wanted = self._header.trigger.optimizers
        found = {entry.get("name"): optimizer for optimizer, entry in self._matched()}
        return [found[name] for name in dict.fromkeys(wanted) if name in found]

    def is_captured_optimizer(self, optimizer: Any) -> bool:
        """Return whether the captured step ends where this one is to update."""
        known = self.captured_optimizers()
        return not known or known[0] is optimizer

    def parameters(self, optimizers: Sequence[Any]) -> dict[str, Any]:
        """Return what these optimizers train, by the names that the snapshot has for it."""
        wanted = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
        return dict(self.names().of(wanted))

    def gradients(self) -> dict[str, Any]:
        """Return those of the step, by name; other optimizers' may be left from before."""
        known = self.parameters(self.captured_optimizers() or self.optimizers)
        return {name: parameter.grad for name, parameter in known.items() if parameter.grad is not None}

    def about(self) -> set[str] | None:
        """Return the names of the parameters that the captured step was about; None: all."""
        about = self.captured_optimizers() if len(self.optimizers) > 1 else []
        return set(self.parameters(about)) if about else None

    # Names

    def names(self) -> ParameterNames:
        """Return what parameters are called, by the models that were found so far."""
        return ParameterNames([model.module for model in self._models], self.optimizers)

    def name_of(self, module: Any) -> str:
        """Return what a capture calls a module that the script calls."""
        return module_name([model.module for model in self.models], module)


class MadeObjects:
    """What a script has made, in order, while it lives; by identity, as classes may define equality."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, made: Any) -> None:
        """Take one in, once."""
        references, key = self._references, id(made)
        if key not in references:
            references[key] = weakref.ref(made, lambda _: references.pop(key, None))

    def __iter__(self) -> Iterator[Any]:
        found = [reference() for reference in list(self._references.values())]
        return iter([made for made in found if made is not None])
