"""The events of a training, common to all frameworks, and the dispatch to their listeners.

A framework's folder turns its hooks and calls into these events; the features of a run are listeners, which use no
private name of a framework. Tensors, optimizers and loaders in an event are the framework's own objects, or records of
them. An event without listeners has an empty tuple of handlers, and is not even created.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    Handler = Callable[[Any], object]

    class EventListener(Protocol):
        """Handles events; if it has a method failed(error, handler), that is called when a handler raises an error."""

        def handlers(self) -> dict[type[TrainingEvent], Handler]:
            """Return the handler of each event that the listener handles."""

    Handlers = tuple[tuple[Callable[[Exception, Handler], object], Handler], ...]  # pairs: error callback, handler


APPLY, SKIP = "APPLY", "SKIP"  # the answers to UpdateDue; None means APPLY


class NotApplied(BaseException):
    """Raised within a closure to abort an update whose gradients must not be applied."""


class TrainingEvent:
    """Base class of events that have happened or are about to."""

    __slots__ = ()


@dataclass(eq=False)
class LoaderBegan(TrainingEvent):
    """A data loader is about to be iterated; later events of the iteration refer to this one."""

    loader: object | None  # None after all handlers were called, so that events keep no loader alive
    place: tuple[str, int]  # file and line
    workers: int | None
    notes: dict[object, Any] = field(default_factory=dict)  # what listeners know of this iteration, by listener
    facts: dict[str, object] | None = None  # how it chooses its samples, if its adapter knows that
    counters: list[Any] = field(default_factory=list)  # objects whose `steps` count the updates with its batches


@dataclass(eq=False)
class BatchDue(TrainingEvent):
    """A data loader is about to fetch a batch; a handler may replace it."""

    iterator: object
    began: LoaderBegan | None = None
    replace: Any = None  # returns the other batch
    wants_own: bool = True  # whether the loader's own batch is fetched too, and passed to replace
    outlasts: bool = False  # whether replace is called even if the loader is exhausted


@dataclass(eq=False)
class BatchFetched(TrainingEvent):
    """A data loader has returned a batch."""

    batch: object
    began: LoaderBegan | None
    indices: Any = None  # of its samples in the data set, if a sampler chose them
    worker: int | None = None  # that made the batch, if known
    digest: int | None = None  # of this batch, if it is computed already


@dataclass(eq=False)
class BatchMoved(TrainingEvent):
    """A library has copied a batch to a device."""

    before: object
    after: object


@dataclass(eq=False)
class LoaderExhausted(TrainingEvent):
    """A data loader has no further batch; a prefetching loop may still have some."""

    began: LoaderBegan | None


@dataclass(eq=False)
class ModelCalled(TrainingEvent):
    """An outermost module is about to compute from these arguments."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    has_gradients: bool  # whether a backward pass can go through the call
    module: Any = None


@dataclass(eq=False)
class ModelReturned(TrainingEvent):
    """The module of the last ModelCalled with gradients has returned this."""

    output: Any


@dataclass(eq=False)
class ForwardBegan(TrainingEvent):
    """An outermost module, or a compiled function, is about to compute; a handler may replace the arguments.

    In TensorFlow a gradient tape is about to record, or a function that updates nothing to be called.
    """

    module: Any  # for a compiled function the module whose method it is, or None
    arguments: Any
    keywords: Any
    is_compiled: bool = False  # a compiled function; events inside it are not reported
    state: Any = None  # set by a handler, for its use in ForwardEnded


@dataclass(eq=False)
class ForwardEnded(TrainingEvent):
    """A forward computation has ended or failed; PyTorch reports this for compiled functions only."""

    began: ForwardBegan
    error: BaseException | None


@dataclass(eq=False)
class InputsGiven(TrainingEvent):
    """Any module is about to compute from these arguments; in Keras: a step has, from inputs and targets."""

    module: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(eq=False)
class OutputComputed(TrainingEvent):
    """Any module has computed this output."""

    module: Any
    output: Any


@dataclass(eq=False)
class LayerDue(TrainingEvent):
    """A layer of Keras is about to compute, possibly in a graph under construction or within another one."""

    layer: Any
    call: Callable[..., Any]  # calls the layer with its arguments; a handler may replace it


@dataclass(eq=False)
class BackwardBegan(TrainingEvent):
    """A backward pass is about to begin from one or several tensors."""

    tensors: Any
    number: tuple[str, float] | None = None  # dtype and value of the loss, if known already
    tape: Any = None  # of TensorFlow


@dataclass(eq=False)
class DifferentiationDue(TrainingEvent):
    """A gradient tape is about to compute gradients, possibly in a graph under construction."""

    call: Callable[..., Any]  # called with the tape, the target and the sources; a handler may replace it


@dataclass(eq=False)
class LossComputed(TrainingEvent):
    """A backward pass is about to begin from this loss, a tensor with readable values."""

    loss: Any
    is_here: bool  # whether it is in host memory
    number: tuple[str, float] | None = None  # its dtype and value, if known already
    began: LoaderBegan | None = None  # the iteration whose batch this thread fetched last


@dataclass(eq=False)
class BackwardEnded(TrainingEvent):
    """A backward pass has ended or failed."""

    has_failed: bool = False


@dataclass(eq=False)
class LossScaled(TrainingEvent):
    """A loss was scaled, so that its gradients do not underflow."""

    loss: Any
    scaled: Any


@dataclass(eq=False)
class ClippingDue(TrainingEvent):
    """Gradients of these parameters are about to be clipped. After SKIP they are neither checked nor used further."""

    parameters: Any
    state: Any = None  # set by a handler, for its use in GradientsClipped


@dataclass(eq=False)
class GradientsClipped(TrainingEvent):
    """Gradients were clipped, and no handler had answered SKIP."""

    due: ClippingDue


class TensorsChange(TrainingEvent):
    """Gradients or parameters are about to be changed in place."""


@dataclass(eq=False)
class OptimizerMade(TrainingEvent):
    """An optimizer was created."""

    optimizer: Any
    target: Any = None  # the framework's own object


@dataclass(eq=False)
class OptimizerNamed(TrainingEvent):
    """An optimizer steps for the first time; the models with its parameters are known now."""

    optimizer: Any
    models: list[Any]


@dataclass(eq=False)
class UpdateDue(TrainingEvent):
    """An optimizer is about to update its parameters. A handler may answer SKIP to prevent it."""

    optimizer: Any
    target: Any = None  # the framework's own object
    closure: Any = None  # computes the loss; a handler may replace it
    is_nested: bool = False  # whether within another optimizer's update
    result: Any = None  # returned if the update is skipped
    state: Any = None  # set by a handler, for its use in UpdateDone
    began: LoaderBegan | None = None  # the iteration whose batch this thread fetched last
    previous: LoaderBegan | None = None  # likewise at this thread's last update


@dataclass(eq=False)
class GradientsDue(TrainingEvent):
    """Gradients, each with its variable, are about to be applied, possibly in a graph under construction."""

    optimizer: Any
    pairs: list[tuple[Any, Any]]
    update: Callable[[], Any] | None = None  # applies them; a handler may replace it, as by a conditional one


@dataclass(eq=False)
class GradientsApplied(TrainingEvent):
    """Gradients, each with its variable, were applied, possibly in a graph under construction."""

    optimizer: Any
    pairs: list[tuple[Any, Any]]


@dataclass(eq=False)
class TrainFunctionDue(TrainingEvent):
    """Keras is about to create the train function of a model."""

    model: Any
    make: Callable[..., Any]  # called with the model; a handler may replace it


@dataclass(eq=False)
class FunctionDue(TrainingEvent):
    """A possibly compiled function is about to be called, possibly in a graph under construction."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    call: Callable[..., Any]  # calls the function with its arguments; a handler may replace it
    model: Any = None  # whose steps the function executes, if any
    notes: Any = None  # an object for attributes of listeners, with the same lifetime; by default the function

    def __post_init__(self) -> None:
        if self.notes is None:
            self.notes = self.function


@dataclass(eq=False)
class ExecutionDue(TrainingEvent):
    """A compiled function is about to be called, as the last of all that is done for it; within others, too."""

    function: Any
    call: Callable[..., Any]  # calls the function with its arguments; a handler may replace it


@dataclass(eq=False)
class FirstCallDue(TrainingEvent):
    """A function of the script is about to be called for the first time; a handler may build it before."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(eq=False)
class ReplicasDue(TrainingEvent):
    """A strategy is about to let its replicas call a function."""

    strategy: Any
    function: Callable[..., Any]
    call: Callable[..., Any]  # lets the replicas call a function; a handler may replace it


@dataclass(eq=False)
class VariableChanges(TrainingEvent):
    """A variable is about to be assigned, possibly in a graph under construction."""

    variable: Any


@dataclass(eq=False)
class RandomDrawn(TrainingEvent):
    """An operation whose random state cannot be read drew numbers; a handler may replace them."""

    kind: str  # type of the operation
    drawn: Any


@dataclass(eq=False)
class UpdateDone(TrainingEvent):
    """An optimizer has updated its parameters."""

    optimizer: Any
    due: UpdateDue | None = None  # if handlers may skip updates


@dataclass(eq=False)
class StepsReached(TrainingEvent):
    """An optimizer has made as many updates as its record's `alarm` asks for, or more."""

    optimizer: Any


@dataclass(eq=False)
class UpdateEnded(TrainingEvent):
    """An update, done or skipped, has ended, for which a handler had replaced the closure."""

    due: UpdateDue


@dataclass(eq=False)
class PartDue(TrainingEvent):
    """An optimizer is about to execute one of its sub-steps. A handler may answer SKIP to prevent it."""

    target: Any
    name: str
    state: Any = None  # set by a handler, for its use in PartDone


@dataclass(eq=False)
class PartDone(TrainingEvent):
    """A sub-step of an optimizer was executed."""

    due: PartDue


@dataclass(eq=False)
class ScaledUpdateEnded(TrainingEvent):
    """A gradient scaler has let an optimizer update, or skipped the update because gradients overflowed."""

    scaler: Any
    target: Any
    has_updated: bool


@dataclass(eq=False)
class ScalerMade(TrainingEvent):
    """A gradient scaler was created."""

    scaler: Any


@dataclass(eq=False)
class ScheduleMade(TrainingEvent):
    """A learning rate schedule was created."""

    schedule: Any


@dataclass(eq=False)
class OptimizerEnded(TrainingEvent):
    """An optimizer was deleted, or the process ends."""

    optimizer: Any


@dataclass(eq=False)
class ModelEnded(TrainingEvent):
    """A model was deleted, or the process ends."""

    model: Any


@dataclass(eq=False)
class EpochEnded(TrainingEvent):
    """All steps of one iteration of a data loader, or of an epoch of Keras' fit, are done."""

    name: str  # name of the loader or of the call of fit
    number: int
    steps: int | None
    values: dict[str, object]
    records: list[Any]  # models and optimizers whose tensors are still as at the end of the epoch


@dataclass(eq=False)
class EvaluationDue(TrainingEvent):
    """A model of Keras is about to evaluate or to predict."""

    is_prediction: bool


@dataclass(eq=False)
class EvaluationEnded(TrainingEvent):
    """A model of Keras has evaluated or predicted, outside of fit."""


@dataclass(eq=False)
class ResultsReported(TrainingEvent):
    """A call for a whole training or evaluation has returned these values."""

    kind: str
    name: str
    values: dict[str, Any]


@dataclass(eq=False)
class RoundComputed(TrainingEvent):
    """A booster has computed a round."""

    round: Any
    series: Any  # the RoundSeries that it belongs to


@dataclass(eq=False)
class RoundScored(TrainingEvent):
    """A round was evaluated."""

    round: Any
    scores: dict[str, tuple[float, str]]  # by "data-metric": value and mode
    sets: dict[str, Any]  # evaluation data by name, as accepted by the round


# Each event, and the attribute of Events that holds its handlers.
_ATTRIBUTES = {
    event: re.sub("(?<=.)(?=[A-Z])", "_", event.__name__).lower() for event in TrainingEvent.__subclasses__()
}


class Events:
    """The handlers of each event, as a tuple, in the order in which listeners were added."""

    def __init__(self, failed: Callable[[Handler, Exception], object] = lambda _handler, _error: None) -> None:
        self._failed = failed  # called for errors in handlers of listeners without a method failed
        self._listeners: tuple[EventListener, ...] = ()
        self._muted: dict[EventListener, frozenset[type[TrainingEvent]]] = {}
        self._gates: list[tuple[Any, str, Sequence[str]]] = []
        self.arrange()

    def add(self, listener: EventListener) -> None:
        """Add a listener."""
        self._listeners += (listener,)
        self.arrange()

    def remove(self, listener: EventListener) -> None:
        """Remove a listener."""
        self._listeners = tuple([registered for registered in self._listeners if registered is not listener])
        self.arrange()

    def mute(self, listener: EventListener, events: frozenset[type[TrainingEvent]]) -> None:
        """Let a listener hear none of these events from now on, and again those that it had muted before."""
        self._muted[listener] = events
        arrangement = self._arrangements.get(frozenset(self._muted.items()))
        if arrangement is None:
            self._use()
            return
        self.__dict__.update(arrangement[0])  # listeners mute the same events again and again
        for gate, name, is_heard in arrangement[1]:
            setattr(gate, name, is_heard)

    def may_hear(self, *events: type[TrainingEvent]) -> bool:
        """Return whether a listener handles one of these events, even if it mutes it at present."""
        return any(event in listener.handlers() for listener in self._listeners for event in events)

    def set_by_handlers(self, gate: Any, attribute: str, names: Sequence[str]) -> None:
        """Keep an attribute of a gate true while one of these events, by their attributes here, has a handler."""
        self._gates.append((gate, attribute, names))
        self.arrange()

    def arrange(self) -> None:
        """Rebuild the tuples of handlers from the listeners."""
        self._arrangements: dict[frozenset[Any], tuple[dict[str, Any], list[tuple[Any, str, bool]]]] = {}
        self._use()

    def _use(self) -> None:
        handlers = self._handlers()
        gates = [(gate, name, any(handlers[event] for event in events)) for gate, name, events in self._gates]
        self._arrangements[frozenset(self._muted.items())] = handlers, gates
        self.__dict__.update(handlers)
        for gate, name, is_heard in gates:
            setattr(gate, name, is_heard)

    def _handlers(self) -> dict[str, Any]:
        handlers: dict[type[TrainingEvent], tuple[Any, ...]] = {}
        for listener in self._listeners:
            on_error, muted = self._on_error(listener), self._muted.get(listener, ())
            for event, handler in listener.handlers().items():
                if event not in muted:
                    handlers[event] = (*handlers.get(event, ()), (on_error, handler))
        return {name: handlers.get(event, ()) for event, name in _ATTRIBUTES.items()}

    def _on_error(self, listener: EventListener) -> Callable[[Exception, Handler], object]:
        return getattr(listener, "failed", lambda error, handler: self._failed(handler, error))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Handlers:
            """Return the handlers of an event: loss_computed has those of LossComputed."""


def tell(handlers: Handlers, event: TrainingEvent) -> str | None:
    """Call the handlers; return SKIP if one of them does."""
    answer = None
    for failed, handle in handlers:
        try:
            if handle(event) is SKIP:
                answer = SKIP
        except Exception as error:
            handler_failed(failed, error, handle)
    return answer


def handler_failed(failed: Callable[[Exception, Handler], object], error: Exception, handler: Handler) -> None:
    """Tell a listener of an error in its handler; raise those of the script's signal handlers again."""
    failed(error, handler)
    pass_on(error)
