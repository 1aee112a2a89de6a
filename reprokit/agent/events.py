"""What happens in a training, whatever its framework: events, and who listens to them.

A framework's folder turns what happens there into these events; what a run keeps is listeners, which see no private
name of a framework. Tensors, optimizers and loaders in an event are the framework's own objects, or records of them.
Of an event that nobody listens to there is an empty tuple of handlers: it is not even made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .core.signal_errors import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    Handler = Callable[[Any], object]

    class EventListener(Protocol):
        """Somebody who is told of events; failed(error, handler) is called, if there is one, when a handler fails."""

        def handlers(self) -> dict[type[TrainingEvent], Handler]:
            """Return what to call at which event."""

    Handlers = tuple[tuple[Callable[[Exception, Handler], object], Handler], ...]  # each behind who is told of failures


APPLY, SKIP = "APPLY", "SKIP"  # the answers to UpdateDue; None means APPLY


class NotApplied(BaseException):
    """Leaves an update, from within its closure, whose gradients must not be applied."""


class TrainingEvent:
    """Something that has happened, or is about to."""

    __slots__ = ()


@dataclass(eq=False)
class LoaderBegan(TrainingEvent):
    """A data loader is about to be iterated; BatchFetched and LoaderExhausted refer to it."""

    loader: object | None  # None when all were told: nobody's lifetime grows
    place: tuple[str, int]  # file and line
    workers: int | None
    series: object = None  # what the metrics count this iteration to
    epoch: Any = None  # what a capture does
    samples: Any = None  # what the ledger of samples does


@dataclass(eq=False)
class BatchDue(TrainingEvent):
    """A data loader is asked for a batch, in the place of which a handler may give another."""

    iterator: object
    began: LoaderBegan | None = None
    replace: Any = None  # gives the other batch
    wants_own: bool = True  # the loader's own is fetched all the same, and handed to that
    outlasts: bool = False  # the other batch is given even where the loader has none left


@dataclass(eq=False)
class BatchFetched(TrainingEvent):
    """A data loader has given a batch."""

    batch: object
    began: LoaderBegan | None
    indices: Any = None  # of its samples in the data set, where a sampler chose them
    worker: int | None = None  # that made it, where it is known
    digest: int | None = None  # of the batch alone, where the trail has taken it


@dataclass(eq=False)
class LoaderExhausted(TrainingEvent):
    """A data loader has no further batch; a loop that fetches ahead may have batches left."""

    began: LoaderBegan | None


@dataclass(eq=False)
class ModelCalled(TrainingEvent):
    """A model, within no other module, is about to compute from these arguments."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    has_gradients: bool  # whether a backward pass can go through the call
    module: Any = None


@dataclass(eq=False)
class ForwardBegan(TrainingEvent):
    """A module within no other, or a compiled function, is about to compute; a handler may give it other arguments.

    In TensorFlow a gradient tape is about to watch what is computed.
    """

    module: Any  # of a compiled function the one whose method it is, or None
    arguments: Any
    keywords: Any
    is_compiled: bool = False  # a function, within which nothing else is told of
    state: Any = None  # what a handler knows again when the call has ended


@dataclass(eq=False)
class ForwardEnded(TrainingEvent):
    """What began has ended, or failed; PyTorch tells of the end of compiled functions only."""

    began: ForwardBegan
    error: BaseException | None


@dataclass(eq=False)
class InputsGiven(TrainingEvent):
    """A module, be it within another, is about to compute from these; of Keras a step has, from inputs and truths."""

    module: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(eq=False)
class OutputComputed(TrainingEvent):
    """A module, be it within another, has computed this."""

    module: Any
    output: Any


@dataclass(eq=False)
class BackwardBegan(TrainingEvent):
    """A backward pass is about to begin from these tensors, or this one."""

    tensors: Any
    number: tuple[str, float] | None = None  # dtype and value of the loss, where one is at hand


@dataclass(eq=False)
class LossComputed(TrainingEvent):
    """A backward pass is about to begin from this loss, a tensor that has values of its own to read."""

    loss: Any
    is_here: bool  # in the memory of this side
    number: tuple[str, float] | None = None  # its dtype and value, where one is at hand


@dataclass(eq=False)
class BackwardEnded(TrainingEvent):
    """A backward pass has ended, or failed."""

    has_failed: bool = False


@dataclass(eq=False)
class LossScaled(TrainingEvent):
    """A loss was multiplied, so that its gradients do not underflow."""

    loss: Any
    scaled: Any


@dataclass(eq=False)
class ClippingDue(TrainingEvent):
    """Gradients of these parameters are about to be clipped. SKIP: they are not to be judged, nor used."""

    parameters: Any
    state: Any = None  # what a handler knows again when they were clipped


@dataclass(eq=False)
class GradientsClipped(TrainingEvent):
    """Gradients were clipped that nobody skipped."""

    due: ClippingDue


class TensorsChange(TrainingEvent):
    """Gradients or parameters are about to be changed in place."""


@dataclass(eq=False)
class OptimizerMade(TrainingEvent):
    """An optimizer was made."""

    optimizer: Any
    target: Any = None  # the framework's own object


@dataclass(eq=False)
class OptimizerNamed(TrainingEvent):
    """An optimizer steps for the first time, and the models whose parameters it has are known."""

    optimizer: Any
    models: list[Any]


@dataclass(eq=False)
class UpdateDue(TrainingEvent):
    """An optimizer is about to update. Where a handler answers SKIP, it does not."""

    optimizer: Any
    target: Any = None  # the framework's own object
    closure: Any = None  # that computes the loss; a handler may put another in its place
    is_nested: bool = False  # within another optimizer's update
    result: Any = None  # of an update that is not made
    state: Any = None  # what a handler knows again when the update is done


@dataclass(eq=False)
class GradientsDue(TrainingEvent):
    """Gradients, each with its variable, are about to be applied, be it in a graph that is being built."""

    optimizer: Any
    pairs: list[tuple[Any, Any]]
    update: Callable[[], Any] | None = None  # applies them; a handler may put another in its place, with conditions


@dataclass(eq=False)
class GradientsApplied(TrainingEvent):
    """Gradients, each with its variable, were applied, be it in a graph that is being built."""

    optimizer: Any
    pairs: list[tuple[Any, Any]]


@dataclass(eq=False)
class TrainFunctionDue(TrainingEvent):
    """Keras is about to make the function that takes a model's steps."""

    model: Any
    make: Callable[..., Any]  # given the model; a handler may put another in its place


@dataclass(eq=False)
class FunctionDue(TrainingEvent):
    """A function that may be compiled is about to be called, be it in a graph that is being built."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    call: Callable[..., Any]  # calls the function with its arguments; a handler may put another in its place
    model: Any = None  # whose steps it takes, if it is of one
    notes: Any = None  # an object with attributes that lives as long as it; by default the function

    def __post_init__(self) -> None:
        if self.notes is None:
            self.notes = self.function


@dataclass(eq=False)
class FirstCallDue(TrainingEvent):
    """A function of the script's is about to be called first; a handler may have it built before it computes."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


@dataclass(eq=False)
class ReplicasDue(TrainingEvent):
    """A strategy is about to have its replicas call a function."""

    strategy: Any
    function: Callable[..., Any]
    call: Callable[..., Any]  # has replicas call a function; a handler may put another in its place


@dataclass(eq=False)
class VariableChanges(TrainingEvent):
    """A variable is about to be written to, be it in a graph that is being built."""

    variable: Any


@dataclass(eq=False)
class RandomDrawn(TrainingEvent):
    """An operation with a random state of its own, which nobody can read, drew numbers; a handler may give others."""

    kind: str  # of the operation
    drawn: Any


@dataclass(eq=False)
class UpdateDone(TrainingEvent):
    """An optimizer has updated its parameters."""

    optimizer: Any
    due: UpdateDue | None = None  # where handlers may skip updates


@dataclass(eq=False)
class UpdateEnded(TrainingEvent):
    """An update is over, done or not, for which a handler has put another closure in the place of the script's."""

    due: UpdateDue


@dataclass(eq=False)
class PartDue(TrainingEvent):
    """An optimizer that steps in several parts is about to make one. Where a handler answers SKIP, it does not."""

    target: Any
    name: str
    state: Any = None  # what a handler knows again when it was made


@dataclass(eq=False)
class PartDone(TrainingEvent):
    """A part of a step was made."""

    due: PartDue


@dataclass(eq=False)
class ScaledUpdateEnded(TrainingEvent):
    """The scaler of a loss has had an optimizer update, or has left the update out because gradients overflowed."""

    scaler: Any
    target: Any
    has_updated: bool


@dataclass(eq=False)
class ScalerMade(TrainingEvent):
    """A scaler of losses was made."""

    scaler: Any


@dataclass(eq=False)
class ScheduleMade(TrainingEvent):
    """A schedule of a learning rate was made."""

    schedule: Any


@dataclass(eq=False)
class OptimizerEnded(TrainingEvent):
    """An optimizer is gone, or the process ends."""

    optimizer: Any


@dataclass(eq=False)
class ModelEnded(TrainingEvent):
    """A model is gone, or the process ends."""

    model: Any


@dataclass(eq=False)
class EpochEnded(TrainingEvent):
    """All steps on the batches of one iteration of a data loader, or of an epoch of Keras' fit, are done."""

    name: str  # of the loader, or of the call of fit
    number: int
    steps: int | None
    values: dict[str, object]
    records: list[Any]  # of the models and optimizers whose tensors are as the epoch left them


class EvaluationDue(TrainingEvent):
    """Something else than steps may begin, as an evaluation."""


@dataclass(eq=False)
class ResultsReported(TrainingEvent):
    """A call for a whole training or evaluation has returned these."""

    kind: str
    name: str
    values: dict[str, Any]


@dataclass(eq=False)
class RoundComputed(TrainingEvent):
    """A booster has made a round."""

    round: Any
    series: Any  # the rounds that the trail counts it to


@dataclass(eq=False)
class RoundScored(TrainingEvent):
    """A round was evaluated."""

    round: Any
    scores: dict[str, tuple[float, str]]  # by data and metric: value and mode
    sets: dict[str, Any]  # data beside that of the training, as the round takes it


# Each event, and the attribute of Events with its handlers.
_NAMES = {event: re.sub("(?<=.)(?=[A-Z])", "_", event.__name__).lower() for event in TrainingEvent.__subclasses__()}


class Events:
    """The handlers of each event: a tuple an event, in the order in which their listeners came."""

    def __init__(self, failed: Callable[[Handler, Exception], object] = lambda _handler, _error: None) -> None:
        self._failed = failed  # told of what listeners do not hear of themselves
        self._listeners: tuple[EventListener, ...] = ()
        self.arrange()

    def add(self, listener: EventListener) -> None:
        """Tell this listener from now on."""
        self._listeners += (listener,)
        self.arrange()

    def remove(self, listener: EventListener) -> None:
        """Tell it no more."""
        self._listeners = tuple([other for other in self._listeners if other is not listener])
        self.arrange()

    def arrange(self) -> None:
        """Ask listeners again which events they handle."""
        tables = [(listener, listener.handlers()) for listener in self._listeners]
        for event, name in _NAMES.items():
            handlers = [(self._failure_of(listener), table[event]) for listener, table in tables if event in table]
            setattr(self, name, tuple(handlers))

    def _failure_of(self, listener: EventListener) -> Callable[[Exception, Handler], object]:
        return getattr(listener, "failed", lambda error, handler: self._failed(handler, error))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Handlers:
            """Return the handlers of an event: loss_computed has those of LossComputed."""


def tell(handlers: Handlers, event: TrainingEvent) -> str | None:
    """Call the handlers; SKIP where one of them answers so."""
    answer = None
    for failed, handle in handlers:
        try:
            if handle(event) is SKIP:
                answer = SKIP
        except Exception as error:
            failed(error, handle)
            pass_on(error)
    return answer
