"""Restores a snapshot's state into the objects that a script built; models are matched by names and shapes."""

from __future__ import annotations

import sys

from ..core.signal_errors import pass_on
from ..pytorch.tensor_names import TensorNames, module_name, parameters_of
from ..pytorch.tensors import dtype_name
from ..pytorch.training_state import TrainingObjects
from .random_states import generator_entries
from .store import NAMES, SnapshotError, SnapshotFile, saved_optimizers
from .torch_state import SnapshotReader, put_optimizer, put_random, put_stateful

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..pytorch.state import Modules


MAX_NAMED = 3  # differences that are reported


class ModelMatch:
    """A model of the snapshot, and the script's module that it may be restored into."""

    def __init__(self, entry: Mapping[str, Any], reader: SnapshotReader, module: Any) -> None:
        self.module = module
        self._entry = entry
        self._reader = reader
        self._tensors = TensorNames([module], []).tensors
        self._saved = {name: reader.saved(saved_name) for name, saved_name in entry["tensors"].items()}

    def differences(self) -> Iterator[str]:
        """Yield a phrase for each difference between snapshot and module."""
        kind = type(self.module).__name__
        for name, saved in self._saved.items():
            tensor = self._tensors.get(name)
            if tensor is None:
                yield f"the script's {kind} has no {name}, which is {list(saved.shape)} in the snapshot"
            elif hasattr(tensor, "materialize"):
                continue
            elif tuple(tensor.shape) != saved.shape:
                yield f"{name} is {list(saved.shape)} in the snapshot and {list(tensor.shape)} in the script's {kind}"
            elif dtype_name(tensor) != NAMES[saved.dtype]:
                yield f"{name} is {NAMES[saved.dtype]} in the snapshot and {dtype_name(tensor)} in the script's {kind}"
        for name, tensor in self._tensors.items():
            if name not in self._saved:
                yield f"the snapshot has no {name}, which is {list(tensor.shape)} in the script's {kind}"

    def restore(self, *, has_graph: bool = False) -> None:
        """Restore parameters, buffers and training flags.

        ``has_graph``: an autograd graph may use the current tensors, so that they are written without raising versions.
        """
        with sys.modules["torch"].no_grad():
            for name, saved in self._saved.items():
                tensor = self._tensors[name]
                if hasattr(tensor, "materialize"):  # of a lazy module that has not seen any input
                    tensor.materialize(saved.shape)
                (tensor.data if has_graph else tensor).copy_(self._reader.tensor(saved.name))
        flags = self._entry.get("training") or {}
        for name, child in self.module.named_modules():
            if isinstance(flags.get(name), bool):
                child.training = flags[name]


def _best_match(models: Sequence[ModelMatch]) -> ModelMatch:
    """Return the match with the fewest differences; raises SnapshotError unless it has none."""
    counts = [(len(list(model.differences())), number) for number, model in enumerate(models)]
    count, number = min(counts)
    if count:
        differences = [text for _, text in zip(range(MAX_NAMED), models[number].differences())]
        more = f", and {count - MAX_NAMED:,} more" if count > MAX_NAMED else ""
        raise SnapshotError(f"the snapshot is of another model: {'; '.join(differences)}{more}")
    return models[number]


def restore(snapshot: SnapshotFile, model: Any, optimizers: Sequence[Any]) -> list[str]:
    """Restore a model, its optimizers and the random states to the captured step's start; return the notes."""
    torch: Any = sys.modules["torch"]
    reader, header = SnapshotReader(torch, snapshot.tensors), snapshot.facts
    if not header.models:
        raise SnapshotError("the snapshot holds no model")
    _best_match([ModelMatch(entry, reader, model) for entry in header.models]).restore()
    for optimizer, entry in zip(optimizers, saved_optimizers(header, len(optimizers))):
        put_optimizer(optimizer, entry, reader)
    put_random(generator_entries(torch), header.random, reader)
    return list(header.notes)


class ScriptObjects:
    """The models, optimizers, scalers and schedules that the script built, matched with the snapshot's."""

    def __init__(
        self,
        torch: Any,
        snapshot: SnapshotFile,
        modules: Modules,
        problem: Callable[[str], None],
    ) -> None:
        self._torch = torch
        self._header = snapshot.facts
        self.own = TrainingObjects(lambda: modules)  # that the script created
        self._models: list[ModelMatch] = []  # empty until they are matched
        self.reader = SnapshotReader(torch, snapshot.tensors)
        self._problem = problem  # reports a text beside the result

    @property
    def optimizers(self) -> list[Any]:
        """The script's optimizers."""
        return list(self.own.optimizers)

    @property
    def models(self) -> list[ModelMatch]:
        """The snapshot's models, each matched with a module of the script; raises SnapshotError if any has no match."""
        if not self._models:
            unmatched, matches = self.own.owners(), []
            for entry in self._header.models:
                if not unmatched:
                    raise SnapshotError(f"the script has no model for the snapshot's {entry.get('class')}")
                model = _best_match([ModelMatch(entry, self.reader, module) for module in unmatched])
                unmatched = [module for module in unmatched if module is not model.module]
                matches.append(model)
            self._models = matches
        return self._models

    # State

    def restore(self) -> None:
        """Restore the snapshot's state into all objects; raises SnapshotError if a model does not fit."""
        for model in self.models:
            model.restore(has_graph=True)  # a GAN's other half may have built a graph
        self._restore_parameters(self._header.parameters)
        for optimizer, entry in self._optimizer_pairs():
            self._restore_one("the state of an optimizer", put_optimizer, optimizer, entry)
        for owners, entries in (
            (self.own.scalers, self._header.scalers),
            (self.own.schedules, self._header.schedules),
        ):
            for owner, entry in zip(list(owners), entries):
                self._restore_one(f"the state of a {type(owner).__name__}", put_stateful, owner, entry)

    def restore_random(self, states: Mapping[str, Any] | None = None) -> None:
        """Restore the random states, last of all: these, or those of the first forward pass."""
        put_random(generator_entries(self._torch), states or self._header.random, self.reader)

    def _restore_parameters(self, saved_names: Mapping[str, str]) -> None:
        """Restore parameters that are in no model."""
        own = self.names().alone if saved_names else {}
        if own.keys().isdisjoint(saved_names) and len(own) == len(saved_names):  # an earlier version named them
            own = dict(zip(saved_names, own.values()))
        for name in saved_names:
            value, parameter = self.reader.tensor(saved_names[name]), own.get(name)
            if parameter is None or parameter.shape != value.shape:
                own_shape = "there is none" if parameter is None else f"it is {list(parameter.shape)}"
                raise SnapshotError(
                    f"parameter {name} is {list(value.shape)} in the snapshot, and in the script {own_shape}"
                )
            with self._torch.no_grad():
                parameter.data.copy_(value)

    def _restore_one(self, what: str, put: Callable[..., Any], owner: Any, entry: Any) -> None:
        """Restore one object. Gradients hardly depend on it: an error is reported, and the trial goes on."""
        try:
            put(owner, entry, self.reader)
        except Exception as error:
            self._problem(f"{what} was not put: {error}")
            pass_on(error)

    # Optimizers

    def _optimizer_pairs(self) -> list[tuple[Any, Any]]:
        """Match each optimizer of the snapshot with the script's first unmatched one of its class and sizes."""
        pairs, unmatched = [], self.optimizers
        for entry in self._header.optimizers:
            sizes = [len(names) for names in entry.get("parameters") or []]
            candidates = [each for each in unmatched if [len(group["params"]) for group in each.param_groups] == sizes]
            best = [each for each in candidates if type(each).__name__ == entry.get("class")] or candidates
            if best:
                unmatched = [each for each in unmatched if each is not best[0]]
                pairs.append((best[0], entry))
        return pairs

    def captured_optimizers(self) -> list[Any]:
        """Return the optimizers of the captured step, first the one that was to update; none if unknown."""
        names = self._header.trigger.optimizers
        by_name = {entry.get("name"): optimizer for optimizer, entry in self._optimizer_pairs()}
        return [by_name[name] for name in dict.fromkeys(names) if name in by_name]

    def is_captured_optimizer(self, optimizer: Any) -> bool:
        """Return whether the captured step ends at this optimizer's update."""
        captured = self.captured_optimizers()
        return not captured or captured[0] is optimizer

    def parameters(self, optimizers: Sequence[Any]) -> dict[str, Any]:
        """Return the parameters of these optimizers by name."""
        trained = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
        names = self.names()
        return {names.of(parameter): parameter for parameter in trained}

    def gradients(self) -> dict[str, Any]:
        """Return the step's gradients by parameter name, without those left over of other optimizers."""
        parameters = self.parameters(self.captured_optimizers() or self.optimizers)
        return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}

    def captured_parameters(self) -> set[str] | None:
        """Return the names of the parameters of the captured step's optimizers; None means all."""
        captured = self.captured_optimizers() if len(self.optimizers) > 1 else []
        return set(self.parameters(captured)) if captured else None

    # Names

    def names(self) -> TensorNames:
        """Return the parameters' names, by the models matched so far."""
        return TensorNames([model.module for model in self._models], self.optimizers)

    def name_of(self, module: Any) -> str:
        """Return a capture's name for a module of the script."""
        return module_name([model.module for model in self.models], module)
