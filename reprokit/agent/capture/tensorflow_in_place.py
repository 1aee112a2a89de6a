"""Explains a captured step of TensorFlow where a replay of its recording comes to it, in the script's own computation.

Eager code is watched from the update before the step on. The call of a compiled function, or of Keras' train function,
first runs as it is. If that gives the captured step, it is executed again operation by operation, from the same state.
"""

from __future__ import annotations

from ..events.steps import BackwardBegan, BatchFetched, RandomDrawn
from ..operators.tensorflow.explain import OperationWatcher
from ..tensorflow import private_api
from . import tensorflow_restore as restore
from .redo import RedoDriver
from .tensorflow_capture import TensorFlowCapture
from .tensorflow_redo import (
    BY_ITSELF,
    NOT_AGAIN,
    OTHER_BATCH,
    captured_or_own,
    eagerly,
    explained,
    outcome_of,
    run_with_batch,
)
from .tensorflow_restore import RandomReplay, StateRestorer, captured_number
from .tensorflow_state import LOADER, SCRIPT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from ..events.steps import Handler, TrainingEvent
    from . import CaptureSession
    from .tensorflow_snapshot import RejectedStep
    from .tensorflow_steps import OutermostCall


class TensorFlowInPlace:
    """Captures as the recording did, up to the captured step, which it explains."""

    def __init__(self, capture: CaptureSession) -> None:
        self._driver = RedoDriver(capture)
        self._watch = TensorFlowCapture(capture, self)
        self._training = self._watch.training
        self._state = StateRestorer(self._driver, self._training)
        self._drawn = RandomReplay()
        self._watcher: OperationWatcher | None = None  # from the update before the step on
        self._calls: list[OutermostCall] = []  # that compute the captured step, once it was rejected
        self._rejected: RejectedStep | None = None  # the captured step, in its first or second execution
        self._is_executing = False  # the calls are executed again
        self._batch: Any = None  # of the call that is executed again
        self._unused = 0  # number of fetched batches minus that of backward passes
        self._takes_turns = True  # one batch precedes each backward pass, which therefore is of that batch
        self._save = self._watch.rejections.reject
        self._watch.rejections.reject = self._reject
        self._watch.calls.run = self._run
        self._watch.updates.applied_listeners.append(lambda _optimizer: self._begin_if_due())
        self._training.step_listeners.append(lambda _step: self._begin_if_due())

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that was just imported."""
        self._watch.begin(name, module)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            RandomDrawn: self._random_drawn,
            BatchFetched: self._batch_fetched,
            BackwardBegan: self._backward_began,
        }

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self._watch.forget()

    def _random_drawn(self, event: RandomDrawn) -> None:
        """Replace the random numbers of the second execution with those of the first."""
        if self._is_executing and private_api.has_value(event.drawn):
            event.drawn = self._drawn.replayed(event.kind, event.drawn)

    def _batch_fetched(self, event: BatchFetched) -> None:
        if not private_api.executing_eagerly():
            return
        if self._is_executing:
            event.batch = captured_or_own(self._batch, event.batch)
            return
        self._begin_if_due()
        self._unused += 1
        self._takes_turns = self._takes_turns and self._unused == 1
        if self._watcher is not None and self._takes_turns:
            self._watcher.begin_batch(self._samples, event.batch)

    def _backward_began(self, _event: BackwardBegan) -> None:
        if private_api.executing_eagerly():
            self._unused -= 1
            self._takes_turns = self._takes_turns and self._unused == 0

    def _begin_if_due(self) -> None:
        """Watch eager code from here on, if the optimizer has made the updates before the step."""
        self._driver.require_end()
        if self._watcher is None and self._is_due():
            is_in_script = all(batch.get("from") == SCRIPT for batch in self._driver.header.batches)
            self._watcher = OperationWatcher(self._samples if is_in_script else 0).__enter__()

    def _is_due(self) -> bool:
        header, number = self._driver.header, captured_number(self._driver.file)
        alive = [watched for watched in self._training.watched if watched.optimizer() is not None]
        return alive[number].step() == header.step if number < len(alive) else header.step == 0

    @property
    def _samples(self) -> int:
        """The number of samples of the step's only batch; 0 if unknown."""
        batches = self._driver.header.batches
        return (batches[0].get("samples") or 0) if len(batches) == 1 else 0

    def _reject(self, rejected: RejectedStep) -> None:
        """Keep the captured step to explain it; handle others as the recording did."""
        if self._is_executing:
            self._rejected = self._rejected or rejected
            return
        if self._rejected is not None:  # an earlier step of the same call is explained
            return
        number, call = captured_number(self._driver.file), self._training.call()
        is_of_optimizer = any(each is rejected.optimizer for each in self._training.optimizers()[number : number + 1])
        if rejected.facts.step != self._driver.header.step or not is_of_optimizer:
            self._save(rejected)
        elif call is None:
            self._conclude(rejected, rejected, OTHER_BATCH)
        else:
            self._rejected = rejected
            self._calls = [*([] if call.window is None else call.window.calls), call]

    def _run(self, call: OutermostCall) -> Any:
        """Execute an outermost call; explain the captured step if it was in it."""
        if self._is_executing:
            return call.run()
        self._begin_if_due()
        watcher = self._watcher
        if watcher is not None and call.model is None and call.record.trains is False:
            with eagerly():  # the step's bits are compared in the end
                return call.run()
        if watcher is not None:
            watcher.__exit__(None, None, None)
        result = call.run()
        if self._rejected is not None:
            self._driver.attempt(self._execute_again)
        if watcher is not None:
            watcher.__enter__()
        return result

    def _execute_again(self) -> None:
        """Execute the step's calls operation by operation, from the state before them, and end the process."""
        file, calls, captured = self._driver.file, self._calls, self._rejected
        assert captured is not None
        if any("replica" in batch for batch in file.facts.batches):
            self._driver.give_up(NOT_AGAIN)
        batches = restore.batches(file)
        self._state.restore(calls[-1].model, calls)
        self._rejected, self._is_executing = None, True
        self._watcher = self._watcher or OperationWatcher()
        self._watcher.begin_batch(self._samples)
        with eagerly(), self._watcher:
            for number, call in enumerate(calls):
                is_last = call is calls[-1]
                self._drawn.set_replay(restore.drawn(file) if is_last else None, None, 0)
                self._batch = batches[number] if len(batches) == len(calls) else None
                run_with_batch(call, self._batch, LOADER)
        self._conclude(captured, self._rejected, BY_ITSELF)

    def _conclude(self, captured: RejectedStep, observed: RejectedStep | None, why_finite: str) -> None:
        """Report the captured step, and the cause as it was observed; this ends the process."""
        watcher = self._watcher or OperationWatcher()
        if not self._is_executing:
            watcher.__exit__(None, None, None)
        batches = [value for _, value in captured.values.batches]
        samples = self._samples if self._is_executing or self._takes_turns else None
        self._driver.conclude_trial(
            (),
            0,
            outcome_of(self._driver, captured),
            explain=lambda: explained(watcher, observed, batches, samples, why_finite),
        )
