"""Makes all ranks of a distributed training capture the same step, by the gradient reduction that it makes anyway.

Gradients that are not finite on one rank are so on all ranks after the reduction. Before that, one rank alone may know
that its loss is not finite, or that a condition holds. It reports this by one element of one gradient: a NaN whose
bits encode reason and rank. Nothing is sent that the training does not send anyway, and a step without a trigger costs
nothing.
"""

from __future__ import annotations

import time
import weakref

from ..core.signal_errors import pass_on
from ..pytorch import private_api
from . import checks
from .header import ACTIVATION, CONDITION, GRADIENT, LOSS, SnapshotHeader, Trigger
from .settings import OTHER_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from .store import Part

PATIENCE = 60  # seconds to wait for the other ranks, before this process ends
PAUSE = 0.02  # seconds between two polls
MAX_SUMS = 100_000  # gradients of one step
# A quiet NaN of 32 bits. After sign, exponent and quiet bit, 8 bits identify a mark, 2 the reason, 12 the rank.
MARK, MARK_BITS = 0x7FDA4000, 0x7FFFC000
RANKS = 1 << 12
KINDS = (LOSS, CONDITION, ACTIVATION)
WORDS = ("the loss is not finite", "a condition holds", "an output of a module is not finite")
GIVEN_UP = "the gradient of {} is not kept: one of its elements was used to tell all ranks"


class RankMarks:
    """Marks in gradients, by which one rank reports a trigger to all others."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._hooks: list[Any] = []  # on parameters, until the first gradient is marked

    def mark_gradients(self, trigger: Trigger, parameters: Iterable[Any]) -> None:
        """Mark a gradient of the coming backward pass, so that its reduction reports this to the other ranks."""
        if self._hooks:
            return
        torch, kind = self._torch, KINDS.index(trigger.kind) if trigger.kind in KINDS else 0
        mark = MARK | kind << 12 | int(torch.distributed.get_rank()) % RANKS

        def hook(gradient: Any) -> Any:
            is_fit = gradient.layout is torch.strided and gradient.is_floating_point() and gradient.numel()
            if not self._hooks or not is_fit:
                return None
            self.stop_marking()
            if not bool(torch.isfinite(gradient).all()):
                return None  # the others will see that themselves
            marked = gradient.clone(memory_format=torch.contiguous_format)
            first_element = marked.view(-1)[:1]
            if gradient.dtype is torch.float32:
                first_element.view(torch.int32).fill_(mark)
            else:
                first_element.fill_(float("nan"))
            return marked

        self._hooks = [parameter.register_hook(hook) for parameter in parameters if parameter.requires_grad]

    def stop_marking(self) -> None:
        """Remove the hooks, so that no gradient is marked from now on."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def mark_from_device(self, loss: Any, signals: Sequence[Any]) -> None:
        """Make all gradients NaN if one of these scalars on a GPU is not finite, without waiting for the GPU."""
        if not loss.requires_grad:
            return
        torch = self._torch

        def hook(gradient: Any) -> Any:
            is_good = torch.stack([torch.isfinite(signal).reshape(()).to(gradient.device) for signal in signals]).all()
            return torch.where(is_good, gradient, torch.full_like(gradient, float("nan")))

        loss.register_hook(hook)

    def of(self, parameters: Mapping[str, Any]) -> dict[str, int]:
        """Return the marks found in gradients, by parameter name."""
        marks = {name: self._mark_in(parameter.grad) for name, parameter in parameters.items()}
        return {name: mark for name, mark in marks.items() if mark is not None}

    def _mark_in(self, gradient: Any) -> int | None:
        torch = self._torch
        if gradient is None or gradient.dtype is not torch.float32 or gradient.layout is not torch.strided:
            return None
        if hasattr(gradient, "to_local") or gradient.numel() == 0:
            return None
        bits = gradient.detach().reshape(-1).view(torch.int32)
        marked = bits[(bits & MARK_BITS) == MARK]
        return int(marked[0]) if marked.numel() else None


def triggers_of(marks: Mapping[str, int]) -> list[Trigger]:
    """Return the trigger that the first of these marks stands for, if there is any."""
    return [checks.other_rank(mark % RANKS, WORDS[min(mark >> 12 & 3, 2)]) for mark in list(marks.values())[:1]]


def are_several(torch: Any) -> bool:
    """Return whether this process is one of several of a training."""
    distributed: Any = getattr(torch, "distributed", None)
    is_initialized = getattr(distributed, "is_initialized", None)  # there is none where it is not available
    return is_initialized is not None and is_initialized() and int(distributed.get_world_size()) > 1


class RankCoordinator:
    """Exchanges triggers with the other ranks of this training, by marks in gradients and by the ranks' store."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.marks = RankMarks(torch)
        self._given_up: set[str] = set()  # names of gradients that were overwritten by a mark
        self._watched: dict[int, weakref.ref[Any]] = {}  # by id: parameters whose local gradients are summed up
        self._sums: list[Any] = []  # of this step's gradients, before they are reduced over the ranks
        self._ends = 0
        # Empty where this process is surely not one of several: a look that costs no call of Python.
        self.groups: Callable[[Any], object] = private_api.process_groups
        try:
            self.groups(torch)
        except AttributeError:  # of a PyTorch without torch.distributed, or of another release
            self.groups = lambda _torch: True

    @property
    def are_several(self) -> bool:
        """Whether this training has several ranks."""
        return are_several(self._torch)

    def have_reduced(self, model: Any) -> bool:
        """Return whether a backward pass of this model reduces gradients, so that no rank waits for this one."""
        return bool(getattr(model, "require_backward_grad_sync", False)) or not self.are_several

    # Where a problem began

    def watch(self, parameters: Iterable[Any]) -> None:
        """Sum up each gradient of these parameters from now on, as this rank alone computed it."""
        watched = self._watched
        for parameter in parameters:
            key = id(parameter)
            if key not in watched and parameter.requires_grad:
                # Removed when the parameter is deleted: a later one may get its id.
                watched[key] = weakref.ref(parameter, lambda _, key=key: watched.pop(key, None))  # type: ignore[misc]
                parameter.register_hook(self._add)

    def _add(self, gradient: Any) -> None:
        torch = self._torch
        if gradient.layout is torch.strided and gradient.is_floating_point() and len(self._sums) < MAX_SUMS:
            self._sums.append(gradient.detach().sum(dtype=torch.float32))

    def forget(self) -> None:
        """Drop the sums of the last step, as a step begins."""
        if self._sums:
            self._sums = []

    def began_here(self, triggers: Sequence[Trigger]) -> bool | None:
        """Return whether the problem began on this rank; None if there is no other rank."""
        if not self.are_several:
            return None
        if any(item.condition == OTHER_RANK for item in triggers):
            return False
        if any(item.kind != GRADIENT for item in triggers):
            return True
        torch = self._torch
        sums = [item.to(self._sums[0].device) for item in self._sums]
        return bool(sums) and not bool(torch.isfinite(torch.stack(sums)).all())

    # Reading marks

    def without_marks(self, triggers: list[Trigger], parameters: Callable[[], Mapping[str, Any]]) -> list[Trigger]:
        """Return the triggers without those caused by marks; if none is left, the trigger that a mark stands for."""
        self.marks.stop_marking()
        if not self.are_several:
            return triggers
        marks = self.marks.of(parameters())
        self._given_up = set(marks)
        unmarked = [trigger for trigger in triggers if not (trigger.name in marks and trigger.count == 1)]
        return unmarked or triggers_of(marks) or triggers

    def marked_triggers(self, parameters: Callable[[], Mapping[str, Any]]) -> list[Trigger]:
        """Return what another rank reports by gradients that look like an overflow here."""
        return triggers_of(self.marks.of(parameters())) if self.are_several else []

    # The snapshot

    def complete(self, header: SnapshotHeader, parts: Sequence[Part]) -> tuple[SnapshotHeader, list[Part]]:
        """Return header and parts with this process's rank, and without gradients that a mark overwrote."""
        if not self.are_several:
            return header, list(parts)
        distributed, marked = self._torch.distributed, self._given_up
        files = {f"gradient.{name}" for name in marked}
        header = header.with_(
            rank=distributed.get_rank(),
            world=distributed.get_world_size(),
            gradients={name: value for name, value in header.gradients.items() if name not in marked},
            gradient_digests={name: value for name, value in header.gradient_digests.items() if name not in marked},
            given_up=tuple(sorted(marked)),
            notes=(*header.notes, *map(GIVEN_UP.format, sorted(marked))),
        )
        return header, [part for part in parts if part.name not in files]

    def wait(self) -> None:
        """Wait until all ranks have saved their snapshots: when one rank ends, its launcher ends the others."""
        if not self.are_several:
            return
        distributed = self._torch.distributed
        store, count = private_api.ranks_store(distributed), distributed.get_world_size()
        self._ends += 1
        key, deadline = f"reprokit/captured/{self._ends}", time.monotonic() + PATIENCE
        try:
            arrived = store.add(key, 1)
            while arrived < count and time.monotonic() < deadline:
                time.sleep(PAUSE)
                arrived = store.add(key, 0)
        except Exception as error:  # the store's owner has ended, having seen all ranks
            pass_on(error)
