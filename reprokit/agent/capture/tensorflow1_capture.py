"""Captures steps of TensorFlow 1.14's Keras, whose training is one execution of a graph in a session.

The graph tests the gradients and applies them only where they are good. What it computed on the way is read with each
step: the gradients and random numbers as they are, without a copy.
"""

from __future__ import annotations

import collections
import sys
import weakref

from ..observing import places
from . import tensorflow1_graph as graphs
from . import tensorflow1_state as state
from .random_states import RandomStates
from .settings import GRADIENT_JUMP, LOSS_ABOVE
from .tensorflow_causes import is_finite, nonfinite_count
from .tensorflow_state import digest, distinct_names
from .words import in_words
from .wrapping import wrap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .tensorflow1_redo import TensorFlow1Redo

    Function = Callable[..., Any]

MAX_LOSSES = 100


class TensorFlow1Capture:
    """Watches the trainings of one process."""

    def __init__(self, capture: Capture, redo: TensorFlow1Redo | None = None) -> None:
        self.capture = capture
        self.redo = redo
        self.random = RandomStates(state.library(capture))
        self.epoch: int | None = None
        self.step_in_epoch = 0
        self.steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._building: _Building | None = None

    def begin(self, _name: str, _module: ModuleType) -> None:
        """Attach to Keras, which came with TensorFlow."""
        models: Any = sys.modules.get("tensorflow.python.keras.engine.training")
        if models is None:
            return
        wrap(models.Model, "_make_train_function", self._make_make_train_function)
        wrap(sys.modules["tensorflow.python.keras.callbacks"].CallbackList, "on_epoch_begin", self._make_epoch)
        optimizers: Any = sys.modules["tensorflow.python.keras.optimizer_v2.optimizer_v2"]
        wrap(optimizers.OptimizerV2, "apply_gradients", self._make_apply)
        wrap(sys.modules["tensorflow.python.training.optimizer"].Optimizer, "apply_gradients", self._make_apply)

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self._building = None
        self.epoch = None

    def _make_epoch(self, original: Function) -> Function:
        def on_epoch_begin(callbacks: Any, epoch: int, *arguments: Any, **keywords: Any) -> Any:
            self.epoch, self.step_in_epoch = int(epoch), 0
            return original(callbacks, epoch, *arguments, **keywords)

        return on_epoch_begin

    def _make_make_train_function(self, original: Function) -> Function:
        def _make_train_function(model: Any) -> Any:
            before = getattr(model, "train_function", None)
            building = self._building = _Building(model)
            try:
                result = original(model)
            finally:
                self._building = None
            function = getattr(model, "train_function", None)
            if function is not before and function is not None:
                self.capture.attempt(self._guard, model, function, building.test)
            return result

        return _make_train_function

    def _make_apply(self, original: Function) -> Function:
        def apply_gradients(optimizer: Any, pairs: Any, *arguments: Any, **keywords: Any) -> Any:
            building = self._building
            if building is None or building.test is not None:
                return original(optimizer, pairs, *arguments, **keywords)
            pairs = list(pairs)
            building.test = self.capture.attempt(self._test, building.model, pairs)
            if building.test is None:
                return original(optimizer, pairs, *arguments, **keywords)
            return building.test.conditional(lambda: original(optimizer, pairs, *arguments, **keywords))

        return apply_gradients

    def _test(self, model: Any, pairs: list[Any]) -> graphs.Test | None:
        if getattr(model, "_distribution_strategy", None) is not None or not hasattr(model.total_loss, "op"):
            self.capture.say_once("warning: steps of TensorFlow 1 are captured only in graphs on one device")
            return None
        conditions = self.capture.settings.conditions
        if conditions.activations:
            self.capture.say_once("warning: activations are not tested with TensorFlow 1; gradients and losses are")
        return graphs.Test(model.total_loss, pairs, (conditions.loss_above, conditions.gradient_jump))

    def _guard(self, model: Any, function: Any, test: graphs.Test | None) -> None:
        """Have the function of a model read what is needed, and tell of each execution."""
        if test is None or not hasattr(function, "fetch_callbacks"):
            self.capture.say_once(
                f"warning: steps of {type(model).__name__} cannot be captured: its update is not seen"
            )
            return
        guard = Guard(self, model, function, test)
        kind = type(function)

        def call(called: Any, inputs: Any) -> Any:
            return guard.called(lambda given: kind.__call__(called, given), inputs)

        def call_fetch_callbacks(called: Any, output: Any) -> None:
            kind._call_fetch_callbacks(called, output)
            guard.fetched(output)

        methods = {"__call__": call, "_call_fetch_callbacks": call_fetch_callbacks, "__module__": kind.__module__}
        function.__class__ = type(kind.__name__, (kind,), methods)


class _Building:
    """A training function that is being made."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.test: graphs.Test | None = None


class Step:
    """What is known of one executed step."""

    def __init__(self, inputs: list[Any], parts: list[list[Any]]) -> None:
        (self.good,), (self.loss,), self.gradients, self.rows, self.before, self.random, means = parts
        self.mean = means[0] if means else 0.0  # of the gradients' norms so far
        self.inputs = inputs


class Guard:
    """The training function of one model."""

    def __init__(self, owner: TensorFlow1Capture, model: Any, function: Any, test: graphs.Test) -> None:
        self.owner = owner
        self.test = test
        self.reads = graphs.Reads(function, test)
        self.model: Any = weakref.proxy(model)
        self.function: Any = weakref.proxy(function)
        self.losses: collections.deque[float] = collections.deque(maxlen=MAX_LOSSES)
        self.step: Step | None = None
        self._inputs: list[Any] = []
        self._kept: state.Kept | None = None  # to roll back to
        self._start = len(function.fetches)
        function.fetches += self.reads.fetches
        self._end = len(function.fetches)

    @property
    def number(self) -> int:
        """The step's number among those of this optimizer in this process."""
        return self.owner.steps.get(self.model.optimizer, 0)

    def called(self, run: Callable[[Any], Any], inputs: Any) -> Any:
        """A step is to be executed."""
        redo = self.owner.redo
        if redo is not None:
            return redo.step(self, run, inputs)
        self.owner.random.keep()
        self._inputs = list(inputs)
        self._see_symbolic()
        self._keep_sometimes()
        result = run(inputs)
        self.owner.capture.attempt(self._stepped)
        return result

    def execute(self, run: Callable[[Any], Any], inputs: Sequence[Any]) -> Step:
        """Execute a step on these inputs, for a redo."""
        self._inputs = list(inputs)
        run(inputs)
        assert self.step is not None
        return self.step

    def _see_symbolic(self) -> None:
        """A dataset's batch is known only inside of the execution: have it read there."""
        function = self.function
        for value in self._inputs:
            if hasattr(value, "op") and not any(fetch is value for fetch in function.fetches[self._end :]):
                function.fetches.append(value)

    def fetched(self, output: Sequence[Any]) -> None:
        """The session gave this for all that is fetched."""
        values = list(output)
        symbolic = {id(fetch): value for fetch, value in zip(self.function.fetches[self._end :], values[self._end :])}  # noqa: B905
        inputs = [symbolic.get(id(value), value) for value in self._inputs]
        self.step = Step(inputs, self.reads.split(values[self._start : self._end]))

    def _keep_sometimes(self) -> None:
        settings = self.owner.capture.settings
        if settings.action == "rollback" and self.number % settings.rollback_every == 0:
            self._kept = self.owner.capture.attempt(state.Kept, self.model) or self._kept

    def _stepped(self) -> None:
        """A step was executed: go on, or capture it."""
        owner, step, number = self.owner, self.step, self.number
        if step is None:
            return
        if step.good:
            self.losses.append(float(step.loss))
        else:
            self._capture(step, number)
        owner.steps[self.model.optimizer] = number + 1
        owner.step_in_epoch += 1
        self.step = None

    def _capture(self, step: Step, number: int) -> None:
        owner = self.owner
        owner.steps[self.model.optimizer] = number + 1
        self.put_back(step)
        triggers = self.triggers(step)
        header, parts = state.contents(self, step, triggers)
        path = owner.capture.save(header, parts)
        if owner.capture.settings.action == "rollback" and self._kept is not None:
            self._kept.put()
        self.step = None
        owner.capture.captured(number, in_words(triggers[0]), path)

    def put_back(self, step: Step) -> None:
        """Give variables that moved in spite of all the values that they had before the step."""
        state.assign(list(zip(self.reads.moved, step.before)))  # noqa: B905

    def triggers(self, step: Step) -> list[dict[str, Any]]:
        """What is wrong with a step, the loss first where it is that."""
        where = [list(place) for place in places.where(2)]
        found: list[dict[str, Any]] = []
        for name, array in [("loss", step.loss), *zip(self.names(), step.gradients)]:  # noqa: B905
            count = nonfinite_count(array)
            if count:
                kind = "loss" if not found and name == "loss" else "gradient"
                what = str(array) if kind == "loss" else "not finite"
                size = int(array.size)
                found.append({"kind": kind, "what": what, "name": name, "count": count, "of": size, "where": where})
        return found or [self._condition(step, where)]

    def _condition(self, step: Step, where: list[Any]) -> dict[str, Any]:
        conditions = self.owner.capture.settings.conditions
        above, found = conditions.loss_above, {"kind": "condition", "count": 1, "of": 1, "where": where}
        if above is not None and not float(step.loss) <= above:
            return {
                **found,
                "name": "loss",
                "condition": LOSS_ABOVE,
                "what": f"the loss {step.loss:.6g} is above {above:.6g}",
                "limit": above.hex(),
            }
        limit = float(conditions.gradient_jump or 0.0) * float(step.mean)
        words = f"the norm of the gradients is above {limit:.6g}, {conditions.gradient_jump} times its mean"
        return {**found, "name": "gradients", "condition": GRADIENT_JUMP, "what": words, "limit": limit.hex()}

    def names(self) -> list[str]:
        """The variables that have gradients, by name."""
        return distinct_names([variable for _, variable in self.test.pairs])

    def digests(self, step: Step) -> dict[str, str]:
        """The digest of each gradient."""
        return {name: digest(array) for name, array in zip(self.names(), step.gradients)}  # noqa: B905

    def bad_gradients(self, step: Step) -> dict[str, Any]:
        """The gradients that are not finite, by name."""
        pairs = zip(self.names(), step.gradients)  # noqa: B905
        return {name: array for name, array in pairs if not is_finite(array)}
