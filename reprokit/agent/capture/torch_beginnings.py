"""Notes when a step of a PyTorch training begins, and what it is given: batches, and calls of its modules."""

from __future__ import annotations

from .torch_held import BEGUN, BETWEEN, LOOKED
from .torch_training import Epoch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..events import BatchFetched, ForwardBegan, LoaderBegan, LoaderExhausted
    from .torch_alarms import Alarms
    from .torch_held import TrainingStep
    from .torch_training import Training


class Beginnings:
    """Sees steps begin."""

    def __init__(self, training: Training, alarms: Alarms) -> None:
        self._training = training
        self._alarms = alarms
        self._watched = training.watched
        self._is_grad_enabled = training.torch.is_grad_enabled

    def forget(self) -> None:
        """In a forked child: no thread of the parent is here."""
        self._training.threads.held.armed = bool(self._watched.records)

    def forward_began(self, event: ForwardBegan) -> None:
        """A module is called, or a compiled function, which may be none."""
        held, module = self._training.threads.held, event.module
        if not held.armed:
            return
        if not self._is_grad_enabled():
            held.look()
            if module is not None and module.training and not held.buffers.is_kept:
                self._keep_buffers(held, module)
        elif held.start.root is None or held.start.root is module:
            self._begin_or_go_on(held, module, [event.arguments, dict(event.keywords)])

    def _begin_or_go_on(self, held: TrainingStep, module: Any, given: Any) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        self.begin(held, module)
        if held.batches.are_loaded:
            held.armed = False
            held.start.enter("" if module is None else module, given)
            return
        held.batches.add("forward", given, "" if module is None else module)
        held.armed = held.update.closure is None
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

    def loader_began(self, event: LoaderBegan) -> None:
        """Count the epochs of a DataLoader."""
        epochs, loader = self._watched.epochs, event.loader
        epochs[loader] = epochs.get(loader, -1) + 1
        event.epoch = Epoch(loader, epochs[loader])

    def loader_exhausted(self, event: LoaderExhausted) -> None:
        """A DataLoader has no more."""
        self._training.threads.held.exhaust(_epoch(event))

    def batch_fetched(self, event: BatchFetched) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        held, epoch = self._training.threads.held, _epoch(event)
        batches, start = held.batches, held.start
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
            held.armed = True
        if batches.are_loaded and not is_begun and epoch is start.epoch:
            batches.is_ahead = True
        batches.are_loaded = True
        start.epoch = epoch
        record = batches.add("loader", event.batch, epoch)
        if record is not None:
            start.handed.keep()
            record.random = start.handed.taken()
            if not is_begun:
                start.begun_with = record.random
            record.indices = event.indices


def _epoch(event: BatchFetched | LoaderExhausted) -> Epoch | None:
    return None if event.began is None else event.began.epoch
