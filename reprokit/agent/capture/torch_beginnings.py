"""Notes when a step of a PyTorch training begins, and what it is given: batches, and calls of its modules."""

from __future__ import annotations

import sys
from collections import deque
from inspect import CO_VARKEYWORDS

from .torch_alarms import Alarms
from .torch_held import Held
from .torch_watched import Epoch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from . import Capture

    Function = Callable[..., Any]

HOOK = "reprokit"  # our key among the hooks before each module's call
PROBATION = 16  # steps after which it is known whether the root model is called more than once in each


class Beginnings(Alarms):
    """Sees steps begin."""

    def __init__(self, capture: Capture) -> None:
        super().__init__(capture)
        self._armed = 0  # threads whose next module call is looked at
        self._hook = self._entered
        self._calls_often = False  # the root model, in each step

    def _arm(self, held: Held) -> None:
        """Look at the next module that is called. A hook that is only there until then costs the others nothing."""
        held.armed = True
        self._armed += 1
        self._hooks[HOOK] = self._hook

    def _disarm(self, held: Held) -> None:
        self._armed -= held.armed
        held.armed = False
        if self._armed <= 0:
            self._armed = 0
            self._hooks.pop(HOOK, None)

    def _entered(self, module: Any, arguments: Any) -> None:
        """A module is called."""
        held = self._threads.held
        if not held.armed or held.fetching or self._is_compiling():
            return
        try:
            if not self._is_grad_enabled():
                held.looked = True
                if module.training and not held.has_buffers:
                    self._keep_buffers(held, module)
            elif held.root is None or held.root is module:
                self._begin_or_go_on(held, module, arguments)
        except Exception as error:
            self._warn("_entered", error)

    def _begin_or_go_on(self, held: Held, module: Any, arguments: Any) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        forward, count = held.without_keywords
        is_known = type(module).forward is forward and len(arguments) == count and "forward" not in module.__dict__
        keywords = {} if is_known else _keywords(held, module, arguments, sys._getframe(2))
        if held.began or self._rolls_back or not held.buffers.is_empty:
            self._begin_step(held, module)
        else:  # the same in short
            held.random.keep()
            self._ranks.forget()
            held.began = held.has_random = held.has_buffers = True
            held.began_at = held.round, module, bool(module.training)
        held.looked = False
        given = [arguments, dict(keywords)]
        if held.saw_loader:
            self._disarm(held)
            held.enter(module, given)
            return
        held.batches.add("forward", given, module)
        self._calls_often = self._calls_often or held.root is not None
        if held.closure is not None or not (self._calls_often or self._steps < PROBATION):
            self._disarm(held)
        held.root = module

    def _begin_step(self, held: Held, module: Any) -> None:
        if held.began:
            return
        held.began = True
        self._ranks.forget()
        held.began_at = held.round, module, module is None or bool(module.training)
        if self._rolls_back:
            self._capture.attempt(self._keep_copy)
        held.random.keep()
        held.has_random = True
        if not held.has_buffers:
            self._keep_buffers(held, module)

    def _keep_buffers(self, held: Held, module: Any) -> None:
        if not held.buffers.known:
            held.buffers.watch(self._models() or ([] if module is None else [module]))
        held.buffers.keep()
        held.has_buffers = True

    def _make_iter(self, original: Function) -> Function:
        attempt, begin = self._capture.attempt, self._begin_epoch

        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            attempt(begin, loader, iterator)
            return iterator

        return iterate

    def _begin_epoch(self, loader: Any, iterator: Any) -> None:
        epochs = self._watched.epochs
        epochs[loader] = epochs.get(loader, -1) + 1
        iterator._reprokit_captured = Epoch(loader, epochs[loader])

    def _make_next(self, original: Function) -> Function:
        fetched = self._fetched

        def fetch(iterator: Any) -> Any:
            held = self._threads.held
            held.fetching = True
            try:
                batch = original(iterator)
            except StopIteration:
                held.exhausted(_epoch(iterator))
                raise
            except BaseException:
                _indices(iterator)
                raise
            finally:
                held.fetching = False
            indices = _indices(iterator)
            try:
                fetched(held, iterator, batch, indices)
            except Exception as error:
                self._warn("_fetched", error)
            return batch

        return fetch

    def _fetched(self, held: Held, iterator: Any, batch: Any, indices: Any) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        if held.began and not held.is_trained():
            held.began = held.has_random = False  # an evaluation that left gradients on, or a trial
            held.looked = True
        if not held.began:
            if held.looked:
                held.batches.restart()
                held.looked = False
            held.entry, held.root = [], None
            held.has_buffers = False
            if not held.saw_loader:
                held.batches.restart()
            if not held.saw_forward:
                held.random.keep()
                held.has_random = True
            if not held.armed:
                self._arm(held)
        epoch = _epoch(iterator)
        if held.saw_loader and not held.began and epoch is held.epoch:
            held.batches.is_ahead = True
        held.saw_loader = True
        held.epoch = epoch
        record = held.batches.add("loader", batch, epoch)
        if record is not None:
            held.handed.keep()
            record.random = held.handed.taken()
            if not held.began:
                held.begun_with = record.random
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


def _may_have_keywords(module: Any, arguments: Any) -> bool:
    """Whether a call with these arguments may have been given others by name. To ask its frame takes longer."""
    code = getattr(type(module).forward, "__code__", None)
    if code is None or "forward" in module.__dict__:
        return True
    return bool(code.co_argcount > len(arguments) + 1 or code.co_kwonlyargcount or code.co_flags & CO_VARKEYWORDS)


def _keywords(held: Held, module: Any, arguments: Any, frame: FrameType) -> dict[str, Any]:
    """What Module.__call__ was given by name, of which it tells a hook of all modules nothing."""
    if _may_have_keywords(module, arguments):
        return frame.f_locals.get("kwargs") or {}
    held.without_keywords = type(module).forward, len(arguments)
    return {}
