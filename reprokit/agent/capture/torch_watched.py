"""The optimizers, schedules, GradScalers and loaders of a PyTorch training that is captured."""

from __future__ import annotations

import sys
import weakref
from _thread import _local

from ..pytorch import private_api
from ..pytorch.tensor_names import parameters_of
from .checks import NormMean
from .torch_copies import UpdateBackup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ThreadKey(_local):
    """Identifies a thread. Its number would not do: a new thread may get the number of one that ended."""

    def __init__(self) -> None:
        self.key = object()


THIS_THREAD = ThreadKey()


class LoaderPass:
    """One pass (epoch) over a DataLoader."""

    def __init__(self, loader: Any, number: int) -> None:
        self.loader = weakref.ref(loader)
        is_part = type(loader.dataset) is sys.modules["torch.utils.data"].Subset
        self.subset = weakref.ref(loader.dataset) if is_part else None
        collating = str(getattr(loader.collate_fn, "__module__", ""))
        self.may_be_sorted = not collating.startswith("torch.utils.data.")  # by the script's function
        self.number = number
        self.steps = 0


class OptimizerSteps:
    """An optimizer, the count of its steps, and its state before recent updates."""

    def __init__(self, optimizer: Any) -> None:
        self.reference = weakref.ref(optimizer)
        self.thread = THIS_THREAD.key  # that created it; from its first step on, the one that it steps in
        self.steps = 0
        self.last_backward = -1  # number of backward passes at its last step
        self.backward_gap = 0  # backward passes between its last two steps; 0: unknown
        self.overflows = 0  # of a GradScaler, in a row
        self.norms = NormMean()  # of its gradients
        self.repeats = True  # its closure is called more than once in a step
        self.backup: UpdateBackup | None = None  # set at its first update

    def stepped(self, backward: int) -> None:
        """Count a step, applied or skipped, after this backward pass."""
        self.steps += 1
        if 0 <= self.last_backward < backward:
            self.backward_gap = backward - self.last_backward
        self.last_backward = backward

    def turn_order(self, backward: int) -> tuple[float, int]:
        """Return a sort key: the optimizer whose previous interval fits this backward pass best sorts first."""
        if self.last_backward < 0:
            return 0.5, self.last_backward
        return (
            abs(backward - self.last_backward - self.backward_gap) if self.backward_gap else 1.0
        ), self.last_backward

    def parameters(self) -> list[Any]:
        """Return the optimizer's parameters, group by group; none if the optimizer was deleted."""
        optimizer = self.reference()
        return [] if optimizer is None else parameters_of(optimizer)

    def gradients(self) -> list[Any]:
        """Return the gradients of its parameters that have one."""
        return [gradient for gradient in [p.grad for p in self.parameters()] if gradient is not None]

    def drop_gradients(self) -> None:
        """Set to None the gradients that this optimizer would apply."""
        for parameter in self.parameters():
            parameter.grad = None

    def is_ruined(self) -> bool:
        """Return whether parameters that were finite before an update are no longer finite."""
        return self.backup is not None and self.backup.is_ruined()


class WatchedObjects:
    """The optimizers, schedules and GradScalers of this process."""

    def __init__(self) -> None:
        self.records: dict[int, OptimizerSteps] = {}  # by id of the optimizer, while it lives
        self.schedules: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # in the order of making
        self.scalers: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.only: set[int] | None = None  # optimizers that the script guards by itself
        self.steps = 0  # of all optimizers
        self._epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def add(self, optimizer: Any) -> OptimizerSteps:
        """Register a new optimizer and return its record."""
        records, key = self.records, id(optimizer)
        record = records[key] = OptimizerSteps(optimizer)

        def end() -> None:
            if records.get(key) is record:
                del records[key]

        weakref.finalize(optimizer, end).atexit = False
        return record

    def register(self, kind: weakref.WeakKeyDictionary[Any, bool], value: Any) -> None:
        """Register a new schedule or GradScaler."""
        if self.only is None:
            kind[value] = True

    def next_epoch(self, loader: Any) -> LoaderPass:
        """Begin a new pass over a DataLoader."""
        self._epochs[loader] = self._epochs.get(loader, -1) + 1
        return LoaderPass(loader, self._epochs[loader])

    def alive(self) -> list[OptimizerSteps]:
        """Return this thread's optimizers in the order of creation; if it has none, those that never stepped."""
        alive = [entry for entry in list(self.records.values()) if entry.reference() is not None]
        own = [record for record in alive if record.thread is THIS_THREAD.key]
        return own or [record for record in alive if not record.steps]

    def names(self, records: list[OptimizerSteps]) -> list[str]:
        """Return the names of these optimizers in a snapshot."""
        alive = self.alive()
        return [f"optimizer#{alive.index(record)}" for record in records if record in alive]

    def sharing_backward(self, record: OptimizerSteps, backward: int) -> list[OptimizerSteps]:
        """Return the other optimizers that will apply gradients of the same backward pass, as they did the last time.

        A GAN's two optimizers never do, those of an encoder and its decoder always.
        """
        others = [other for other in self.alive() if other is not record]
        return [
            other for other in others if other.last_backward == record.last_backward and other.last_backward != backward
        ]

    def with_gradients(self) -> list[OptimizerSteps]:
        """Return the optimizers that have any gradient; if none has, all of them."""
        records = self.alive()
        return [record for record in records if record.gradients()] or records

    def due(self, reached: set[int], backward: int) -> list[OptimizerSteps]:
        """Return the optimizers that will step after this backward pass: one, and those that step together with it.

        ``reached`` has the ids of the parameters that the loss was computed from, if known.
        """
        records = self.with_gradients()
        records = [other for other in records if any(id(p) in reached for p in other.parameters())] or records
        if not records:
            return []
        first = min(records, key=lambda record: record.turn_order(backward))
        following = self.sharing_backward(first, backward)
        return [first, *[other for other in records if other in following]]

    def versions(self) -> int:
        """Return the sum of the parameters' version counters, which every in-place change raises."""
        return private_api.changes_of(self.parameters())

    def parameters(self) -> list[Any]:
        """Return the parameters of all optimizers."""
        return [parameter for record in self.alive() for parameter in record.parameters()]
