"""What is known of a training of TensorFlow 2 and Keras: its steps, the calls that it makes, and its optimizers.

A step begins where a gradient tape is entered, or where Keras or a strategy runs one: in eager code one a thread, in
graphs one a graph that is being built. Until its update, each variable that is written to is held as it was before:
the running statistics, seeds and metrics that a forward pass moves.
"""

from __future__ import annotations

import sys
import weakref
from _thread import _local, get_ident

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.decisions import generators
from ..tensorflow.state import optimizer_variables
from .tensorflow_graphs import OptimizerMemory, drawing, has_numbers, hidden
from .tensorflow_state import as_array, digest, held_or_now, plain, read, resource_id, size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..events import FunctionDue

ALWAYS, SOMETIMES = "always", "sometimes"  # when a call of a function has an update
MAX_FETCHED = 64
MAX_CALLS = 64
LARGEST = 1 << 18  # bytes that an update writes to, as they are copied at each step


class StepValues:
    """What a step worked on and came to, in tensors of a graph or in values."""

    def __init__(self, batches: Iterable[tuple[str, Any]] = ()) -> None:
        self.batches = list(batches)
        self.replicas: list[int] = []  # whose batches these are, in their order
        self.losses: list[Any] = []
        self.unscaled: Any = None  # the loss before a loss scale
        self.activations: list[tuple[str, Any]] = []  # of layers: whether their outputs are finite
        self.drawn: list[tuple[str, Any]] = []  # by operations whose random states nobody can read: type and numbers

    @property
    def tested(self) -> list[Any]:
        """The losses that must be finite."""
        return self.losses if self.unscaled is None else [self.unscaled]

    @property
    def loss(self) -> Any:
        """The loss: of several the last, before a loss scale where there is one."""
        return self.tested[-1] if self.tested else None


class StepVariables:
    """The variables that a step writes to, as they were before."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.held: dict[int, tuple[Any, Any]] = {}  # by resource_id: a variable and its value before the step
        self.updated: dict[int, tuple[Any, Any]] = {}  # the same of what optimizers have updated within it
        self.earlier: dict[int, tuple[Any, Any]] = {}  # the same at the start of steps before it in the same graph
        self.count = 0  # how many were held before the update

    def hold(self, variable: Any) -> None:
        """Keep the value that a variable has, unless it was kept."""
        key = resource_id(variable)
        if key not in self.held:
            self.held[key] = variable, self._read(variable)

    def hold_updated(self, variables: Iterable[Any]) -> None:
        """Keep what an optimizer is about to update, for a further one in the same step."""
        for variable in map(plain, variables):
            key = resource_id(variable)
            if key not in self.held and key not in self.updated:
                self.updated[key] = variable, self._read(private_api.primary(variable))

    @property
    def before(self) -> dict[int, tuple[Any, Any]]:
        """What is known of the start of all: of a graph the start of its call."""
        return {**self.held, **self.updated, **self.earlier}

    def _read(self, variable: Any) -> Any:
        raw = sys.modules["tensorflow"].raw_ops
        if self._graph is None:
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        with self._graph.as_default():  # not in the loop or branch that may be built within it
            return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


class TensorFlowStep:
    """One step, in the graph that it is built in; None: in eager code."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.values = StepValues()
        self.variables = StepVariables(graph)
        self.tapes = 0  # that are open
        self.pinned = False  # it has an end of its own, which somebody tells
        self.differentiated = False
        self.applied = False
        self.passes = False  # what is written now is the update itself
        self.finite: Any = None  # once it was tested
        self.together: Any = None  # the replicas that share it
        self.optimizers: list[Any] = []  # of eager code: which have tested their gradients, in order

    @property
    def over(self) -> bool:
        """Whether the next tape begins another step."""
        return not self.pinned and not self.tapes and (self.applied or not self.differentiated)

    def hold(self, variable: Any) -> None:
        """Keep the value of a variable that is about to be written to, but not by the update."""
        if not self.passes:
            try:
                self.variables.hold(variable)
            except Exception as error:  # a variable without a value, as at its first assignment
                pass_on(error)


# ---- calls -----------------------------------------------------------------------------------------------------------


class FunctionRecord:
    """What is known of a function that eager code calls, or that XLA compiles, since its graphs were built."""

    def __init__(self) -> None:
        self.trains: bool | None = None  # whether it has an update; None: it was not called yet
        self.differentiates = False  # computes gradients
        self.updates: str | None = None  # when
        self.graph: Callable[[], Any] = _none  # that computes the gradients
        self.written: dict[int, Any] = {}  # by resource_id: variables that it writes to before an update
        self.sites: list[Any] | None = None  # the updates in it, where XLA compiles it; None: they are not known yet
        self.moved: list[Any] | None = None  # what these write to; None: it is not known yet
        self.reveals: Any = None  # a function that gives the gradients of its steps

    @classmethod
    def of(cls, noted_at: Any) -> FunctionRecord:
        """Return what is known of a function, as noted at this object."""
        try:
            record: FunctionRecord = noted_at._reprokit_record
        except AttributeError:
            record = noted_at._reprokit_record = cls()
        return record

    @property
    def adds_up(self) -> bool:
        """Whether there are calls whose gradients wait for the update of another."""
        return self.differentiates and self.updates != ALWAYS

    def has_update(self, *, sometimes: bool) -> None:
        """An update was built into it."""
        self.trains = True
        self.updates = SOMETIMES if sometimes else self.updates or ALWAYS


class OutermostCall:
    """An outermost call of a training from eager code: a Keras train_function, or a function of the script's."""

    def __init__(self, due: FunctionDue) -> None:
        self.model = due.model  # whose step it takes, of Keras' fit
        self.arguments = due.arguments
        self.keywords = due.keywords
        self.thread = get_ident()
        self.traced = FunctionRecord.of(due.notes)
        self.pending: BaseException | None = None  # what ends the training when the call has come back
        self.captured: TensorFlowStep | None = None  # a step of it that was not applied
        self.steps: Sequence[TensorFlowStep] = ()  # that were built in it
        self.window: AccumulationWindow | None = None
        self.rolls_back = False
        self._function = due.function
        self._call = due.call

    @property
    def trains(self) -> bool:
        """Whether it may take a part of a step."""
        return self.model is not None or self.traced.trains is not False or self.traced.differentiates

    @property
    def value(self) -> Any:
        """Its arguments as one value: the only one as it is."""
        return one_of(self.arguments, self.keywords)

    def run(self, arguments: tuple[Any, ...] | None = None, keywords: dict[str, Any] | None = None) -> Any:
        """Make the call, with other arguments where there are some."""
        given = self.arguments if arguments is None else arguments
        return self._call(self._function, *given, **(self.keywords if keywords is None else keywords))


def one_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the arguments of a call as one value: the only one as it is."""
    if len(arguments) == 1 and not keywords:
        return arguments[0]
    return [*arguments, keywords] if keywords else tuple(arguments)


class AccumulationWindow:
    """The calls of one thread since the last update, and what they write to as it was before the first of them."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count  # all updates so far
        self._counted = 0
        self.calls: list[OutermostCall] = []
        self.before: dict[int, Any] = {}

    def opens(self, call: OutermostCall) -> None:
        """A call begins."""
        traced = call.traced
        if not traced.adds_up:
            return
        if not self.calls:
            self.before = {key: read(variable) for key, variable in traced.written.items()}
        if traced.updates == SOMETIMES:
            self._counted = self._count()

    def closes(self, call: OutermostCall) -> None:
        """It is over: with the update, or one more to wait for it."""
        traced = call.traced
        if traced.adds_up and call.captured is None and (traced.updates is None or self._counted == self._count()):
            self.calls = [*self.calls, call][-MAX_CALLS:]
        elif self.calls and (call.captured is not None or traced.updates is not None):
            self.calls, self.before = [], {}

    @property
    def unread(self) -> list[str]:
        """The operations of its calls that draw from states which nobody can read."""
        graphs = {call.traced.graph() for call in self.calls} - {None}
        return [name for graph in graphs for name in [*[each.name for each in drawing(graph)], *hidden(graph)]]


class FetchedBatches:
    """What data sets gave for the step in eager code that is under way, or comes next."""

    def __init__(self) -> None:
        self._given: list[tuple[Any, Any]] = []  # by which iterator
        self._after: Callable[[], TensorFlowStep | None] = _none  # the last step when the first of them was given

    @property
    def values(self) -> list[Any]:
        """In the order of time."""
        return [value for _, value in self._given]

    def add(self, iterator: Any, value: Any, last: TensorFlowStep | None) -> None:
        """An iterator gave this; a step has one batch of each iterator, unless it adds gradients up."""
        is_again = any(one is iterator for one, _ in self._given)
        if not _accumulates(last) and (last is not self._after() or is_again):
            self._given = []
        if not self._given:
            self._after = _none if last is None else weakref.ref(last)
        self._given = [*self._given, (iterator, value)][-MAX_FETCHED:]

    def ended(self, iterator: Any, last: TensorFlowStep | None) -> None:
        """An iterator is at its end: what comes now is no step of its last batch."""
        if not _accumulates(last):
            self._given = [one for one in self._given if one[0] is not iterator]


def _accumulates(step: TensorFlowStep | None) -> bool:
    return step is not None and step.differentiated and not step.applied


# ---- optimizers ------------------------------------------------------------------------------------------------------


class WatchedOptimizer:
    """What is known of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.first: int | None = None  # its count of steps when it was first seen
        self.skipped = 0
        self.variables: list[Any] = []  # what it trains
        self.shares = False  # its eager steps with another optimizer, which updates behind it
        self.moved: dict[int, Any] = {}  # by resource_id: what else its steps write to, as sums of gradients
        self._memory: OptimizerMemory | None = None
        self._is_held: bool | None = None

    @property
    def memory(self) -> OptimizerMemory:
        """The variables of ours beside it."""
        if self._memory is None:
            self._memory = OptimizerMemory()
        return self._memory

    @property
    def alive(self) -> list[Any]:
        """What it trains, while it is there."""
        return [] if self.optimizer() is None else self.variables

    @property
    def remembering(self) -> list[Any]:
        """The variables of ours, as far as there are some."""
        return [] if self._memory is None else self._memory.variables

    @property
    def updated(self) -> list[Any]:
        """What its update writes to."""
        return [*self.variables, *optimizer_variables(self.optimizer())]

    @property
    def is_held(self) -> bool:
        """Whether all that its update writes to is held before, and its variables are tested behind."""
        if self._is_held is None:
            self._is_held = sum(map(size_of, self.updated)) <= LARGEST
        return self._is_held

    def last_losses(self) -> list[float]:
        """Of its good steps."""
        return [] if self._memory is None else self._memory.last_losses()


def iterations(optimizer: Any, held: dict[int, Any] | None = None) -> int | None:
    """Return how many updates an optimizer has made, or had where its counter was held; None before it is built."""
    try:
        counter = private_api.counter(getattr(optimizer, "inner_optimizer", optimizer))
        return int(as_array(held_or_now(counter, held or {})))
    except Exception as error:  # not built, or gone
        pass_on(error)
        return None


# ---- all of it -------------------------------------------------------------------------------------------------------


class ThreadState(_local):
    """What is under way in a thread."""

    call: OutermostCall | None = None  # outermost
    step: TensorFlowStep | None = None  # of its eager code
    compiled: Any = None  # the record of a function that is being called
    window: AccumulationWindow | None = None

    def __init__(self) -> None:
        self.fetched = FetchedBatches()


class TrainingState:
    """The steps and calls under way, and the optimizers, of one process."""

    def __init__(self) -> None:
        self.here = ThreadState()
        self.calls: list[OutermostCall] = []
        self.order: list[WatchedOptimizer] = []  # as they were first seen
        self.begun: list[Callable[[TensorFlowStep], object]] = []  # called with each step in eager code that begins
        self._known: weakref.WeakKeyDictionary[Any, WatchedOptimizer] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.calls.clear()
        self.order.clear()
        self._known = weakref.WeakKeyDictionary()

    # Steps and calls

    def step(self) -> TensorFlowStep | None:
        """Return the step of this thread or of the graph that is being built."""
        if private_api.executing_eagerly():
            return self.here.step
        graph = private_api.default_graph()
        while graph is not None:
            found: TensorFlowStep | None = getattr(graph, "_reprokit_step", None)
            if found is not None or type(graph).__name__ == "FuncGraph":  # a function's, which hands out no tensors
                return found
            graph = getattr(graph, "outer_graph", None)
        return None

    def begin_step(self) -> TensorFlowStep:
        """Begin a step here."""
        if private_api.executing_eagerly():
            step = self.here.step = TensorFlowStep(None)
            for told in self.begun:
                told(step)
        else:
            graph = private_api.default_graph()
            last = getattr(graph, "_reprokit_step", None)
            step = graph._reprokit_step = TensorFlowStep(graph)
            step.variables.earlier = {} if last is None else last.variables.before
        for generator in generators():
            step.variables.hold(private_api.state(generator))
        return step

    def call(self) -> OutermostCall | None:
        """Return the call under way in this thread; else, as in a thread of TensorFlow's own, the last that began."""
        call = self.here.call
        return call if call is not None or not self.calls else self.calls[-1]

    def call_with(self, given: list[Any], traced: FunctionRecord | None) -> OutermostCall | None:
        """Return the call under way of a function that was given these numbers: threads may call one at once."""
        if self.here.call is None:
            calls = tuple(self.calls)  # threads begin and end some meanwhile
            calls = tuple([call for call in calls if call.traced is traced]) or calls
            if len(calls) == 1:
                return calls[0]
            wanted = [digest(one) for one in given]
            for call in calls:
                flat = sys.modules["tensorflow"].nest.flatten([call.arguments, call.keywords], expand_composites=True)
                if wanted == [digest(one) for one in flat if has_numbers(one)]:
                    return call
        return self.call()

    # Optimizers

    def know(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> WatchedOptimizer:
        """Return what is known of an optimizer, which applies these gradients to these variables."""
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = WatchedOptimizer(optimizer)
            self.order.append(known)
        if not known.variables:
            known.variables = [variable for _, variable in pairs]
        if known.first is None:
            known.first = iterations(optimizer)
        return known

    def updates(self) -> int:
        """Count the updates that all optimizers have made."""
        return sum(iterations(known.optimizer()) or 0 for known in self.order)

    def optimizers(self) -> list[Any]:
        """Return all optimizers that are still there."""
        return [one for one in (known.optimizer() for known in self.order) if one is not None]

    def variables(self) -> list[Any]:
        """Return what all optimizers train, and their own variables."""
        alive = [known for known in self.order if known.optimizer() is not None]
        return list({resource_id(one): plain(one) for known in alive for one in known.updated}.values())


def _none() -> None:
    """What there is none of: a graph, or a step."""
