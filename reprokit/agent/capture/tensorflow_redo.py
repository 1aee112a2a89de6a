"""Re-executes a captured step of TensorFlow 2 or Keras, at the first step of the user's own script.

The script's own function is executed, in the graph that captures, on the snapshot's state and batch. To explain it, the
same function is executed operation by operation.
"""

from __future__ import annotations

import atexit
import json
import math
import sys
from contextlib import contextmanager

from ..events.steps import BatchFetched, GradientsDue, RandomDrawn
from ..operators.tensorflow.explain import OperationWatcher
from ..tensorflow import private_api
from ..tensorflow.training_state import as_array
from . import tensorflow_restore as restore
from . import tensorflow_state as state
from .header import ACTIVATION, CONDITION, Trigger
from .redo import EXPLAIN, MINIMIZE, REPRODUCE, RedoDriver, StepOutcome
from .settings import LOSS_ABOVE, NEEDS_TENSORFLOW_2, UNAVAILABLE
from .store import SnapshotError
from .tensorflow_capture import TensorFlowCapture, old_version
from .tensorflow_restore import RandomReplay, StateRestorer
from .tensorflow_snapshot import RejectedStep, dense
from .tensorflow_state import FIT, LOADER, SCRIPT
from .variables import set_loop_counters, set_variables, user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from ..events.steps import Handler, TrainingEvent
    from . import CaptureSession
    from .settings import Conditions
    from .store import SnapshotFile
    from .tensorflow_steps import OutermostCall, TensorFlowStep


BY_ITSELF = "executed operation by operation, the step is finite: what began it is how it was compiled"
NOT_AGAIN = (
    "the step was one of several replicas: that of Keras' fit in one process is done again by reproduce,"
    " others are not; reprokit.capture loads it"
)
OTHER_BATCH = "the loop's step is finite this time: what it computes with besides its variables is its own"
NOT_CUT = "what loops choose by their variables cannot be made smaller"
FINITE = "the step was finite this time; its gradients are not known then"


class TensorFlowRedo:
    """Executes the captured step in place of the script's first step."""

    def __init__(self, capture: CaptureSession) -> None:
        self.driver = RedoDriver(capture)
        _copy_conditions(self.driver, capture.settings.conditions)
        self.drawn = RandomReplay()
        self._watch = TensorFlowCapture(capture, self)
        self._watch.rejections.reject = self._rejected
        self._watch.updates.applied_listeners.append(self._applied)
        self._watch.calls.run = self._execute_in_place
        self._training = self._watch.training
        self._training.step_listeners.append(self._eager_step_begun)
        self.state = StateRestorer(self.driver, self._training)
        self._is_executing = False
        self._loop: EagerLoop | None = None  # of the script's own, in eager code
        self.accumulated_calls: list[OutermostCall] = []  # calls of functions before the first update
        self.last: RejectedStep | None = None  # the last step that was rejected

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that was just imported; ends the process if steps cannot be executed again."""
        version = old_version()
        if version:
            what = UNAVAILABLE[NEEDS_TENSORFLOW_2]
            self.driver.give_up(f"steps of tensorflow {version} cannot be executed again: {what}")
        self._watch.begin(name, module)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {RandomDrawn: self._random_drawn, BatchFetched: self._batch_fetched, GradientsDue: self._gradients_due}

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self._watch.forget()

    def _random_drawn(self, event: RandomDrawn) -> None:
        """Replace random numbers with those of the captured step."""
        event.drawn = self.drawn.replayed(event.kind, event.drawn)

    def _gradients_due(self, _event: GradientsDue) -> None:
        """Have random numbers replaced in the graph of a step that has an update."""
        step = self._training.step()
        graph = step.graph if step is not None else private_api.default_graph()
        if graph is not None:
            self.drawn.add_graph(graph)

    def _batch_fetched(self, event: BatchFetched) -> None:
        """Replace the batch that a loop of the script fetched with the captured one."""
        if self._loop is not None and self._is_in_loop():
            event.batch = self._loop.fetched(event.batch)

    def _execute_in_place(self, call: OutermostCall) -> Any:
        """Execute the captured step in the place of the script's first step."""
        if self._is_executing:
            return call.run()
        if call.model is None or not _is_built(call.model):
            result = call.run()  # it creates all variables, and shows whether it trains
            trains = call.record.trains or (call.model is not None and call.record.trains is None)
            if call.model is None and (trains or call.record.differentiates):
                self.accumulated_calls.append(call)
            if not trains and self.last is None:
                return result
        self._is_executing = True
        calls = self.accumulated_calls if count_of(self.driver.file) > 1 else [call]
        return self.driver.attempt(lambda: StepExecutor(self, calls)).run()

    def _rejected(self, rejected: RejectedStep) -> None:
        """Record a rejected step, which is what the trial looks for, unless another optimizer was to make it."""
        is_tried = self._is_executing or self._loop is not None
        if is_tried and not self.state.is_captured_optimizer(rejected.optimizer):
            return
        self.last = rejected
        if self._is_in_loop():
            self._step_taken(rejected)

    def _applied(self, optimizer: Any) -> None:
        """Handle a finite step in eager code."""
        if self._is_in_loop() and (self._loop is None or self.state.is_captured_optimizer(optimizer)):
            self._step_taken(None)

    def _eager_step_begun(self, _step: TensorFlowStep) -> None:
        """Restore the captured state at the start of a step in eager code."""
        if self._loop is not None and self._is_in_loop():
            self._loop.begin_step()

    def _is_in_loop(self) -> bool:
        return not self._is_executing and self._training.thread_state.call is None

    def _step_taken(self, rejected: RejectedStep | None) -> None:
        """Begin trials after the loop's first step, which creates all variables; later steps are trials."""
        if self._loop is not None:
            self._loop.end_step(rejected)
            return
        self._loop = self.driver.attempt(lambda: EagerLoop(self))

    def forget_rejected(self) -> None:
        """Forget the last rejected step, as another trial begins."""
        self.last, call = None, self._training.call()
        if call is not None:
            call.captured = None


def _copy_conditions(driver: RedoDriver, conditions: Conditions) -> None:
    """Set the conditions under which the snapshot was written."""
    try:
        trigger = driver.header.trigger
    except SnapshotError:  # the first step reports it
        return
    if trigger.kind == ACTIVATION:
        conditions.activations = True
    if trigger.kind == CONDITION:  # for a gradient jump, a limit of -inf rejects every step
        is_loss = trigger.condition == LOSS_ABOVE and trigger.limit is not None
        conditions.loss_above = trigger.limit if is_loss else -math.inf


def _is_built(model: Any) -> bool:
    """Return whether model and optimizer have all variables before the first step, as in Keras 3."""
    return bool(getattr(model, "built", False) and getattr(getattr(model, "optimizer", None), "built", False))


class RedoTrials:
    """The trials of the captured step, each on the samples that the driver chooses."""

    def __init__(self, owner: TensorFlowRedo, likes: Sequence[Any] = ()) -> None:
        self._owner = owner
        self.driver = owner.driver
        self._drawn = restore.drawn(self.driver.file)
        self.batches = batches_of(self.driver.file, likes, self.driver.mode)
        self.sample_count = self.batches[0][2]
        self._samples = self.driver.next_samples(self.sample_count)

    @property
    def _part(self) -> Sequence[int] | None:
        return None if len(self._samples) == self.sample_count else self._samples

    @property
    def inputs(self) -> tuple[list[Any], int | None]:
        """The step's batches, and the number of its samples; None for several batches."""
        return [batch for batch, _, _ in self.batches], self.sample_count if len(self.batches) == 1 else None

    def batch(self, number: int) -> Any:
        """Return the trial's samples of a batch of the step."""
        batch = self.batches[number % len(self.batches)][0]
        return batch if self._part is None else part_of(batch, self._part, self.sample_count)

    def begin(self, model: Any) -> None:
        """Begin a trial: restore the captured state."""
        self.driver.begin_trial(self._samples)
        self._owner.state.restore(model, self._owner.accumulated_calls)
        self._owner.forget_rejected()

    def draw(self, *, is_given: bool) -> None:
        """Set whether random operations get the numbers of the captured step."""
        self._owner.drawn.set_replay(self._drawn if is_given else None, self._part, self.sample_count)

    def end(self, rejected: RejectedStep | None, explain: Callable[[], dict[str, Any]]) -> None:
        """Conclude the trial with its outcome, which may end the process."""
        self.driver.conclude_trial(self._samples, self.sample_count, outcome_of(self.driver, rejected), explain=explain)
        self._samples = self.driver.next_samples(self.sample_count)


class StepExecutor:
    """Executes the step by one call, or by several whose gradients are accumulated."""

    def __init__(self, owner: TensorFlowRedo, calls: list[OutermostCall]) -> None:
        self._owner = owner
        self._calls = _repeated(calls, count_of(owner.driver.file))
        calls_with_input = [call for call in self._calls if call.arguments or call.keywords]
        self._trials = RedoTrials(owner, [call.value if call.model is None else None for call in calls_with_input])

    def run(self) -> NoReturn:
        """Execute the step until there is a result, which ends the process."""
        driver = self._trials.driver
        while True:
            driver.attempt(self._execute)
            self._trials.end(self._owner.last, lambda: driver.attempt(self._explain))

    def _execute(self) -> None:
        trials, count = self._trials, 0
        trials.begin(self._calls[-1].model)
        for number, call in enumerate(self._calls, 1):
            trials.draw(is_given=number == len(self._calls))
            if call.arguments or call.keywords or len(self._calls) == 1:
                run_with_batch(call, trials.batch(count), trials.batches[count][1])
                count += 1
            else:
                call.run()

    def _explain(self) -> dict[str, Any]:
        """Execute the step operation by operation, and find its cause."""
        why_finite = FINITE if self._owner.last is None else BY_ITSELF  # depends on the trial as the script executes it
        with eagerly(), OperationWatcher(self._trials.sample_count) as watcher:
            self._execute()
        return explained(watcher, self._owner.last, *self._trials.inputs, why_finite)


def run_with_batch(call: OutermostCall, batch: Any, origin: str) -> None:
    """Execute a call with this batch."""
    if call.model is not None or origin == LOADER:
        call.run(tuple(_with_batch(argument, batch) for argument in call.arguments))
        return
    if call.keywords:
        *arguments, keywords = batch
        call.run(tuple(arguments), keywords)
    else:
        call.run((batch,) if len(call.arguments) == 1 else tuple(batch))


def _repeated(calls: list[OutermostCall], batch_count: int) -> list[OutermostCall]:
    """Return the calls of a step with so many batches; a single call that accumulates and applies is repeated."""
    with_input = [call for call in calls if call.arguments or call.keywords]
    if len(calls) == 1 and batch_count > 1:
        return calls * batch_count
    if batch_count > 1 and len(with_input) != batch_count:
        raise SnapshotError(
            f"the step has {batch_count} batches, and the script's first update comes after {len(with_input)}"
        )
    return calls


class EagerLoop:
    """A training loop in eager code, each of whose steps is a trial on the snapshot's state and batch."""

    def __init__(self, owner: TensorFlowRedo) -> None:
        self._trials = RedoTrials(owner)
        self._origin = self._trials.batches[0][1]
        self._fetched = 0
        is_explained = owner.driver.mode == EXPLAIN  # now, as the script may change the batch before the tape
        self._watcher = OperationWatcher(self._trials.sample_count).__enter__() if is_explained else None
        self._begun = False
        atexit.register(self._script_ends)

    def _script_ends(self) -> None:
        """Ask for another process to continue a search that the script's end interrupts."""
        driver = self._trials.driver
        if driver.mode == MINIMIZE and driver.trials and not driver.is_done:
            driver.write({"again": True})

    def fetched(self, value: Any) -> Any:
        """Return the captured batch in place of a data set's, if both have the same structure."""
        if self._origin != LOADER:
            return value
        batch = captured_or_own(self._trials.batch(self._fetched), value)
        self._fetched += batch is not value
        return batch

    def begin_step(self) -> None:
        """Begin a step as a trial, on the snapshot's state."""
        self._trials.driver.attempt(self._prepare)

    def _prepare(self) -> None:
        if self._origin == SCRIPT:
            set_locals(self._trials.batch(0))
            self._set_loop_counters(self._trials.driver)
        self._trials.begin(None)
        self._trials.draw(is_given=True)
        self._begun = True

    def _set_loop_counters(self, driver: RedoDriver) -> None:
        """Set loop counters by which the script selects its batch; impossible for parts of a batch."""
        if driver.mode != MINIMIZE:
            set_loop_counters(sys._getframe(1), driver.header.loops)
        elif driver.header.loops and not driver.is_whole_known:
            driver.problem(NOT_CUT)

    def end_step(self, rejected: RejectedStep | None) -> None:
        """End the trial after a step."""
        if not self._begun:
            return
        self._begun, self._fetched = False, 0
        self._trials.draw(is_given=False)
        watcher = self._watcher
        if watcher is not None:
            watcher.__exit__(None, None, None)
        self._trials.end(
            rejected, lambda: {} if watcher is None else explained(watcher, rejected, *self._trials.inputs, OTHER_BATCH)
        )


def captured_or_own(captured: Any, own: Any) -> Any:
    """Return the captured batch in place of the script's own, if both have the same structure."""
    try:
        sys.modules["tensorflow"].nest.assert_same_structure(own, captured)
    except (TypeError, ValueError):
        return own
    return captured


def set_locals(values: Any) -> None:
    """Set local variables of the user's innermost function."""
    function = next(user_functions(sys._getframe(1)), None)
    if function is None or not isinstance(values, dict):
        raise SnapshotError("the batch cannot be put into the script: it is not known where it came from")
    variables = function.f_locals
    set_variables(function, {name: value for name, value in values.items() if name in variables})


def batches_of(file: SnapshotFile, likes: Sequence[Any], mode: str) -> list[tuple[Any, str, int]]:
    """Return the batches of the step, each with its origin and number of samples (0: unknown)."""
    entries = file.facts.batches
    if not entries:
        raise SnapshotError("the snapshot holds no batch of the step")
    if _are_of_replicas(entries):
        return [_joined_replicas(file, entries, mode)]
    if any('"replicas"' in json.dumps(entry.get("value")) for entry in entries):
        raise SnapshotError(NOT_AGAIN)
    if len(entries) > 1 and mode == MINIMIZE:
        raise SnapshotError(f"the step has {len(entries)} batches, and only one can be minimized")
    sizes = [entry.get("samples") for entry in entries]
    if mode == MINIMIZE and not isinstance(sizes[0], int):
        raise SnapshotError(
            "how many samples the batch has is not known, as its tensors have different numbers of rows"
        )
    values = restore.batches(file, likes)
    return [
        (value, str(entry.get("from")), size if isinstance(size, int) else 0)
        for value, entry, size in zip(values, entries, sizes)
    ]


def _are_of_replicas(entries: Sequence[dict[str, Any]]) -> bool:
    return any("replica" in entry for entry in entries)


def count_of(file: SnapshotFile) -> int:
    """Return how many batches the step processed one after the other."""
    entries = file.facts.batches
    return 1 if _are_of_replicas(entries) else len(entries)


def _joined_replicas(file: SnapshotFile, entries: Sequence[dict[str, Any]], mode: str) -> tuple[Any, str, int]:
    """Return the batches of several replicas joined into one, which the strategy splits again."""
    if mode != REPRODUCE or any(entry.get("from") != FIT for entry in entries) or file.facts.world:
        raise SnapshotError(NOT_AGAIN)
    tensorflow = sys.modules["tensorflow"]
    values = restore.batches(file)
    whole = tensorflow.nest.map_structure(lambda *parts: tensorflow.concat(parts, 0), *values)
    sizes = [entry.get("samples") for entry in entries]
    return whole, FIT, sum(size for size in sizes if isinstance(size, int))


def _with_batch(argument: Any, batch: Any) -> Any:
    """Return an iterator or data set of this batch alone in place of the script's; other arguments unchanged."""
    data = sys.modules["tensorflow"].data
    if type(argument).__name__.startswith("DistributedIterator"):  # of which each replica has its part
        whole = data.Dataset.from_tensor_slices(batch)
        whole = whole.batch(int(whole.cardinality()))
        return iter(private_api.strategy_of(argument).experimental_distribute_dataset(whole))
    if isinstance(argument, data.Iterator):
        return iter(data.Dataset.from_tensors(batch))
    if isinstance(argument, data.Dataset):
        return data.Dataset.from_tensors(batch)
    return iter([batch]) if hasattr(argument, "__next__") else argument


@contextmanager
def eagerly() -> Iterator[None]:
    """Run tf.functions eagerly, one operation after the other."""
    config = sys.modules["tensorflow"].config
    before = config.functions_run_eagerly()
    config.run_functions_eagerly(True)
    try:
        yield
    finally:
        config.run_functions_eagerly(before)


def explained(
    watcher: OperationWatcher, rejected: RejectedStep | None, batches: list[Any], samples: int | None, why_finite: str
) -> dict[str, Any]:
    """Return result.json's entry for the cause of a rejected step, or why there is none."""
    if rejected is None:
        return {"problems": [why_finite]}
    roots = [rejected.values.loss, *[getattr(value, "values", value) for value in rejected.gradients]]
    inputs = sys.modules["tensorflow"].nest.flatten(batches, expand_composites=True)
    arrays = [private_api.value(value) for value in inputs if private_api.has_value(value) and value.dtype.is_floating]
    cause = watcher.cause([root for root in roots if root is not None], arrays, samples)
    return cause or {"problems": ["no operation was seen that began it"]}


def outcome_of(driver: RedoDriver, rejected: RejectedStep | None) -> StepOutcome:
    """Return the outcome of a step: rejected, or finite (None)."""
    if rejected is None:
        if not driver.is_whole_known:  # parts of a batch are often finite
            driver.problem(FINITE)
        return StepOutcome()
    triggers, captured = [*rejected.not_finite(), rejected.bad_loss(None), *rejected.ruined()], driver.header.trigger
    renamed = [_with_captured_name(trigger, captured) for trigger in triggers if trigger is not None]
    gradients = zip(rejected.names, rejected.gradients)
    digests = {name: state.digest(dense(gradient)) for name, gradient in gradients if gradient is not None}
    if rejected.values.loss is None:
        return StepOutcome(renamed, digests, norm=rejected.norm())
    array = as_array(rejected.values.loss).astype("float64")
    loss = float(array.mean()), state.digest(rejected.values.loss)
    return StepOutcome(renamed, digests, loss, rejected.norm(), float(array.max()) if array.size else None)


def _with_captured_name(trigger: Trigger, captured: Trigger) -> Trigger:
    """Return a trigger for a layer's output with the layer's name from the snapshot."""
    is_same = trigger.kind == captured.kind == ACTIVATION and trigger.place == captured.place
    return trigger.with_(name=captured.name) if is_same else trigger


def part_of(batch: Any, samples: Sequence[int], of: int) -> Any:
    """Return a batch with only these rows of each tensor that has ``of`` rows."""
    tensorflow = sys.modules["tensorflow"]

    def chosen(value: Any) -> Any:
        shape = value.shape if hasattr(type(value), "shape") else None
        if shape is None or len(shape) == 0 or shape[0] != of:
            return value
        if type(value).__name__ == "SparseTensor":
            return tensorflow.sparse.from_dense(tensorflow.gather(tensorflow.sparse.to_dense(value), list(samples)))
        return tensorflow.gather(value, list(samples))

    return tensorflow.nest.map_structure(chosen, batch)
