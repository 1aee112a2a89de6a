"""What is known of a training of TensorFlow 2 and Keras: the calls it makes, its optimizers, where they update."""

from __future__ import annotations

import sys
import weakref
from _thread import _local, get_ident

from ..tensorflow import private_api
from ..tensorflow.state import optimizer_variables
from .checks import NormMean
from .tensorflow_checks import OptimizerMemory
from .tensorflow_graph import has_numbers
from .tensorflow_random import drawing, hidden
from .tensorflow_state import as_array, digest, held_or_now, plain, read, resource_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]

ALWAYS, SOMETIMES = "always", "sometimes"  # when a call of a function has an update
MAX_FETCHED = 64


class FunctionRecord:
    """What is known of a function that eager code calls, since its graphs were built."""

    __slots__ = ("differentiates", "graph", "trains", "updates", "written")

    def __init__(self) -> None:
        self.trains: bool | None = None  # whether it has an update; None: it was not called yet
        self.differentiates = False  # computes gradients
        self.updates: str | None = None  # when
        self.graph: Callable[[], Any] = _none  # that computes the gradients
        self.written: dict[int, Any] = {}  # by resource_id: variables that it writes to before an update

    @property
    def adds_up(self) -> bool:
        """Whether there are calls whose gradients wait for the update of another."""
        return self.differentiates and self.updates != ALWAYS

    def has_update(self, *, sometimes: bool) -> None:
        """An update was built into it."""
        self.trains = True
        self.updates = SOMETIMES if sometimes else self.updates or ALWAYS


class FetchedBatches:
    """What data sets gave for the step in eager code that is under way, or comes next."""

    def __init__(self) -> None:
        self._given: list[tuple[int, Any]] = []  # by which iterator
        self._after: Callable[[], TensorFlowStep | None] = (
            _none  # the step that was the last when the first of them was given
        )

    @property
    def values(self) -> list[Any]:
        """In the order of time."""
        return [value for _, value in self._given]

    def add(self, iterator: Any, value: Any, last: TensorFlowStep | None) -> None:
        """An iterator gave this; a step has one batch of each iterator, unless it adds gradients up."""
        number = id(iterator)
        if not _accumulates(last) and (last is not self._after() or number in [one for one, _ in self._given]):
            self._given = []
        if not self._given:
            self._after = _none if last is None else weakref.ref(last)
        self._given = [*self._given, (number, value)][-MAX_FETCHED:]

    def ended(self, iterator: Any, last: TensorFlowStep | None) -> None:
        """An iterator is at its end: what comes now is no step of its last batch."""
        if not _accumulates(last):
            self._given = [one for one in self._given if one[0] != id(iterator)]


def _accumulates(step: TensorFlowStep | None) -> bool:
    return step is not None and step.differentiated and not step.applied


class ThreadCalls(_local):
    """What is under way in a thread."""

    call: OutermostCall | None = None  # outermost
    compiled: Any = None  # function that is being called
    applies = False  # an optimizer is
    window: AccumulationWindow | None = None

    def __init__(self) -> None:
        self.fetched = FetchedBatches()


class OutermostCall:
    """An outermost call of a training from eager code: a Keras train_function, or a function of the script's."""

    pending: BaseException | None = None  # what ends the training when the call has come back
    trains = True
    rolls_back = False
    captured: TensorFlowStep | None = None  # a step of it that was not applied
    steps: Sequence[TensorFlowStep] = ()  # that were built in it
    window: AccumulationWindow | None = None

    def __init__(
        self,
        origin: str,
        model: Any,
        function: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        by: Function | None = None,
        traced: FunctionRecord | None = None,
    ) -> None:
        self.origin = origin
        self.model = model
        self.function = function
        self.arguments = arguments
        self.keywords = keywords
        self.thread = get_ident()
        self.by = by  # what calls the function, where not simply itself
        if traced is None:
            try:
                traced = function._reprokit_traced
            except AttributeError:
                traced = function._reprokit_traced = FunctionRecord()
        self.traced = traced

    def run(self, arguments: tuple[Any, ...] | None = None, keywords: dict[str, Any] | None = None) -> Any:
        """Make the call, with other arguments where there are some."""
        given = self.arguments if arguments is None else arguments
        if self.by is None:
            return self.function(*given)
        return self.by(self.function, *given, **(self.keywords if keywords is None else keywords))


class WatchedOptimizer:
    """What is known of an optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.first: int | None = None  # its count of steps when it was first seen
        self.skipped = 0
        self.variables: list[Any] = []  # what it trains
        self.losses: list[Any] = []  # the last, of eager code
        self.finite: tuple[Any, Any] = (None, None)
        self.shares = False  # its eager steps with another optimizer, which updates behind it
        self.moved: dict[int, Any] = {}  # by resource_id: what else its steps write to, as sums of gradients
        self.norms = NormMean()
        self._memory: OptimizerMemory | None = None

    @property
    def memory(self) -> OptimizerMemory:
        """The variables of ours in its graphs."""
        if self._memory is None:
            self._memory = OptimizerMemory()
        return self._memory

    @property
    def alive(self) -> list[Any]:
        """What it trains, while it is there."""
        return [] if self.optimizer() is None else self.variables

    @property
    def remembering(self) -> list[Any]:
        """The variables of ours in its graphs, as far as there are some."""
        return [] if self._memory is None else self._memory.variables

    def last_losses(self) -> list[float]:
        """Of its good steps."""
        if self._memory is not None:
            return self._memory.last_losses()
        return [float(as_array(loss).astype("float64").mean()) for loss in self.losses]


class TrainingState:
    """The calls under way and the optimizers of one process."""

    def __init__(self) -> None:
        self.here = ThreadCalls()
        self.calls: list[OutermostCall] = []
        self.order: list[WatchedOptimizer] = []  # as they were first seen
        self._known: weakref.WeakKeyDictionary[Any, WatchedOptimizer] = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.calls, self.order = [], []
        self._known = weakref.WeakKeyDictionary()

    def current(self) -> OutermostCall | None:
        """The call under way in this thread; else, as in a thread of TensorFlow's own, the last that began."""
        call = self.here.call
        return call if call is not None or not self.calls else self.calls[-1]

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
        found: dict[int, Any] = {}
        for known in self.order:
            optimizer = known.optimizer()
            if optimizer is not None:
                for variable in [*known.variables, *optimizer_variables(optimizer)]:
                    found[resource_id(variable)] = plain(variable)
        return list(found.values())

    def call_with(self, given: list[Any]) -> OutermostCall | None:
        """The call under way that was given these numbers: threads may call the same graph at once."""
        if self.here.call is None and len(self.calls) > 1:
            wanted = [digest(one) for one in given]
            for call in self.calls:
                flat = sys.modules["tensorflow"].nest.flatten([call.arguments, call.keywords], expand_composites=True)
                if wanted == [digest(one) for one in flat if has_numbers(one)]:
                    return call
        return self.current()


class UpdateSite:
    """A place where a graph applies gradients."""

    def __init__(
        self, known: WatchedOptimizer, variables: list[Any], step: TensorFlowStep, call: OutermostCall | None
    ) -> None:
        self.known = known
        self.step = step
        self.variables = variables
        self.model = None if call is None else call.model
        self.activations = [name for name, _ in step.values.activations]
        self.draws: list[str] = []  # types of operations with a random state of their own, whose numbers are handed out
        self.moved: dict[int, tuple[Any, Any]] = {}  # what else the compiled step writes to

    def drawn(self) -> list[Any]:
        """The numbers of operations with a random state of their own, to be handed out."""
        draws = drawing(self.step.graph)
        self.draws = [draw.type for draw in draws]
        return [draw.outputs[0] for draw in draws]

    @property
    def unreadable(self) -> list[str]:
        """Operations with a random state of their own whose numbers nobody is handed."""
        graph = self.step.graph
        return [operation.name for operation in drawing(graph)[len(self.draws) :]] + hidden(graph)


def iterations(optimizer: Any, held: dict[int, Any] | None = None) -> int | None:
    """How many updates an optimizer has made, or had where its counter was held; None before it is built."""
    try:
        counter = private_api.counter(getattr(optimizer, "inner_optimizer", optimizer))
        return int(as_array(held_or_now(counter, held or {})))
    except Exception:  # not built, or gone
        return None


def _none() -> None:
    """What there is none of: a graph, or a step."""


MAX_CALLS = 64


def unread(calls: list[OutermostCall]) -> list[str]:
    """The operations of calls without an update that draw from states which nobody can read."""
    graphs = {call.traced.graph() for call in calls} - {None}
    return [name for graph in graphs for name in [*[operation.name for operation in drawing(graph)], *hidden(graph)]]


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


def one_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The arguments of a call as one value: the only one as it is."""
    if len(arguments) == 1 and not keywords:
        return arguments[0]
    return [*arguments, keywords] if keywords else tuple(arguments)
