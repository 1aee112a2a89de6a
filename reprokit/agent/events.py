"""What happens in a training, whatever its framework: events, and who listens to them.

A framework's folder turns what happens there into these events; what a run keeps is listeners, which see no private
name of a framework. Tensors, optimizers and loaders in an event are the framework's own objects, or records of them.
Of an event that nobody listens to there is an empty tuple of handlers: it is not even made.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    Handler = Callable[[Any], object]

    class EventListener(Protocol):
        """Somebody who is told of events."""

        def handlers(self) -> dict[type[TrainingEvent], Handler]:
            """What to call at which event."""

        def failed(self, error: Exception, handler: Handler) -> None:
            """A handler has failed: the training, and the other listeners, go on."""

    Handlers = tuple[tuple[EventListener, Handler], ...]


APPLY, SKIP = "APPLY", "SKIP"  # the answers to UpdateDue; None means APPLY


class NotApplied(BaseException):
    """Leaves an update, from within its closure, whose gradients must not be applied."""


class TrainingEvent:
    """Something that has happened, or is about to."""

    __slots__ = ()


class LoaderBegan(TrainingEvent):
    """A data loader is about to be iterated; BatchFetched and LoaderExhausted refer to it."""

    __slots__ = ("epoch", "loader", "place", "series", "workers")

    def __init__(self, loader: object, place: tuple[str, int], workers: int | None) -> None:
        self.loader: object | None = loader  # None when all were told: nobody's lifetime grows
        self.place = place  # file and line
        self.workers = workers
        self.series: object = None  # what the metrics count this iteration to
        self.epoch: Any = None  # what a capture does


class BatchDue(TrainingEvent):
    """A data loader is asked for a batch, in the place of which a handler may give another."""

    __slots__ = ("iterator", "replace", "wants_own")

    def __init__(self, iterator: object) -> None:
        self.iterator = iterator
        self.replace: Any = None  # gives the other batch
        self.wants_own = True  # the loader's own is fetched all the same, and handed to that


class BatchFetched(TrainingEvent):
    """A data loader has given a batch."""

    __slots__ = ("batch", "began", "indices")

    def __init__(self, batch: object, began: LoaderBegan | None, indices: Any = None) -> None:
        self.batch = batch
        self.began = began
        self.indices = indices  # of its samples in the data set, where a sampler chose them


class LoaderExhausted(TrainingEvent):
    """A data loader has no further batch; a loop that fetches ahead may have batches left."""

    __slots__ = ("began",)

    def __init__(self, began: LoaderBegan | None) -> None:
        self.began = began


class ModelCalled(TrainingEvent):
    """A model, within no other module, is about to compute from these arguments."""

    __slots__ = ("arguments", "has_gradients", "keywords")

    def __init__(self, arguments: tuple[Any, ...], keywords: dict[str, Any], has_gradients: bool) -> None:
        self.arguments = arguments
        self.keywords = keywords
        self.has_gradients = has_gradients  # whether a backward pass can go through the call


class ForwardBegan(TrainingEvent):
    """A module within no other, or a compiled function, is about to compute; a handler may give it other arguments."""

    __slots__ = ("arguments", "is_compiled", "keywords", "module", "state")

    def __init__(self, module: Any, arguments: Any, keywords: Any, is_compiled: bool = False) -> None:
        self.module = module  # of a compiled function the one whose method it is, or None
        self.arguments = arguments
        self.keywords = keywords
        self.is_compiled = is_compiled  # a function, within which nothing else is told of
        self.state: Any = None  # what a handler knows again when the call has ended


class ForwardEnded(TrainingEvent):
    """What began has ended, or failed."""

    __slots__ = ("began", "error")

    def __init__(self, began: ForwardBegan, error: BaseException | None) -> None:
        self.began = began
        self.error = error


class OutputComputed(TrainingEvent):
    """A module, be it within another, has computed this."""

    __slots__ = ("module", "output")

    def __init__(self, module: Any, output: Any) -> None:
        self.module = module
        self.output = output


class BackwardBegan(TrainingEvent):
    """A backward pass is about to begin from these tensors, or this one."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Any) -> None:
        self.tensors = tensors


class LossComputed(TrainingEvent):
    """A backward pass is about to begin from this loss, a tensor that has values of its own to read."""

    __slots__ = ("is_here", "loss")

    def __init__(self, loss: Any, is_here: bool) -> None:
        self.loss = loss
        self.is_here = is_here  # in the memory of this side


class BackwardEnded(TrainingEvent):
    """A backward pass has ended, or failed."""

    __slots__ = ("freed_graph", "has_failed")

    def __init__(self, freed_graph: bool, has_failed: bool = False) -> None:
        self.freed_graph = freed_graph
        self.has_failed = has_failed


class LossScaled(TrainingEvent):
    """A loss was multiplied, so that its gradients do not underflow."""

    __slots__ = ("loss", "scaled")

    def __init__(self, loss: Any, scaled: Any) -> None:
        self.loss = loss
        self.scaled = scaled


class ClippingDue(TrainingEvent):
    """Gradients of these parameters are about to be clipped. SKIP: they are not to be judged, nor used."""

    __slots__ = ("parameters", "state")

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters
        self.state: Any = None  # what a handler knows again when they were clipped


class GradientsClipped(TrainingEvent):
    """Gradients were clipped that nobody skipped."""

    __slots__ = ("due",)

    def __init__(self, due: ClippingDue) -> None:
        self.due = due


class TensorsChange(TrainingEvent):
    """Gradients or parameters are about to be changed in place."""

    __slots__ = ()


class OptimizerMade(TrainingEvent):
    """An optimizer was made."""

    __slots__ = ("optimizer", "target")

    def __init__(self, optimizer: Any, target: Any = None) -> None:
        self.optimizer = optimizer
        self.target = target  # the framework's own object


class OptimizerNamed(TrainingEvent):
    """An optimizer steps for the first time, and the models whose parameters it has are known."""

    __slots__ = ("models", "optimizer")

    def __init__(self, optimizer: Any, models: list[Any]) -> None:
        self.optimizer = optimizer
        self.models = models


class UpdateDue(TrainingEvent):
    """An optimizer is about to update. Where a handler answers SKIP, it does not."""

    __slots__ = ("closure", "is_nested", "optimizer", "result", "state", "target")

    def __init__(self, optimizer: Any, target: Any = None, closure: Any = None, is_nested: bool = False) -> None:
        self.optimizer = optimizer
        self.target = target  # the framework's own object
        self.closure = closure  # that computes the loss; a handler may put another in its place
        self.is_nested = is_nested  # within another optimizer's update
        self.result: Any = None  # of an update that is not made
        self.state: Any = None  # what a handler knows again when the update is done


class GradientsDue(TrainingEvent):
    """Gradients, each with its variable, are about to be applied, be it in a graph that is being built."""

    __slots__ = ("optimizer", "pairs")

    def __init__(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        self.optimizer = optimizer
        self.pairs = pairs


class UpdateDone(TrainingEvent):
    """An optimizer has updated its parameters."""

    __slots__ = ("due", "optimizer")

    def __init__(self, optimizer: Any, due: UpdateDue | None = None) -> None:
        self.optimizer = optimizer
        self.due = due  # where handlers may skip updates


class UpdateEnded(TrainingEvent):
    """An update is over, done or not, for which a handler has put another closure in the place of the script's."""

    __slots__ = ("due",)

    def __init__(self, due: UpdateDue) -> None:
        self.due = due


class PartDue(TrainingEvent):
    """An optimizer that steps in several parts is about to make one. Where a handler answers SKIP, it does not."""

    __slots__ = ("name", "state", "target")

    def __init__(self, target: Any, name: str) -> None:
        self.target = target
        self.name = name
        self.state: Any = None  # what a handler knows again when it was made


class PartDone(TrainingEvent):
    """A part of a step was made."""

    __slots__ = ("due",)

    def __init__(self, due: PartDue) -> None:
        self.due = due


class ScaledUpdateEnded(TrainingEvent):
    """The scaler of a loss has had an optimizer update, or has left the update out because gradients overflowed."""

    __slots__ = ("has_updated", "scaler", "target")

    def __init__(self, scaler: Any, target: Any, has_updated: bool) -> None:
        self.scaler = scaler
        self.target = target
        self.has_updated = has_updated


class ScalerMade(TrainingEvent):
    """A scaler of losses was made."""

    __slots__ = ("scaler",)

    def __init__(self, scaler: Any) -> None:
        self.scaler = scaler


class ScheduleMade(TrainingEvent):
    """A schedule of a learning rate was made."""

    __slots__ = ("schedule",)

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule


class OptimizerEnded(TrainingEvent):
    """An optimizer is gone, or the process ends."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class ModelEnded(TrainingEvent):
    """A model is gone, or the process ends."""

    __slots__ = ("model",)

    def __init__(self, model: Any) -> None:
        self.model = model


class EpochEnded(TrainingEvent):
    """All steps on the batches of one iteration of a data loader, or of an epoch of Keras' fit, are done."""

    __slots__ = ("name", "number", "records", "steps", "values")

    def __init__(
        self, name: str, number: int, steps: int | None, values: dict[str, object], records: list[Any]
    ) -> None:
        self.name = name  # of the loader, or of the call of fit
        self.number = number
        self.steps = steps
        self.values = values
        self.records = records  # of the models and optimizers whose tensors are as the epoch left them


class EvaluationDue(TrainingEvent):
    """Something else than steps may begin, as an evaluation."""

    __slots__ = ()


class ResultsReported(TrainingEvent):
    """A call for a whole training or evaluation has returned these."""

    __slots__ = ("kind", "name", "values")

    def __init__(self, kind: str, name: str, values: dict[str, Any]) -> None:
        self.kind = kind
        self.name = name
        self.values = values


class Events:
    """The handlers of each event: a tuple an event, in the order in which their listeners came."""

    def __init__(self) -> None:
        self._listeners: tuple[EventListener, ...] = ()
        self._arrange()

    def add(self, listener: EventListener) -> None:
        """Tell this listener from now on."""
        self._listeners += (listener,)
        self._arrange()

    def remove(self, listener: EventListener) -> None:
        """Tell it no more."""
        self._listeners = tuple([other for other in self._listeners if other is not listener])
        self._arrange()

    def _arrange(self) -> None:
        tables = [(listener, listener.handlers()) for listener in self._listeners]

        def of(event: type[TrainingEvent]) -> Handlers:
            return tuple([(listener, table[event]) for listener, table in tables if event in table])

        self.loader_began = of(LoaderBegan)
        self.batch_due = of(BatchDue)
        self.batch_fetched = of(BatchFetched)
        self.loader_exhausted = of(LoaderExhausted)
        self.model_called = of(ModelCalled)
        self.forward_began = of(ForwardBegan)
        self.forward_ended = of(ForwardEnded)
        self.output_computed = of(OutputComputed)
        self.backward_began = of(BackwardBegan)
        self.loss_scaled = of(LossScaled)
        self.clipping_due = of(ClippingDue)
        self.gradients_clipped = of(GradientsClipped)
        self.loss_computed = of(LossComputed)
        self.backward_ended = of(BackwardEnded)
        self.tensors_change = of(TensorsChange)
        self.optimizer_made = of(OptimizerMade)
        self.optimizer_named = of(OptimizerNamed)
        self.update_due = of(UpdateDue)
        self.gradients_due = of(GradientsDue)
        self.update_done = of(UpdateDone)
        self.update_ended = of(UpdateEnded)
        self.part_due = of(PartDue)
        self.part_done = of(PartDone)
        self.scaled_update_ended = of(ScaledUpdateEnded)
        self.scaler_made = of(ScalerMade)
        self.schedule_made = of(ScheduleMade)
        self.optimizer_ended = of(OptimizerEnded)
        self.model_ended = of(ModelEnded)
        self.epoch_ended = of(EpochEnded)
        self.evaluation_due = of(EvaluationDue)
        self.results_reported = of(ResultsReported)


def tell(handlers: Handlers, event: TrainingEvent) -> str | None:
    """Call the handlers; SKIP where one of them answers so."""
    answer = None
    for listener, handle in handlers:
        try:
            if handle(event) is SKIP:
                answer = SKIP
        except Exception as error:
            listener.failed(error, handle)
    return answer
