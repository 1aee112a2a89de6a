"""Watches the steps of TensorFlow 2 and Keras, and captures those whose gradients or loss are not finite.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_updates). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import sys
import weakref

from ..core.native_module import load as load_compiled
from ..tensorflow import private_api
from .random_states import RandomStates
from .tensorflow_calls import TrainingState
from .tensorflow_checks import EagerTest
from .tensorflow_graph import building
from .tensorflow_outermost import OutermostCalls, StrategySteps
from .tensorflow_random import watch_random_operations
from .tensorflow_rejection import Rejections, SnapshotHandler
from .tensorflow_saved_model import watch_saving
from .tensorflow_steps import StepTracker, put
from .tensorflow_updates import UpdateGuard
from .tensorflow_xla import XlaCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import CaptureSession
    from .tensorflow_rejection import StepHandler
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]


class TensorFlowCapture:
    """The part for TensorFlow and Keras."""

    def __init__(self, capture: CaptureSession, handler: StepHandler | None = None) -> None:
        self.capture = capture
        self._conditions = capture.settings.conditions
        self.handler = handler or SnapshotHandler(capture)
        self.training = TrainingState()
        self._steps = StepTracker()
        self._rejections = Rejections(capture, self.training, self.handler)
        self._compiled = XlaCalls(self._rejections, self.training, self._steps)
        self._updates = UpdateGuard(self._steps, self.training, self._compiled, self.handler)
        self._calls = OutermostCalls(self._rejections, self.handler, self._compiled, self._updates)
        self._strategies = StrategySteps(self._rejections, self._steps, self._compiled)

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.training.forget()
        self._updates.rollback.forget()

    # ---- attaching ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed."""
        version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
        if version.startswith("1."):
            self.handler.unavailable(version)
        elif name == "tensorflow":
            self._begin_tensorflow()
        elif "optimizer" in name:
            self._watch_optimizers(module)
        else:
            self._watch_models(module)

    def _begin_tensorflow(self) -> None:
        path = self.capture.settings.library
        library = self.capture.attempt(_library, path)
        compiled = self.capture.attempt(load_compiled, path) if library is not None else None
        self._rejections.random = RandomStates(library, None, compiled)
        self._updates.test = EagerTest(library, self._conditions)
        self._steps.begins = self._begins
        self._steps.differentiates = self._differentiates
        self._steps.watch_tapes(private_api.module("backprop").GradientTape)
        variables = private_api.module("variables")
        for owner in (variables.BaseResourceVariable, variables.ResourceVariable, variables.UninitializedVariable):
            if "assign" in vars(owner):  # methods are copied from class to class there
                self._steps.watch_writes(owner)
        self._steps.watch_generators(private_api.module("generators").Generator)
        self.capture.attempt(watch_random_operations, self._drew)
        self.capture.attempt(watch_saving, lambda: [one for known in self.training.order for one in known.remembering])
        put(private_api.module("polymorphic").Function, "__call__", self._calls.make_call)
        self._watch_concrete()
        put(private_api.module("distribute").StrategyBase, "run", self._strategies.make_run)
        iterator = private_api.module("iterators").OwnedIterator
        for name in ("__next__", "get_next"):
            put(iterator, name, self._make_next)
        self._watch_optimizers(private_api.module("optimizers"))

    def _watch_concrete(self) -> None:
        module = private_api.module("concrete")
        if module is not None:  # TensorFlow 2.13
            put(module.ConcreteFunction, "__call__", self._calls.make_concrete_call)

    def _watch_optimizers(self, module: ModuleType) -> None:
        for owner in _classes(module):
            for name in ("apply", "apply_gradients"):
                if name == "apply" or "apply" not in vars(owner):
                    put(owner, name, self._updates.make_apply)
            for name in ("scale_loss", "get_scaled_loss"):
                if "LossScale" in owner.__name__ and name in vars(owner):
                    self._steps.watch_scaling(owner, name)

    def _watch_models(self, module: ModuleType) -> None:
        for owner in _classes(module):
            put(owner, "make_train_function", self._calls.make_make_train_function)
            if self._conditions.activations and owner.__name__ == "Layer":
                put(owner, "__call__", self._make_layer)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _differentiates(self, step: TensorFlowStep) -> None:
        """A step asks for gradients."""
        call = self.training.current()
        if step.graph is not None and call is not None:
            call.traced.differentiates = True
            call.traced.graph = weakref.ref(step.graph)
            call.steps = [*call.steps, step]

    def _begins(self, step: TensorFlowStep) -> None:
        """An eager step begins."""
        if self.training.here.call is None:
            self._rejections.keep_random()
        self.handler.begins(step)

    def _make_next(self, original: Function) -> Function:
        executing_eagerly = private_api.executing_eagerly
        get_default_graph = private_api.default_graph

        def get_next(iterator: Any, *arguments: Any) -> Any:
            if not executing_eagerly():
                value = original(iterator, *arguments)
                get_default_graph()._reprokit_batch = value
                return value
            fetched, step = self.training.here.fetched, self._steps.here.step
            try:
                value = original(iterator, *arguments)
            except Exception:  # it is at its end
                fetched.ended(iterator, step)
                raise
            fetched.add(iterator, value, step)
            return self.handler.fetched(value)

        return get_next

    def _make_layer(self, original: Function) -> Function:
        """A layer's outputs are looked at where activations are asked for."""

        def call(layer: Any, *arguments: Any, **keywords: Any) -> Any:
            result = original(layer, *arguments, **keywords)
            self.capture.attempt(self._activated, layer, result)
            return result

        return call

    def _activated(self, layer: Any, result: Any) -> None:
        step = self._steps.current()
        if step is None or step.differentiated or (step.graph is not None and step.graph is not building()):
            return
        tensorflow = sys.modules["tensorflow"]
        flat = [one for one in tensorflow.nest.flatten(result) if getattr(one, "dtype", None) is not None]
        floats = [one for one in flat if hasattr(one, "op") or private_api.has_value(one)]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(one)) for one in floats if one.dtype.is_floating]
        if finite:
            name = str(getattr(layer, "path", None) or layer.name)
            step.values.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    def _drew(self, kind: str, drawn: Any) -> Any:
        """An operation with a random state of its own drew this; return what it is to give."""
        return self._steps.drew(kind, self.handler.drew(kind, drawn))


def _library(path: str | None) -> Any:
    from ..trail_library import Library

    return None if path is None else Library(path)


def _classes(module: ModuleType) -> list[type]:
    return [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
