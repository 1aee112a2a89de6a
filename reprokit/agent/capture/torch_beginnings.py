"""Notes when a step of a PyTorch training begins, and what it is given: batches, and calls of its modules."""

from __future__ import annotations

import sys
from collections import deque

from .torch_held import BEGUN, BETWEEN, FETCHING, LOOKED
from .torch_watched import Epoch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .torch_alarms import Alarms
    from .torch_held import TrainingStep
    from .torch_training import Training

    Function = Callable[..., Any]

HOOK = "reprokit"  # our key among the hooks before each module's call
PROBATION = 16  # steps after which it is known whether the root model is called more than once in each


class Beginnings:
    """Sees steps begin."""

    def __init__(self, training: Training, alarms: Alarms) -> None:
        self._training = training
        self._alarms = alarms
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled
        self._hooks = sys.modules["torch.nn.modules.module"]._global_forward_pre_hooks
        self._armed = 0  # threads whose next module call is looked at
        self._hook = self._entered
        self._calls_often = False  # the root model, in each step

    def arm(self, held: TrainingStep) -> None:
        """Look at the next module that is called. A hook that is only there until then costs the others nothing."""
        if not held.armed:
            held.armed = True
            self._armed += 1
            self._hooks[HOOK] = self._hook

    def disarm(self, held: TrainingStep) -> None:
        """Look at no module's call."""
        self._armed -= held.armed
        held.armed = False
        if self._armed <= 0:
            self._armed = 0
            self._hooks.pop(HOOK, None)

    def forget(self) -> None:
        """In a forked child: no thread of the parent is here."""
        self._armed = 0
        self._hooks.pop(HOOK, None)
        if self._watched.records:
            self.arm(self._training.threads.held)

    def rearm(self, held: TrainingStep) -> None:
        """The step may go on with another batch."""
        if held.state is BEGUN and held.update.closure is None and self._watched.records:
            self.arm(held)

    def _entered(self, module: Any, arguments: Any) -> None:
        """A module is called."""
        held = self._training.threads.held
        if not held.armed or held.activity is FETCHING or self._training.is_compiling():
            return
        try:
            if not self._is_grad_enabled():
                held.look()
                if module.training and not held.buffers.is_kept:
                    self._keep_buffers(held, module)
            elif held.start.root is None or held.start.root is module:
                self._begin_or_go_on(held, module, arguments)
        except Exception as error:
            self._training.warn("_entered", error)

    def _begin_or_go_on(self, held: TrainingStep, module: Any, arguments: Any) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        keywords = sys._getframe(2).f_locals.get("kwargs") or {}  # of Module.__call__, which tells hooks nothing
        self.begin(held, module)
        given = [arguments, dict(keywords)]
        if held.batches.are_loaded:
            self.disarm(held)
            held.start.enter(module, given)
            return
        held.batches.add("forward", given, module)
        self._calls_often = self._calls_often or held.start.root is not None
        if held.update.closure is not None or not (self._calls_often or self._watched.steps < PROBATION):
            self.disarm(held)
        held.start.root = module

    def begin(self, held: TrainingStep, module: Any) -> None:
        """The first forward pass of a step comes."""
        if held.state is BEGUN:
            return
        held.state = BEGUN
        self._training.ranks.forget()
        held.start.began_at = held.round, module, module is None or bool(module.training)
        if self._alarms.rolls_back:
            self._training.capture.attempt(self._alarms.keep_copy)
        held.start.keep_random()
        if not held.buffers.is_kept:
            self._keep_buffers(held, module)

    def _keep_buffers(self, held: TrainingStep, module: Any) -> None:
        if not held.buffers.is_known:
            held.buffers.watch(self._training.models() or ([] if module is None else [module]))
        held.buffers.keep()

    def make_iter(self, original: Function) -> Function:
        """Count the epochs of a DataLoader."""
        attempt, begin = self._training.capture.attempt, self._begin_epoch

        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            attempt(begin, loader, iterator)
            return iterator

        return iterate

    def _begin_epoch(self, loader: Any, iterator: Any) -> None:
        epochs = self._watched.epochs
        epochs[loader] = epochs.get(loader, -1) + 1
        iterator._reprokit_captured = Epoch(loader, epochs[loader])

    def make_next(self, original: Function) -> Function:
        """See what a DataLoader gives."""
        fetched = self._fetched

        def fetch(iterator: Any) -> Any:
            held = self._training.threads.held
            before, held.activity = held.activity, FETCHING
            try:
                batch = original(iterator)
            except StopIteration:
                held.exhaust(_epoch(iterator))
                raise
            except BaseException:
                _indices(iterator)
                raise
            finally:
                held.activity = before
            indices = _indices(iterator)
            try:
                fetched(held, iterator, batch, indices)
            except Exception as error:
                self._training.warn("_fetched", error)
            return batch

        return fetch

    def _fetched(self, held: TrainingStep, iterator: Any, batch: Any, indices: Any) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        batches, start, epoch = held.batches, held.start, _epoch(iterator)
        if held.state is BEGUN and not held.is_trained():
            held.state, start.has_random = LOOKED, False  # an evaluation that left gradients on, or a trial
        is_begun = held.state is BEGUN
        if not is_begun:
            if held.state is LOOKED or not batches.are_loaded:
                batches.restart()
                held.state = BETWEEN
            start.entry, start.root = [], None
            held.buffers.end()
            if not start.saw_forward:
                start.keep_random()
            self.arm(held)
        if batches.are_loaded and not is_begun and epoch is start.epoch:
            batches.is_ahead = True
        batches.are_loaded = True
        start.epoch = epoch
        record = batches.add("loader", batch, epoch)
        if record is not None:
            start.handed.keep()
            record.random = start.handed.taken()
            if not is_begun:
                start.begun_with = record.random
            record.indices = indices


def make_reset(original: Function) -> Function:
    """Begin an epoch, for whose batches the indices are noted."""

    def reset(iterator: Any, *arguments: Any, **keywords: Any) -> None:
        iterator._reprokit_indices = deque()
        original(iterator, *arguments, **keywords)

    return reset


def make_next_index(original: Function) -> Function:
    """Note what a sampler chooses, in order; loaders' workers are told ahead of time."""

    def next_index(iterator: Any) -> Any:
        indices = original(iterator)
        chosen = iterator.__dict__.get("_reprokit_indices")
        if chosen is None:
            chosen = iterator._reprokit_indices = deque()
        chosen.append(indices)
        return indices

    return next_index


def _indices(iterator: Any) -> Any:
    """Return the indices of the batch that an iterator gave last, where batches come in the order of their indices."""
    chosen = iterator.__dict__.get("_reprokit_indices")
    return chosen.popleft() if chosen and getattr(iterator, "_in_order", True) else None


def _epoch(iterator: Any) -> Epoch | None:
    return getattr(iterator, "_reprokit_captured", None)
