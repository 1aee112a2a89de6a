"""Which samples of a batch an update's gradients came from, as far as autograd's graph shows it.

A hook on the node that computed a model's output sees the gradient that a backward pass brings there: the rows that are
not zero are samples that it came from. A witness of each optimizer, a gradient of one of its parameters, shows which
backward passes added to its gradients, and whether these were dropped or set to zero before its update.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial

from ..listeners.fetched_batches import UNSEEN, UNWATCHED, GradientShare
from . import private_api
from .batch_memory import values_in
from .tensors import is_plain, is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ..listeners.fetched_batches import BatchCall, FetchedBatch

MAX_OPTIMIZERS = 16  # beyond them, nothing is said of an update
MAX_OUTPUTS = 16  # tensors of a call's result
WITNESSES = 2  # that are added at a time
MAX_WITNESSES = 8  # of an optimizer: models with several heads have parameters without a gradient in some steps


class GradientWitness:
    """The gradient of one parameter, as it was last seen."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter
        self.gradient: Any = None  # a weak reference
        self.version = -1
        self.note()

    def note(self) -> bool:
        """Note the gradient as it is; return whether it is another one, or was changed, since the last time."""
        gradient = self.parameter.grad
        if gradient is None:
            is_changed, self.gradient, self.version = self.gradient is not None, None, -1
            return is_changed
        version = private_api.changes(gradient)
        if self.gradient is not None and self.gradient() is gradient and version == self.version:
            return False
        self.gradient, self.version = weakref.ref(gradient), version
        return True


class OptimizerWitnesses:
    """The witnesses of an optimizer."""

    def __init__(self, record: Any) -> None:
        self.record = record
        self.witnesses: list[GradientWitness] = []

    def changed(self) -> list[Any]:
        """Return the witnesses' gradients that are others, or were changed, since they were last looked at."""
        return [witness.parameter.grad for witness in self.witnesses if witness.note()]

    def has_gained(self) -> bool:
        """Return whether gradients were added to since they were last looked at."""
        return bool(self.changed()) or self._find_witnesses()

    def _find_witnesses(self) -> bool:
        """Add parameters that have a gradient now, spread over the model; return whether there were any."""
        known = {id(witness.parameter) for witness in self.witnesses}
        if len(known) >= MAX_WITNESSES:
            return False
        parameters = [item for item in self.record.parameters() if item.grad is not None and id(item) not in known]
        chosen = parameters[:: max(len(parameters) // WITNESSES, 1)][:WITNESSES]
        self.witnesses += map(GradientWitness, chosen)
        return bool(chosen)


class BatchGradients:
    """Follows gradients from the outputs of models to the updates of optimizers."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled  # reads the rows of a gradient; None where it was not built
        self._optimizers: dict[int, OptimizerWitnesses] = {}

    def add_optimizer(self, record: Any) -> None:
        """Watch the gradients of an optimizer."""
        if len(self._optimizers) < MAX_OPTIMIZERS:
            self._optimizers[id(record)] = OptimizerWitnesses(record)

    def remove_optimizer(self, record: Any) -> None:
        """Forget an optimizer that is gone."""
        self._optimizers.pop(id(record), None)

    # Outputs of models

    def model_returned(self, calls: Sequence[BatchCall], output: Any) -> None:
        """Watch for the gradient of the output of a call that was made with batches."""
        for number, value in enumerate(values_in(output)):
            if number == MAX_OUTPUTS:
                break
            node = getattr(value, "grad_fn", None) if is_tensor(value) else None
            if node is not None:
                register = getattr(node, "register_prehook", node.register_hook)  # before PyTorch 2.0
                register(partial(self._gradient_came, calls, value.output_nr))

    def _gradient_came(self, calls: Sequence[BatchCall], output: int, *gradients: Any) -> None:
        """Note a gradient; a backward pass calls this, on a thread of its own for each device."""
        gradient = gradients[-1][output]
        if gradient is None:
            return
        for call in calls:
            size = 0 if call.rows is None else len(call.rows)
            axes = [axis for axis, length in enumerate(gradient.shape) if length == size]
            if size == 1 or not axes:
                has_value = self._has_value(gradient)
                call.gradient_came(has_value, None if has_value is None or size != 1 else bytes([has_value]))
            else:
                rows = [self._rows(gradient, tuple(gradient.shape), gradient.stride(), axis) for axis in axes]
                known = [flags for flags in rows if flags is not None]
                flags = min(known, key=sum) if len(known) == len(rows) else None
                call.gradient_came(None if flags is None else any(flags), flags)

    def _has_value(self, gradient: Any) -> bool | None:
        """Return whether a gradient is not zero; None if it cannot be read at once, as on a device."""
        rows = self._rows(gradient, (1, *gradient.shape), (0, *gradient.stride()), 0)
        return None if rows is None else bool(rows[0])

    def _rows(self, gradient: Any, shape: tuple[int, ...], strides: tuple[int, ...], axis: int) -> bytes | None:
        """Return which rows along an axis are not zero; None if they cannot be read."""
        if self._compiled is None or not _is_readable(gradient):
            return None
        flags: bytes | None = self._compiled.rows_with_values(
            gradient.data_ptr(), gradient.element_size(), shape, strides, axis
        )
        return flags

    # Backward passes and updates

    def backward_began(self, batches: Iterable[FetchedBatch]) -> None:
        """Forget the shares of gradients that were dropped or set to zero since the last backward pass."""
        for number, watched in self._optimizers.items():
            self._forget_lost(number, watched, batches)

    def backward_ended(self, batches: Sequence[FetchedBatch]) -> None:
        """Note to which optimizers' gradients a backward pass has added, and from which batches."""
        calls = [(batch, call) for batch in batches for call in batch.calls if call.has_gradient]
        for number, watched in self._optimizers.items():
            if watched.has_gained():
                for batch, call in calls:
                    batch.shares.setdefault(number, GradientShare()).add(call)
        for _, call in calls:
            call.begin()

    def update_done(self, batches: Iterable[FetchedBatch], record: Any) -> None:
        """Forget the shares of gradients that were gone when the optimizer updated."""
        watched = self._optimizers.get(id(record))
        if watched is not None:
            self._forget_lost(id(record), watched, batches)

    def use_of(self, batch: FetchedBatch, record: Any) -> int:
        """Return what the update of an optimizer had of a batch."""
        watched = self._optimizers.get(id(record))
        if watched is None or not watched.witnesses:
            return UNWATCHED
        share = batch.shares.get(id(record))
        if share is None:  # with a gradient, it updates within a backward pass
            return UNWATCHED if any(call.has_gradient for call in batch.calls) else UNSEEN
        return share.use(batch.size)

    def _forget_lost(self, number: int, watched: OptimizerWitnesses, batches: Iterable[FetchedBatch]) -> None:
        changed = watched.changed()
        values = {gradient is not None and self._has_value(gradient) for gradient in changed}
        if not values or True in values:
            return
        for batch in batches:
            share = batch.shares.get(number)
            if share is not None and None in values:
                share.is_unread = True
            elif share is not None:
                del batch.shares[number]


def _is_readable(tensor: Any) -> bool:
    """Return whether a tensor's floats are in host memory."""
    is_dense = tensor.is_cpu and tensor.layout is sys.modules["torch"].strided
    return is_dense and tensor.is_floating_point() and is_plain(tensor)
