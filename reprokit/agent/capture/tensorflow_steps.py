"""The state of a TensorFlow 2 or Keras training: its steps, its outermost calls, and its optimizers.

A step begins when a gradient tape is entered, or when Keras or a strategy runs one. There is one per thread in eager
code, and one per graph that is being built. Until its update, each variable that is written to is saved first: running
statistics, seeds and metrics, which a forward pass changes.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local, get_ident

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.decisions import generators
from ..tensorflow.state import optimizer_variables
from ..tensorflow.trail import TensorflowTrail
from ..tensorflow.training_state import as_array, plain, read_variable, resource_id
from .tensorflow_state import digest, is_numeric, nested_random_operations, random_operations, saved_or_current, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..events.steps import FunctionDue
    from . import CaptureSession

ALWAYS, SOMETIMES = "always", "sometimes"  # which calls of a function apply an update
LAST_LOSSES = 100
MAX_FETCHED = 64
MAX_CALLS = 64
LARGEST = 1 << 18  # bytes of an optimizer's variables, up to which they are copied at each step


class StepValues:
    """A step's batches, losses, outputs and random numbers, as tensors of a graph or as values."""

    def __init__(self, batches: Iterable[tuple[str, Any]] = ()) -> None:
        self.batches = list(batches)
        self.replicas: list[int] = []  # numbers of the replicas that the batches belong to
        self.losses: list[Any] = []
        self.unscaled: Any = None  # the loss before a loss scale
        self.activations: list[tuple[str, Any]] = []  # layers' names, and whether their outputs are finite
        self.drawn: list[tuple[str, Any]] = []  # types and results of operations whose random states are unreadable

    @property
    def tested(self) -> list[Any]:
        """The losses that must be finite."""
        return self.losses if self.unscaled is None else [self.unscaled]

    @property
    def loss(self) -> Any:
        """The loss, before any loss scale; the last one if there are several."""
        return self.tested[-1] if self.tested else None


class StepVariables:
    """The variables that a step writes to, with their values before it."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.saved: dict[int, tuple[Any, Any]] = {}  # by resource_id: a variable and its value before the step
        self.updated: dict[int, tuple[Any, Any]] = {}  # the same, for variables that optimizers updated within it
        self.earlier: dict[int, tuple[Any, Any]] = {}  # the same, before earlier steps in the same graph
        self.count = 0  # number of variables saved before the update

    def save_value(self, variable: Any) -> None:
        """Save a variable's value, unless it is saved already."""
        key = resource_id(variable)
        if key not in self.saved:
            self.saved[key] = variable, self._read(variable)

    def save_updated(self, variables: Iterable[Any]) -> None:
        """Save variables that an optimizer is about to update, for another optimizer in the same step."""
        for variable in map(plain, variables):
            key = resource_id(variable)
            if key not in self.saved and key not in self.updated:
                self.updated[key] = variable, self._read(private_api.primary(variable))

    @property
    def before(self) -> dict[int, tuple[Any, Any]]:
        """All saved values: those at the start of the step; in a graph, at the start of its call."""
        return {**self.saved, **self.updated, **self.earlier}

    def _read(self, variable: Any) -> Any:
        raw = sys.modules["tensorflow"].raw_ops
        if self._graph is None:
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        with self._graph.as_default():  # not in the loop or branch that may be built within it
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


class TensorFlowStep:
    """One step, in the graph that it is built in (None for eager code)."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.values = StepValues()
        self.variables = StepVariables(graph)
        self.open_tapes = 0  # that are open
        self.is_begun = False  # by a tape; before it, a function may draw, or write to variables
        self.pinned = False  # it ends when its function returns, not with its tape
        self.differentiated = False
        self.applied = False
        self.is_updating = False  # the current writes to variables are the update itself
        self.finite: Any = None  # the result of its test; None before
        self.replica_round: Any = None  # the ReplicaRound that shares it
        self.optimizers: list[Any] = []  # in eager code: those that tested their gradients, in order

    @property
    def is_over(self) -> bool:
        """Whether the step is over, so that the next tape begins another."""
        return not self.pinned and not self.open_tapes and (self.applied or not self.differentiated)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing of the step has come but writes to variables."""
        return not (self.is_begun or self.applied)

    @property
    def is_of_graph(self) -> bool:
        """Whether its graph is the one that is being built."""
        return self.graph is private_api.default_graph()

    def save_value(self, variable: Any) -> None:
        """Save a variable that is about to be written to, unless by the update itself."""
        if not self.is_updating:
            try:
                self.variables.save_value(variable)
            except Exception as error:  # a variable without a value, as at its first assignment
                pass_on(error)


def is_of_function(graph: Any) -> bool:
    """Return whether a graph is a function's own, which hands out no tensors; not that of a branch or loop in it."""
    return type(graph).__name__ == "FuncGraph"


# ---- calls -----------------------------------------------------------------------------------------------------------


class FunctionRecord:
    """Facts about a function that eager code calls, or that XLA compiles, learned when its graphs were built."""

    def __init__(self) -> None:
        self.trains: bool | None = None  # whether it contains an update; None: not called yet
        self.differentiates = False  # computes gradients
        self.updates: str | None = None  # ALWAYS or SOMETIMES, if it contains an update
        self.graph: Callable[[], Any] = _none  # reference to the graph that computes the gradients
        self.written: dict[int, Any] = {}  # by resource_id: variables that it writes to before an update
        self.sites: list[Any] | None = None  # its UpdateSites, if XLA compiles it; None: not known yet
        self.changed: list[Any] | None = None  # variables that these write to; None: not known yet
        self.gradient_function: Any = None  # returns the gradients of its steps instead of applying them

    @classmethod
    def of(cls, noted_at: Any) -> FunctionRecord:
        """Return the record that is stored at this object; create it if there is none."""
        try:
            record: FunctionRecord = noted_at._reprokit_record
        except AttributeError:
            record = noted_at._reprokit_record = cls()
        return record

    @property
    def accumulates(self) -> bool:
        """Whether some calls only accumulate gradients, for the update of another call."""
        return self.differentiates and self.updates != ALWAYS

    def has_update(self, *, sometimes: bool) -> None:
        """Record that an update was built into the function; a graph that it had before may have none."""
        self.updates = SOMETIMES if sometimes or self.trains is False else self.updates or ALWAYS
        self.trains = True


class OutermostCall:
    """An outermost call from eager code: of Keras' train_function, or of a function of the script's."""

    def __init__(self, due: FunctionDue) -> None:
        self.model = due.model  # that Keras' fit trains by it, else None
        self.arguments = due.arguments
        self.keywords = due.keywords
        self.thread = get_ident()
        self.record = FunctionRecord.of(due.notes)
        self.pending: BaseException | None = None  # raised when the call has returned, to end the training
        self.captured: TensorFlowStep | None = None  # a step in it that was not applied
        self.steps: Sequence[TensorFlowStep] = ()  # whose graphs were built in it
        self.window: AccumulationWindow | None = None
        self.rolls_back = False
        self.function = due.function
        self._call = due.call

    @property
    def trains(self) -> bool:
        """Whether the call may be part of a training step."""
        return self.model is not None or self.record.trains is not False or self.record.differentiates

    @property
    def value(self) -> Any:
        """The arguments of the call as one value."""
        return as_one_value(self.arguments, self.keywords)

    def run(self, arguments: tuple[Any, ...] | None = None, keywords: dict[str, Any] | None = None) -> Any:
        """Execute the call, with other arguments if given."""
        call_arguments = self.arguments if arguments is None else arguments
        return self._call(self.function, *call_arguments, **(self.keywords if keywords is None else keywords))


def as_one_value(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the arguments of a call as one value; a single one unchanged."""
    if len(arguments) == 1 and not keywords:
        return arguments[0]
    return [*arguments, keywords] if keywords else tuple(arguments)


class AccumulationWindow:
    """The calls of a thread since the last update, and the variables they write to, as before the first call."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count  # all updates so far
        self._counted = 0
        self.calls: list[OutermostCall] = []
        self.before: dict[int, Any] = {}

    def begin_call(self, call: OutermostCall) -> None:
        """Note the start of a call: save the variables that it writes to, if it is the first."""
        record = call.record
        if not record.accumulates:
            return
        if not self.calls:
            self.before = {key: read_variable(variable) for key, variable in record.written.items()}
        if record.updates == SOMETIMES:
            self._counted = self._count()

    def end_call(self, call: OutermostCall) -> None:
        """Note the end of a call: add it to the window, or close the window after an update."""
        record = call.record
        if record.accumulates and call.captured is None and (record.updates is None or self._counted == self._count()):
            self.calls = [*self.calls, call][-MAX_CALLS:]
        elif self.calls and (call.captured is not None or record.updates is not None):
            self.calls, self.before = [], {}

    @property
    def unread(self) -> list[str]:
        """Names of the calls' random operations whose states cannot be read."""
        graphs = {call.record.graph() for call in self.calls} - {None}
        return [
            name
            for graph in graphs
            for name in [*[each.name for each in random_operations(graph)], *nested_random_operations(graph)]
        ]


class FetchedBatches:
    """The batches that data sets gave for the current or next step in eager code."""

    def __init__(self) -> None:
        self._fetched: list[tuple[Any, Any]] = []  # iterators and batches
        self._after: Callable[[], TensorFlowStep | None] = _none  # the last step before the first of them

    @property
    def values(self) -> list[Any]:
        """The batches, in the order of time."""
        return [value for _, value in self._fetched]

    def add(self, iterator: Any, value: Any, last: TensorFlowStep | None) -> None:
        """Add a batch; a step has one batch of each iterator, unless it accumulates gradients."""
        is_repeated = any(earlier_iterator is iterator for earlier_iterator, _ in self._fetched)
        if not _accumulates(last) and (last is not self._after() or is_repeated):
            self._fetched = []
        if not self._fetched:
            self._after = _none if last is None else weakref.ref(last)
        self._fetched = [*self._fetched, (iterator, value)][-MAX_FETCHED:]

    def ended(self, iterator: Any, last: TensorFlowStep | None) -> None:
        """Drop the last batch of an exhausted iterator: the next step is not of it."""
        if not _accumulates(last):
            self._fetched = [fetched for fetched in self._fetched if fetched[0] is not iterator]


def _accumulates(step: TensorFlowStep | None) -> bool:
    return step is not None and step.differentiated and not step.applied


# ---- optimizers ------------------------------------------------------------------------------------------------------


class OptimizerMemory:
    """Variables that reprokit keeps for one optimizer from step to step: last losses, norms, and a flag."""

    def __init__(self) -> None:
        tensorflow = sys.modules["tensorflow"]
        variable = private_api.module("variables").ResourceVariable  # a single one, under any strategy
        with private_api.ops().init_scope():
            nothing = tensorflow.fill([LAST_LOSSES], tensorflow.constant(float("nan")))
            self.losses = variable(nothing, trainable=False, name="reprokit_losses")
            self.norms = variable([0.0, 0.0], trainable=False, name="reprokit_norms")  # mean and count
            self.all_good = variable(True, trainable=False, name="reprokit_good")  # whether all compiled steps were
        self._read = private_api.module("variable_calls").read_variable_op

    @property
    def variables(self) -> list[Any]:
        """All of these variables."""
        return [self.losses, self.norms, self.all_good]

    def last_losses(self) -> list[float]:
        """Return the last losses, the oldest first."""
        numbers = as_array(self.losses).tolist()
        return [number for number in numbers if number == number][-LAST_LOSSES:]

    def is_flagged(self) -> bool:
        """Return whether a compiled step should not have been applied; in eager code only."""
        return not bool(self._read(self.all_good.handle, self.all_good.dtype))


class WatchedOptimizer:
    """An optimizer, the variables that it trains, and the count of its steps."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.first_count: int | None = None  # its own step count when it was first seen
        self.skipped = 0
        self.variables: list[Any] = []  # that it trains
        self.shares = False  # another optimizer updates after it in the same eager step
        self.changed: dict[int, Any] = {}  # by resource_id: other variables that its steps write to
        self._memory: OptimizerMemory | None = None
        self._is_backed_up: bool | None = None

    @property
    def memory(self) -> OptimizerMemory:
        """The variables that reprokit keeps for it, created at the first use."""
        if self._memory is None:
            self._memory = OptimizerMemory()
        return self._memory

    @property
    def alive(self) -> list[Any]:
        """The variables that it trains; none if it was deleted."""
        return [] if self.optimizer() is None else self.variables

    @property
    def memory_variables(self) -> list[Any]:
        """The variables that reprokit keeps for it, if any were created."""
        return [] if self._memory is None else self._memory.variables

    @property
    def updated(self) -> list[Any]:
        """The variables that its update writes to."""
        return [*self.variables, *optimizer_variables(self.optimizer())]

    @property
    def is_backed_up(self) -> bool:
        """Whether its variables are saved before each update and tested after it, being small enough."""
        if self._is_backed_up is None:
            self._is_backed_up = sum(map(size_of, self.updated)) <= LARGEST
        return self._is_backed_up

    def step(self, saved: dict[int, Any] | None = None) -> int:
        """Return the number of steps that it has taken, or had taken when values were saved."""
        return max(0, (iterations(self.optimizer(), saved) or 0) - (self.first_count or 0)) + self.skipped

    def last_losses(self) -> list[float]:
        """Return the losses of its last good steps."""
        return [] if self._memory is None else self._memory.last_losses()


def iterations(optimizer: Any, saved: dict[int, Any] | None = None) -> int | None:
    """Return an optimizer's count of updates, or the saved count; None before it is built."""
    try:
        counter = private_api.counter(getattr(optimizer, "inner_optimizer", optimizer))
        return int(as_array(saved_or_current(counter, saved or {})))
    except Exception as error:  # it is not built, or was deleted
        pass_on(error)
        return None


# ---- all of it -------------------------------------------------------------------------------------------------------


class ThreadState(_local):
    """The call and the step that are under way in a thread."""

    call: OutermostCall | None = None  # outermost
    step: TensorFlowStep | None = None  # of its eager code
    compiled: Any = None  # FunctionRecord of the XLA-compiled function that is being called
    window: AccumulationWindow | None = None

    def __init__(self) -> None:
        self.fetched = FetchedBatches()


class TrainingState:
    """The steps and calls under way, and the watched optimizers, of this process."""

    def __init__(self) -> None:
        self.thread_state = ThreadState()
        self.calls: list[OutermostCall] = []
        self.watched: list[WatchedOptimizer] = []  # in the order in which they were first seen
        self.step_listeners: list[Callable[[TensorFlowStep], object]] = []  # called with each new eager step
        self._known: weakref.WeakKeyDictionary[Any, WatchedOptimizer] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.calls.clear()
        self.watched.clear()
        self._known = weakref.WeakKeyDictionary()

    # Steps and calls

    def step(self) -> TensorFlowStep | None:
        """Return the step of this thread or of the graph that is being built."""
        if private_api.executing_eagerly():
            return self.thread_state.step
        graph = private_api.default_graph()
        while graph is not None:
            step: TensorFlowStep | None = getattr(graph, "_reprokit_step", None)
            if step is not None or is_of_function(graph):
                return step
            graph = getattr(graph, "outer_graph", None)
        return None

    def begin_step(self) -> TensorFlowStep:
        """Begin a step in this thread, or in the graph that is being built."""
        if private_api.executing_eagerly():
            step = self.thread_state.step = TensorFlowStep(None)
            for listener in self.step_listeners:
                listener(step)
        else:
            graph = private_api.default_graph()
            last = getattr(graph, "_reprokit_step", None)
            step = graph._reprokit_step = TensorFlowStep(graph)
            step.variables.earlier = {} if last is None else last.variables.before
        for generator in generators():
            step.variables.save_value(private_api.state(generator))
        return step

    def call(self) -> OutermostCall | None:
        """Return the call under way in this thread; else, as in a thread of TensorFlow's own, the last that began."""
        call = self.thread_state.call
        return call if call is not None or not self.calls else self.calls[-1]

    def call_with_inputs(self, inputs: list[Any], record: FunctionRecord | None) -> OutermostCall | None:
        """Return the call under way with these numeric inputs, as several threads may be calling one function."""
        if self.thread_state.call is None:
            calls = tuple(self.calls)  # threads begin and end some meanwhile
            calls = tuple([call for call in calls if call.record is record]) or calls
            if len(calls) == 1:
                return calls[0]
            digests = [digest(value) for value in inputs]
            for call in calls:
                flat = sys.modules["tensorflow"].nest.flatten([call.arguments, call.keywords], expand_composites=True)
                if digests == [digest(value) for value in flat if is_numeric(value)]:
                    return call
        return self.call()

    # Optimizers

    def watch_optimizer(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> WatchedOptimizer:
        """Return the record of an optimizer that applies these (gradient, variable) pairs; create it if new."""
        watched = self._known.get(optimizer)
        if watched is None:
            watched = self._known[optimizer] = WatchedOptimizer(optimizer)
            self.watched.append(watched)
        if not watched.variables:
            watched.variables = [variable for _, variable in pairs]
        if watched.first_count is None:
            watched.first_count = iterations(optimizer)
        return watched

    def updates(self) -> int:
        """Return the number of updates that all optimizers have made."""
        return sum(iterations(watched.optimizer()) or 0 for watched in self.watched)

    def optimizers(self) -> list[Any]:
        """Return all optimizers that are still there."""
        return [optimizer for optimizer in (watched.optimizer() for watched in self.watched) if optimizer is not None]

    def variables(self) -> list[Any]:
        """Return the variables that all optimizers train, and the optimizers' own."""
        alive = [optimizer for optimizer in self.watched if optimizer.optimizer() is not None]
        return list({resource_id(each): plain(each) for optimizer in alive for each in optimizer.updated}.values())


class RequestedStep:
    """The step of which a replay takes the snapshot, numbered as by the trail, which proves the replay."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self._agent, self._training = capture.agent, training
        self.number = capture.settings.take
        self.is_taken = False

    def is_next(self, watched: WatchedOptimizer) -> bool:
        """Return whether the next update of an optimizer is of the step."""
        if self.number is None or self.is_taken:
            return False
        trail = None if self._agent is None else self._agent.shared.get(TensorflowTrail)
        return self.number == (0 if trail is None else trail.steps_of(watched.optimizer()))

    def may_be_in_call(self) -> bool:
        """Return whether the next call of a function may make the step."""
        watched = self._training.watched
        return any(map(self.is_next, watched)) or (not watched and self.number == 0 and not self.is_taken)


def _none() -> None:
    """Stand for a reference to a graph or step that does not exist."""
