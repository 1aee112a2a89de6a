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


class TrainingEvent:
    """Something that has happened, or is about to."""

    __slots__ = ()


class LoaderBegan(TrainingEvent):
    """A data loader is about to be iterated; BatchFetched and LoaderExhausted refer to it."""

    __slots__ = ("loader", "place", "series", "workers")

    def __init__(self, loader: object, place: tuple[str, int], workers: int | None) -> None:
        self.loader: object | None = loader  # None when all were told: nobody's lifetime grows
        self.place = place  # file and line
        self.workers = workers
        self.series: object = None  # what a listener counts this iteration to


class BatchFetched(TrainingEvent):
    """A data loader has given a batch."""

    __slots__ = ("batch", "began")

    def __init__(self, batch: object, began: LoaderBegan | None) -> None:
        self.batch = batch
        self.began = began


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


class LossComputed(TrainingEvent):
    """A backward pass is about to begin from this loss, a tensor that has values of its own to read."""

    __slots__ = ("is_here", "loss")

    def __init__(self, loss: Any, is_here: bool) -> None:
        self.loss = loss
        self.is_here = is_here  # in the memory of this side


class BackwardEnded(TrainingEvent):
    """A backward pass has ended, or failed."""

    __slots__ = ("freed_graph",)

    def __init__(self, freed_graph: bool) -> None:
        self.freed_graph = freed_graph


class TensorsChange(TrainingEvent):
    """Gradients or parameters are about to be changed in place."""

    __slots__ = ()


class OptimizerMade(TrainingEvent):
    """An optimizer was made."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class OptimizerNamed(TrainingEvent):
    """An optimizer steps for the first time, and the models whose parameters it has are known."""

    __slots__ = ("models", "optimizer")

    def __init__(self, optimizer: Any, models: list[Any]) -> None:
        self.optimizer = optimizer
        self.models = models


class UpdateDue(TrainingEvent):
    """An optimizer is about to update. A handler may answer SKIP, on which PyTorch's hooks do not act yet."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class UpdateDone(TrainingEvent):
    """An optimizer has updated its parameters."""

    __slots__ = ("optimizer",)

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


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
    """All steps on the batches of one iteration of a data loader are done."""

    __slots__ = ("loader", "number", "thread")

    def __init__(self, loader: str, number: int, thread: str) -> None:
        self.loader = loader
        self.number = number
        self.thread = thread


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
        self.batch_fetched = of(BatchFetched)
        self.loader_exhausted = of(LoaderExhausted)
        self.model_called = of(ModelCalled)
        self.loss_computed = of(LossComputed)
        self.backward_ended = of(BackwardEnded)
        self.tensors_change = of(TensorsChange)
        self.optimizer_made = of(OptimizerMade)
        self.optimizer_named = of(OptimizerNamed)
        self.update_due = of(UpdateDue)
        self.update_done = of(UpdateDone)
        self.optimizer_ended = of(OptimizerEnded)
        self.model_ended = of(ModelEnded)
        self.epoch_ended = of(EpochEnded)


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
