"""One view of all that a PyTorch training starts a step from, to be read, saved and put back.

Entries of models, optimizers, schedules and scalers, the generators of every kind, the loader's own, and the script's
variables: what resume compares, and what keyframes keep, is read here and nowhere else.
"""

from __future__ import annotations

import math
import sys

from ..capture import torch_state
from ..capture.random_states import RandomStates, generator_entries
from ..capture.store import SnapshotError
from ..core.live_objects import instances
from ..core.state_entries import StateKind, generator_entry, values_of
from ..events import steps as events
from ..pytorch.state import Modules
from ..pytorch.tensor_names import named_tensors, parts_of
from ..pytorch.tensors import is_tensor
from ..pytorch.training_state import TrainingObjects, numbered
from .pytorch_variables import TorchVariables
from .script_scopes import paths_of
from .script_variables import VariableReader, VariableSetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping
    from typing import Any

    from ..core.state_entries import StateEntry
    from ..events.steps import Handler, TrainingEvent
    from ..pytorch.tensor_names import TensorNames

LOADER, VARIABLES = StateKind.LOADER.value, StateKind.VARIABLES.value
KINDS = (  # in the order in which they are put back
    StateKind.PARAMETERS, StateKind.BUFFERS, StateKind.OTHERS, StateKind.GRADIENTS, StateKind.MODULES,
    StateKind.OPTIMIZER, StateKind.SETTINGS, StateKind.SCHEDULE, StateKind.SCALER,
)  # fmt: skip
OF_TENSORS = frozenset([*KINDS[:4], StateKind.OPTIMIZER])
MAY_LACK = frozenset([StateKind.MODULES, StateKind.SCHEDULE, StateKind.SCALER])  # kinds that a resumed script may lack


class TrainingView:
    """All of the training state of this process, as its script has it now."""

    def __init__(self, torch: Any, modules: Callable[[], Modules], compiled: Any = None) -> None:
        self._torch = torch
        self.objects = TrainingObjects(modules)
        self.random = RandomStates(torch, compiled)
        self._of_loader: list[StateEntry] = []  # the generator of the loader that began last, if it has its own

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        """Return the handlers by which the view knows the objects of the training."""
        return {
            events.OptimizerMade: lambda event: self.objects.optimizers.add(event.target),
            events.ScheduleMade: lambda event: self.objects.schedules.add(event.schedule),
            events.ScalerMade: lambda event: self.objects.scalers.add(event.scaler),
            events.LoaderBegan: self.loader_began,
        }

    def loader_began(self, event: events.LoaderBegan) -> None:
        """Remember the generator of a loader, or of its sampler."""
        owners = event.loader, getattr(event.loader, "sampler", None)
        generators = [getattr(owner, "generator", None) for owner in owners]
        # A script's own sampler may have another kind.
        usable = [generator for generator in generators if isinstance(generator, self._torch.Generator)]
        self._of_loader = [generator_entry(StateKind.LOADER, LOADER, each) for each in usable[:1]]

    def search(self) -> None:
        """Search the heap for copies of models, which call no hook."""
        self.objects.modules().search(self._torch.nn.Module)

    def stand_apart(self) -> None:
        """Keep a record of modules of its own from now on: what a search finds then changes no names elsewhere."""
        shared, own = self.objects.modules, Modules()

        def modules() -> Modules:
            own.adopt(shared())
            return own

        self.objects.modules = modules

    # Entries

    def _other_models(self, names: TensorNames, *, are_named: bool) -> dict[str, Any]:
        """Return the tensors of models that no optimizer trains, named as the script refers to these models."""
        unnamed = [
            (root, [(name, tensor) for name, tensor in named_tensors(parts_of(root)) if tensor not in names])
            for root in self.objects.modules().outermost()
        ]
        roots = [root for root, tensors in unnamed if tensors]
        paths = paths_of(roots, sys._getframe()) if roots and are_named else {}
        heads = {id(root): paths.get(id(root), name) for name, root in numbered(roots)}
        return {f"{heads[id(root)]}.{name}": tensor for root, tensors in unnamed for name, tensor in tensors}

    def entries(self, *, has_details: bool = True, are_named: bool = True) -> list[StateEntry]:
        """Return all entries; other models are only numbered unless they are to be named."""
        names = self.objects.names()
        others = self._other_models(names, are_named=are_named)
        return list(self.objects.entries(names, others, has_details=has_details))

    def generators(self) -> list[StateEntry]:
        """Return the entries of all generators."""
        return [*generator_entries(self._torch), *self._of_loader]

    def states(self) -> Callable[[], dict[str, Any]]:
        """Return a function that gives what these entries have now: a step has several such moments."""
        taken, own = self.random.keep(), values_of(self._of_loader)
        return lambda: {**taken(), **own}

    # Variables of the script

    def tensors(self, entries: Iterable[StateEntry]) -> list[Any]:
        """Return the tensors of entries, which are no variables."""
        values = [entry.read() for entry in entries if entry.kind in OF_TENSORS]
        parts = [part for value in values for part in (value.values() if isinstance(value, dict) else [value])]
        return [part for part in parts if is_tensor(part)]

    def variable_reader(self, access: TorchVariables, search: Callable[..., list[Any]] = instances) -> VariableReader:
        """Return a reader of the script's variables, without the objects that are other parts of the state."""
        objects = self.objects
        return VariableReader(access, [*objects.optimizers, *objects.schedules, *objects.scalers], search)

    # Saving and putting back

    def pack_entries(self, tensors: torch_state.SnapshotTensors, entries: Iterable[StateEntry]) -> dict[str, Any]:
        """Return the nodes of entries by kind and name."""
        packed: dict[str, dict[str, Any]] = {kind.value: {} for kind in KINDS}
        for entry in entries:
            value = entry.read()
            if entry.kind is not StateKind.MODULES or math.isfinite(value):
                packed[entry.kind.value][entry.name] = tensors.pack(f"{entry.kind.value}.{entry.name}", value)
        return packed

    def put_back_entries(
        self,
        kind: StateKind,
        entries: Iterable[StateEntry],
        saved: Mapping[str, Any],
        reader: torch_state.SnapshotReader,
    ) -> None:
        """Put all saved entries of a kind back; raises SnapshotError if this training lacks one."""
        own = {entry.name: entry for entry in entries if entry.kind is kind}
        for name, node in saved.items():
            if name not in own and kind not in MAY_LACK:
                raise SnapshotError(f"there is no {name} here")
            if "left_out" in node:
                raise SnapshotError(f"{name} could not be saved")
            if name in own:
                own[name].put_back(reader.value(node, own[name].read()))

    def put_back_variables(self, rows: Any, reader: torch_state.SnapshotReader, names: Container[str]) -> None:
        """Set the script's variables of these names, in modules, running functions and objects."""
        setter = VariableSetter(TorchVariables(self.tensors(self.entries()), reader), names)
        with self._torch.no_grad():
            setter.restore(rows, sys._getframe())
