"""Has all ranks of a distributed training capture the same step, by the reduction of gradients that it makes anyway.

Gradients that are not finite on one rank are so on all of them once they have been reduced. What one rank alone knows
before (its loss is not finite, a condition holds) it tells by one element of one gradient: a NaN whose bits say so and
whose rank it is. Nothing is sent that the training does not send, and a step in which nothing happens costs nothing.
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

PATIENCE = 60  # seconds for which the others are waited for, before this process ends
PAUSE = 0.02
MAX_SUMS = 100_000  # gradients of one step
# A quiet NaN of 32 bits: below the sign, exponent and quiet bit 8 bits of ours, 2 of what it is about, 12 of the rank.
MARK, MARK_BITS = 0x7FDA4000, 0x7FFFC000
RANKS = 1 << 12
KINDS = (LOSS, CONDITION, ACTIVATION)
WORDS = ("the loss is not finite", "a condition holds", "an output of a module is not finite")
GIVEN_UP = "the gradient of {} is not kept: one of its elements was used to tell all ranks"


class RankMarks:
    """What ranks tell each other by gradients."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._hooks: list[Any] = []  # on parameters, until the first gradient has come

    def tell(self, trigger: Trigger, parameters: Iterable[Any]) -> None:
        """Let the coming backward pass tell the other ranks of this."""
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
                return None  # which the others will see by themselves
            marked = gradient.clone(memory_format=torch.contiguous_format)
            place = marked.view(-1)[:1]
            if gradient.dtype is torch.float32:
                place.view(torch.int32).fill_(mark)
            else:
                place.fill_(float("nan"))
            return marked

        self._hooks = [parameter.register_hook(hook) for parameter in parameters if parameter.requires_grad]

    def stop_marking(self) -> None:
        """No gradient is marked from now on."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook.remove()

    def mark_from_device(self, loss: Any, signals: Sequence[Any]) -> None:
        """The same of numbers on a GPU, without waiting for them: where one is not finite all gradients become NaN."""
        if not loss.requires_grad:
            return
        torch = self._torch

        def hook(gradient: Any) -> Any:
            is_good = torch.stack([torch.isfinite(signal).reshape(()).to(gradient.device) for signal in signals]).all()
            return torch.where(is_good, gradient, torch.full_like(gradient, float("nan")))

        loss.register_hook(hook)

    def of(self, parameters: Mapping[str, Any]) -> dict[str, int]:
        """Return the marks that gradients bear, by the names of parameters."""
        found = {name: self._mark_in(parameter.grad) for name, parameter in parameters.items()}
        return {name: mark for name, mark in found.items() if mark is not None}

    def _mark_in(self, gradient: Any) -> int | None:
        torch = self._torch
        if gradient is None or gradient.dtype is not torch.float32 or gradient.layout is not torch.strided:
            return None
        if hasattr(gradient, "to_local") or gradient.numel() == 0:
            return None
        bits = gradient.detach().reshape(-1).view(torch.int32)
        found = bits[(bits & MARK_BITS) == MARK]
        return int(found[0]) if found.numel() else None


def triggers_of(marks: Mapping[str, int]) -> list[Trigger]:
    """Return what the first of these marks says, if there is any."""
    return [checks.other_rank(mark % RANKS, WORDS[min(mark >> 12 & 3, 2)]) for mark in list(marks.values())[:1]]


def are_several(torch: Any) -> bool:
    """Return whether this process is one of several of a training."""
    distributed: Any = getattr(torch, "distributed", None)
    is_begun = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return is_begun and int(distributed.get_world_size()) > 1


class RankCoordinator:
    """The other processes of this training."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.marks = RankMarks(torch)
        self._given_up: set[str] = set()  # names of gradients that were told by
        self._watched: dict[int, weakref.ref[Any]] = {}  # by id: parameters whose own gradients are summed up
        self._sums: list[Any] = []  # of this step's gradients, before they are reduced over the ranks
        self._ends = 0

    @property
    def are_several(self) -> bool:
        """Whether there are others."""
        return are_several(self._torch)

    def have_reduced(self, model: Any) -> bool:
        """Whether a backward pass of this model has reduced the gradients, so that nobody waits for this process."""
        return bool(getattr(model, "require_backward_grad_sync", False)) or not self.are_several

    # What began here

    def watch(self, parameters: Iterable[Any]) -> None:
        """From now on sum each gradient up as this process alone has computed it."""
        watched = self._watched
        for parameter in parameters:
            key = id(parameter)
            if key not in watched and parameter.requires_grad:
                # Until it is gone: a later parameter may get its id.
                watched[key] = weakref.ref(parameter, lambda _, key=key: watched.pop(key, None))  # type: ignore[misc]
                parameter.register_hook(self._add)

    def _add(self, gradient: Any) -> None:
        torch = self._torch
        if gradient.layout is torch.strided and gradient.is_floating_point() and len(self._sums) < MAX_SUMS:
            self._sums.append(gradient.detach().sum(dtype=torch.float32))

    def forget(self) -> None:
        """A step begins."""
        if self._sums:
            self._sums = []

    def began_here(self, triggers: Sequence[Trigger]) -> bool | None:
        """Return whether it went wrong on this rank; None where there is no other."""
        if not self.are_several:
            return None
        if any(one.condition == OTHER_RANK for one in triggers):
            return False
        if any(one.kind != GRADIENT for one in triggers):
            return True
        torch = self._torch
        sums = [one.to(self._sums[0].device) for one in self._sums]
        return bool(sums) and not bool(torch.isfinite(torch.stack(sums)).all())

    # Hearing

    def heard(self, triggers: list[Trigger], parameters: Callable[[], Mapping[str, Any]]) -> list[Trigger]:
        """Return the triggers, without those that are only marks; what a mark says where there is no other."""
        self.marks.stop_marking()
        if not self.are_several:
            return triggers
        marks = self.marks.of(parameters())
        self._given_up = set(marks)
        kept = [one for one in triggers if not (one.name in marks and one.count == 1)]
        return kept or triggers_of(marks) or triggers

    def told(self, parameters: Callable[[], Mapping[str, Any]]) -> list[Trigger]:
        """Return what another rank tells by gradients that this one takes for an overflow."""
        return triggers_of(self.marks.of(parameters())) if self.are_several else []

    # The snapshot

    def complete(self, header: SnapshotHeader, parts: Sequence[Part]) -> tuple[SnapshotHeader, list[Part]]:
        """With this process's rank, and without the gradients that are no more what they were."""
        if not self.are_several:
            return header, list(parts)
        distributed, gone = self._torch.distributed, self._given_up
        files = {f"gradient.{name}" for name in gone}
        header = header.with_(
            rank=distributed.get_rank(),
            world=distributed.get_world_size(),
            gradients={name: kept for name, kept in header.gradients.items() if name not in gone},
            gradient_digests={name: kept for name, kept in header.gradient_digests.items() if name not in gone},
            given_up=tuple(sorted(gone)),
            notes=(*header.notes, *map(GIVEN_UP.format, sorted(gone))),
        )
        return header, [part for part in parts if part.name not in files]

    def wait(self) -> None:
        """Until all others have saved theirs: who ends first has the rest ended by what started them."""
        if not self.are_several:
            return
        distributed = self._torch.distributed
        store, count = private_api.ranks_store(distributed), distributed.get_world_size()
        self._ends += 1
        key, until = f"reprokit/captured/{self._ends}", time.monotonic() + PATIENCE
        try:
            there = store.add(key, 1)
            while there < count and time.monotonic() < until:
                time.sleep(PAUSE)
                there = store.add(key, 0)
        except Exception as error:  # who keeps the store is gone, having seen all of them
            pass_on(error)
