"""Does a captured step of TensorFlow 2 and Keras again, at the first step of the user's own script.

The script's own function is executed, in the graph that captures, on the snapshot's state and batch. To explain it, the
same function is executed operation by operation.
"""

from __future__ import annotations

import atexit
import json
import math
import sys
from contextlib import contextmanager

from ..events import BatchFetched, GradientsDue, RandomDrawn
from ..tensorflow import private_api
from . import tensorflow_restore as restore
from . import tensorflow_state as state
from .header import ACTIVATION, CONDITION, Trigger
from .redo import EXPLAIN, MINIMIZE, REPRODUCE, RedoDriver, StepOutcome
from .settings import LOSS_ABOVE, NEEDS_TENSORFLOW_2, UNAVAILABLE
from .store import SnapshotError
from .tensorflow_capture import TensorFlowCapture, old_version
from .tensorflow_explain import OperationWatcher
from .tensorflow_restore import RandomReplay, StateRestorer
from .tensorflow_snapshot import RejectedStep, dense
from .tensorflow_state import FIT, LOADER, SCRIPT
from .variables import set_loop_counters, set_variables, user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from ..events import Handler, TrainingEvent
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
    """Waits for the first step of the script, which it takes in another way."""

    def __init__(self, capture: CaptureSession) -> None:
        self._capture = capture
        self.driver = RedoDriver(capture)
        _test_likewise(self.driver, capture.settings.conditions)
        self.drawn = RandomReplay()
        self._watch = TensorFlowCapture(capture, self)
        self._watch.rejections.reject = self._rejected
        self._watch.updates.applied.append(self._applied)
        self._watch.calls.run = self._outermost
        self._training = self._watch.training
        self._training.begun.append(self._begins)
        self.state = StateRestorer(self.driver, self._training)
        self._doing = False
        self._loop: EagerLoop | None = None  # of the script's own, in eager code
        self.summed: list[OutermostCall] = []  # calls of functions, up to the first update
        self.last: RejectedStep | None = None  # the step that was found last

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed; ends the process where steps cannot be executed again."""
        version = old_version()
        if version:
            what = UNAVAILABLE[NEEDS_TENSORFLOW_2]
            self.driver.give_up(f"steps of tensorflow {version} cannot be executed again: {what}")
        self._watch.begin(name, module)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {RandomDrawn: self._random_drawn, BatchFetched: self._batch_fetched, GradientsDue: self._gradients_due}

    def failed(self, error: Exception, handler: Handler) -> None:
        """Say so; the step is executed all the same."""
        self._capture.failed(handler, error)

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self._watch.forget()

    def _random_drawn(self, event: RandomDrawn) -> None:
        """Give an operation what it drew in the captured step."""
        event.drawn = self.drawn.given(event.kind, event.drawn)

    def _gradients_due(self, _event: GradientsDue) -> None:
        """Give the random operations of a step's graph what they drew in the captured step."""
        step = self._training.step()
        graph = step.graph if step is not None else private_api.default_graph()
        if graph is not None:
            self.drawn.belongs(graph)

    def _batch_fetched(self, event: BatchFetched) -> None:
        """Give a loop of the script's the captured batch in the place of what a data set gave."""
        if self._loop is not None and self._is_in_loop():
            event.batch = self._loop.fetched(event.batch)

    def _outermost(self, call: OutermostCall) -> Any:
        """Execute the captured step in the place of the script's first step."""
        if self._doing:
            return call.run()
        if call.model is None or not _is_built(call.model):
            result = call.run()  # which makes all variables, and tells whether it trains
            trains = call.traced.trains or (call.model is not None and call.traced.trains is None)
            if call.model is None and (trains or call.traced.differentiates):
                self.summed.append(call)
            if not trains and self.last is None:
                return result
        self._doing = True
        calls = self.summed if count_of(self.driver.file) > 1 else [call]
        return self.driver.attempt(lambda: StepExecutor(self, calls)).run()

    def _rejected(self, found: RejectedStep) -> None:
        """Note a step that is not applied, which is what was looked for."""
        self.last = found
        if self._is_in_loop():
            self._stepped(found)

    def _applied(self, optimizer: Any) -> None:
        """Note a step in eager code that was finite."""
        if self._is_in_loop() and (self._loop is None or self.state.is_wanted(optimizer)):
            self._stepped(None)

    def _begins(self, _step: TensorFlowStep) -> None:
        """Begin a step in eager code on the captured state."""
        if self._loop is not None and self._is_in_loop():
            self._loop.begins()

    def _is_in_loop(self) -> bool:
        return not self._doing and self._training.here.call is None

    def _stepped(self, found: RejectedStep | None) -> None:
        """The first step of a loop has made all variables; from then on each is one that is done again."""
        if self._loop is not None:
            self._loop.ends(found)
            return
        self._loop = self.driver.attempt(lambda: EagerLoop(self))

    def begins_again(self) -> None:
        """Nothing has been found of the step that is now executed."""
        self.last, call = None, self._training.call()
        if call is not None:
            call.captured = None


def _test_likewise(driver: RedoDriver, conditions: Conditions) -> None:
    """Test steps for what the snapshot was written for."""
    try:
        wanted = driver.header.trigger
    except SnapshotError:  # which the first step tells
        return
    if wanted.kind == ACTIVATION:
        conditions.activations = True
    if wanted.kind == CONDITION:  # of a jump of gradients, these are then always shown
        is_loss = wanted.condition == LOSS_ABOVE and wanted.limit is not None
        conditions.loss_above = wanted.limit if is_loss else -math.inf


def _is_built(model: Any) -> bool:
    """Return whether model and optimizer have all of their variables before the first step, as Keras 3 makes them."""
    return bool(getattr(model, "built", False) and getattr(getattr(model, "optimizer", None), "built", False))


class RedoTrials:
    """The captured step, executed as often as it is asked for, on those of its samples that are asked for."""

    def __init__(self, owner: TensorFlowRedo, likes: Sequence[Any] = ()) -> None:
        self._owner = owner
        self.driver = owner.driver
        self._drawn = restore.drawn(self.driver.file)
        self.batches = batches_of(self.driver.file, likes, self.driver.mode)
        self.of = self.batches[0][2]
        self._samples = self.driver.next_samples(self.of)

    @property
    def _part(self) -> Sequence[int] | None:
        return None if len(self._samples) == self.of else self._samples

    def batch(self, number: int) -> Any:
        """Return the samples that are wanted of a batch of the step."""
        batch = self.batches[number % len(self.batches)][0]
        return batch if self._part is None else part_of(batch, self._part, self.of)

    def begin(self, model: Any) -> None:
        """Put the state in."""
        self.driver.begin_trial(self._samples)
        self._owner.state.put(model, self._owner.summed)
        self._owner.begins_again()

    def draw(self, *, is_given: bool) -> None:
        """Say whether random operations are given what they drew in the captured step."""
        self._owner.drawn.begins(self._drawn if is_given else None, self._part, self.of)

    def end(self, found: RejectedStep | None, explain: Callable[[], dict[str, Any]]) -> None:
        """Tell what the step came to, which may end the process."""
        self.driver.conclude_trial(self._samples, self.of, outcome_of(self.driver, found), explain=explain)
        self._samples = self.driver.next_samples(self.of)


class StepExecutor:
    """Executes the step by one call, or by those whose gradients are summed."""

    def __init__(self, owner: TensorFlowRedo, calls: list[OutermostCall]) -> None:
        self._owner = owner
        self._calls = _repeated(calls, count_of(owner.driver.file))
        given = [call for call in self._calls if call.arguments or call.keywords]
        self._trials = RedoTrials(owner, [call.value if call.model is None else None for call in given])

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
                _run(call, trials.batch(count), trials.batches[count][1])
                count += 1
            else:
                call.run()

    def _explain(self) -> dict[str, Any]:
        """Execute the step operation by operation, and find what began it."""
        why_finite = FINITE if self._owner.last is None else BY_ITSELF  # of the step as the script executes it
        with _eagerly(), OperationWatcher(self._trials.of) as watching:
            self._execute()
        return explained(watching, self._owner.last, self._trials, why_finite)


def _run(call: OutermostCall, batch: Any, origin: str) -> None:
    """Make a call with this batch."""
    if call.model is not None or origin == LOADER:
        call.run(tuple(_replaced(argument, batch) for argument in call.arguments))
        return
    if call.keywords:
        *arguments, keywords = batch
        call.run(tuple(arguments), keywords)
    else:
        call.run((batch,) if len(call.arguments) == 1 else tuple(batch))


def _repeated(calls: list[OutermostCall], wanted: int) -> list[OutermostCall]:
    """The calls of a step with so many batches: of one function that sums up and applies itself, the same again."""
    given = [call for call in calls if call.arguments or call.keywords]
    if len(calls) == 1 and wanted > 1:
        return calls * wanted
    if wanted > 1 and len(given) != wanted:
        raise SnapshotError(f"the step has {wanted} batches, and the script's first update comes after {len(given)}")
    return calls


class EagerLoop:
    """A loop of the script's in eager code, each of whose steps is taken on the snapshot's state and batch."""

    def __init__(self, owner: TensorFlowRedo) -> None:
        self._trials = RedoTrials(owner)
        self._from = self._trials.batches[0][1]
        self._fetched = 0
        is_explained = owner.driver.mode == EXPLAIN  # from here on, as the script may change the batch before the tape
        self._watching = OperationWatcher(self._trials.of).__enter__() if is_explained else None
        self._begun = False
        atexit.register(self._script_ends)

    def _script_ends(self) -> None:
        """Let another process go on with a search."""
        driver = self._trials.driver
        if driver.mode == MINIMIZE and driver.trials and not driver.is_done:
            driver.write({"again": True})

    def fetched(self, value: Any) -> Any:
        """Return the captured batch in place of what a data set gives, where it is of the same build."""
        if self._from != LOADER:
            return value
        part = self._trials.batch(self._fetched)
        try:
            sys.modules["tensorflow"].nest.assert_same_structure(value, part)
        except (TypeError, ValueError):
            return value
        self._fetched += 1
        return part

    def begins(self) -> None:
        """A step begins: it has the snapshot's state."""
        self._trials.driver.attempt(self._prepare)

    def _prepare(self) -> None:
        if self._from == SCRIPT:
            put_locals(self._trials.batch(0))
            self._put_loops(self._trials.driver)
        self._trials.begin(None)
        self._trials.draw(is_given=True)
        self._begun = True

    def _put_loops(self, driver: RedoDriver) -> None:
        """Let the script choose the captured batch, where its loop's variables do; never a part of one."""
        if driver.mode != MINIMIZE:
            set_loop_counters(sys._getframe(1), driver.header.loops)
        elif driver.header.loops and not driver.is_whole_known:
            driver.problem(NOT_CUT)

    def ends(self, found: RejectedStep | None) -> None:
        """A step was taken."""
        if not self._begun:
            return
        self._begun, self._fetched = False, 0
        self._trials.draw(is_given=False)
        watching = self._watching
        if watching is not None:
            watching.__exit__(None, None, None)
        self._trials.end(
            found, lambda: {} if watching is None else explained(watching, found, self._trials, OTHER_BATCH)
        )


def put_locals(values: Any) -> None:
    """Give the variables of the user's innermost function these values, by name."""
    function = next(user_functions(sys._getframe(1)), None)
    if function is None or not isinstance(values, dict):
        raise SnapshotError("the batch cannot be put into the script: it is not known where it came from")
    known = function.f_locals
    set_variables(function, {name: value for name, value in values.items() if name in known})


def batches_of(file: SnapshotFile, likes: Sequence[Any], mode: str) -> list[tuple[Any, str, int]]:
    """Return the batches of the step, where each comes from, and how many samples it has."""
    known = file.facts.batches
    if not known:
        raise SnapshotError("the snapshot holds no batch of the step")
    if _of_replicas(known):
        return [_together(file, known, mode)]
    if any('"replicas"' in json.dumps(entry.get("value")) for entry in known):
        raise SnapshotError(NOT_AGAIN)
    if len(known) > 1 and mode == MINIMIZE:
        raise SnapshotError(f"the step has {len(known)} batches, and only one can be minimized")
    sizes = [entry.get("samples") for entry in known]
    if mode == MINIMIZE and not isinstance(sizes[0], int):
        raise SnapshotError(
            "how many samples the batch has is not known, as its tensors have different numbers of rows"
        )
    values = restore.batches(file, likes)
    return [
        (value, str(entry.get("from")), size if isinstance(size, int) else 0)
        for value, entry, size in zip(values, known, sizes)
    ]


def _of_replicas(known: Sequence[dict[str, Any]]) -> bool:
    return any("replica" in entry for entry in known)


def count_of(file: SnapshotFile) -> int:
    """Return how many batches the step had, one after the other."""
    known = file.facts.batches
    return 1 if _of_replicas(known) else len(known)


def _together(file: SnapshotFile, known: Sequence[dict[str, Any]], mode: str) -> tuple[Any, str, int]:
    """Return the batches of several replicas as one, which their strategy takes apart again."""
    if mode != REPRODUCE or any(entry.get("from") != FIT for entry in known) or file.facts.world:
        raise SnapshotError(NOT_AGAIN)
    tensorflow = sys.modules["tensorflow"]
    values = restore.batches(file)
    whole = tensorflow.nest.map_structure(lambda *parts: tensorflow.concat(parts, 0), *values)
    sizes = [entry.get("samples") for entry in known]
    return whole, FIT, sum(size for size in sizes if isinstance(size, int))


def _replaced(argument: Any, batch: Any) -> Any:
    """Return an iterator over this batch alone, in the place of one of the script's."""
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
def _eagerly() -> Iterator[None]:
    """Execute what functions of TensorFlow do one operation after the other."""
    config = sys.modules["tensorflow"].config
    before = config.functions_run_eagerly()
    config.run_functions_eagerly(True)
    try:
        yield
    finally:
        config.run_functions_eagerly(before)


def explained(
    watching: OperationWatcher, found: RejectedStep | None, trials: RedoTrials, why_finite: str
) -> dict[str, Any]:
    """Return the operation that began what was found, or why nothing was."""
    if found is None:
        return {"problems": [why_finite]}
    roots = [found.values.loss, *[getattr(one, "values", one) for one in found.gradients]]
    batches = [batch for batch, _, _ in trials.batches]
    given = sys.modules["tensorflow"].nest.flatten(batches, expand_composites=True)
    arrays = [private_api.value(one) for one in given if private_api.has_value(one) and one.dtype.is_floating]
    samples = trials.of if len(batches) == 1 else None  # of which of several batches is not known
    cause = watching.cause([root for root in roots if root is not None], arrays, samples)
    return cause or {"problems": ["no operation was seen that began it"]}


def outcome_of(driver: RedoDriver, found: RejectedStep | None) -> StepOutcome:
    """Return what a step came to, which was not applied, or else was finite."""
    if found is None:
        if not driver.is_whole_known:  # parts of a batch are often finite
            driver.problem(FINITE)
        return StepOutcome()
    triggers, wanted = [*found.not_finite(), found.bad_loss(None), *found.ruined()], driver.header.trigger
    named = [_named_as_then(one, wanted) for one in triggers if one is not None]
    gradients = zip(found.names, found.gradients)
    digests = {name: state.digest(dense(gradient)) for name, gradient in gradients if gradient is not None}
    if found.values.loss is None:
        return StepOutcome(named, digests, norm=found.norm())
    array = state.as_array(found.values.loss).astype("float64")
    loss = float(array.mean()), state.digest(found.values.loss)
    return StepOutcome(named, digests, loss, found.norm(), float(array.max()) if array.size else None)


def _named_as_then(trigger: Trigger, wanted: Trigger) -> Trigger:
    """Return a layer's output under the name that it had when the snapshot was made."""
    is_same = trigger.kind == wanted.kind == ACTIVATION and trigger.place == wanted.place
    return trigger.with_(name=wanted.name) if is_same else trigger


def part_of(batch: Any, samples: Sequence[int], of: int) -> Any:
    """Of each tensor of a batch with so many rows only these."""
    tensorflow = sys.modules["tensorflow"]

    def chosen(value: Any) -> Any:
        shape = value.shape if hasattr(type(value), "shape") else None
        if shape is None or len(shape) == 0 or shape[0] != of:
            return value
        if type(value).__name__ == "SparseTensor":
            return tensorflow.sparse.from_dense(tensorflow.gather(tensorflow.sparse.to_dense(value), list(samples)))
        return tensorflow.gather(value, list(samples))

    return tensorflow.nest.map_structure(chosen, batch)
