"""Watches the steps of TensorFlow 2 and Keras, and captures those whose gradients or loss are not finite.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_updates). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import sys
import weakref

from .compiled import load as load_compiled
from .random_states import RandomStates
from .settings import STOP
from .tensorflow_calls import ALWAYS, AccumulationWindow, FunctionRecord, OutermostCall, TrainingState, one_of
from .tensorflow_checks import EagerTest
from .tensorflow_graph import building, put_back
from .tensorflow_random import watch_random_operations
from .tensorflow_rejection import Rejections, SnapshotHandler
from .tensorflow_replicas import ReplicaRound, replica
from .tensorflow_saved_model import watch_saving
from .tensorflow_state import FIT, FUNCTION, SCRIPT, eager_state
from .tensorflow_steps import StepTracker, put
from .tensorflow_updates import UpdateGuard
from .tensorflow_xla import XlaCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .tensorflow_rejection import StepHandler
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]


class TensorFlowCapture:
    """The part for TensorFlow and Keras."""

    def __init__(self, capture: Capture, handler: StepHandler | None = None) -> None:
        self.capture = capture
        self._conditions = capture.settings.conditions
        self.handler = handler or SnapshotHandler(capture)
        self.training = TrainingState()
        self._steps = StepTracker()
        self._rejections = Rejections(capture, self.training, self.handler)
        self._compiled = XlaCalls(self._rejections, self.training, self._steps)
        self._updates = UpdateGuard(self._steps, self.training, self._compiled, self.handler)

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
        self._random = self._rejections.random = RandomStates(library, None, compiled)
        self._updates.test = EagerTest(library, self._conditions)
        self._steps.begins = self._begins
        self._steps.differentiates = self._differentiates
        modules, python = sys.modules, "tensorflow.python."
        self._steps.watch_tapes(modules[python + "eager.backprop"].GradientTape)
        variables = modules[python + "ops.resource_variable_ops"]
        for owner in (variables.BaseResourceVariable, variables.ResourceVariable, variables.UninitializedVariable):
            if "assign" in vars(owner):  # methods are copied from class to class there
                self._steps.watch_writes(owner)
        self._steps.watch_generators(modules[python + "ops.stateful_random_ops"].Generator)
        self.capture.attempt(watch_random_operations, self._drew)
        self.capture.attempt(watch_saving, lambda: [one for known in self.training.order for one in known.remembering])
        functions = modules[python + "eager.polymorphic_function.polymorphic_function"]
        put(functions.Function, "__call__", self._make_call)
        self._watch_concrete()
        put(modules[python + "distribute.distribute_lib"].StrategyBase, "run", self._make_run)
        iterator = modules[python + "data.ops.iterator_ops"].OwnedIterator
        for name in ("__next__", "get_next"):
            put(iterator, name, self._make_next)
        self._watch_optimizers(modules[python + "training.optimizer"])

    def _watch_concrete(self) -> None:
        module = sys.modules.get("tensorflow.python.eager.polymorphic_function.concrete_function")
        if module is not None:  # TensorFlow 2.13
            put(module.ConcreteFunction, "__call__", self._make_concrete_call)

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
            put(owner, "make_train_function", self._make_make_train_function)
            if self._conditions.activations and owner.__name__ == "Layer":
                put(owner, "__call__", self._make_layer)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _make_make_train_function(self, original: Function) -> Function:
        def make_train_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            made = original(model, *arguments, **keywords)
            function = model.train_function
            if function is None or hasattr(function, "_reprokit_captured"):
                return made

            traced = FunctionRecord()

            def train_function(*given: Any) -> Any:
                return self._outermost(OutermostCall(FIT, model, function, given, {}, None, traced))

            train_function._reprokit_captured = True  # type: ignore[attr-defined]
            if hasattr(function, "_reprokit_model"):
                train_function._reprokit_model = True  # type: ignore[attr-defined]
            model.train_function = train_function
            return made if made is None else train_function

        return make_train_function

    def _make_call(self, original: Function) -> Function:
        """Calls of tf.functions, from eager code and from graphs that are being built."""
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
        here, compiled = self.training.here, self._compiled
        compiled.bare = original

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            by = compiled.call if function._jit_compile else original
            if here.call is None and executing_eagerly():
                return self._outermost(OutermostCall(FUNCTION, None, function, arguments, keywords, by))
            return by(function, *arguments, **keywords)

        return call

    def _make_concrete_call(self, original: Function) -> Function:
        """The same of a graph of theirs that a script asked for."""
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.training.here.call is None and executing_eagerly():
                return self._outermost(OutermostCall(FUNCTION, None, function, arguments, keywords, original))
            return original(function, *arguments, **keywords)

        return call

    def _outermost(self, call: OutermostCall) -> Any:
        """Make an outermost call. What was captured in it ends the training behind it, also where the call then fails.

        Few functions of ours stand between, and each makes its call early, as TensorFlow takes down at each call who
        called whom from which line, for which Python reads all lines before.
        """
        if not self._begins_call(call):
            return call.run()
        try:
            result = self.handler.outermost(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._leaves_call(call)
        if call.pending is not None:
            raise call.pending
        if self._updates.rollback.is_on and call.trains:
            self.capture.attempt(self._updates.rollback.keep_or_go_back, call.rolls_back)
        return result

    def _begins_call(self, call: OutermostCall) -> bool:
        """Whether it is an outermost one."""
        here, traced = self.training.here, call.traced
        if here.call is not None:
            return False
        if call.origin == FIT or (traced.updates == ALWAYS and here.window is not None and not here.window.calls):
            self._random.keep()
        else:
            self._opens_window(call)
        here.call = call
        self.training.calls.append(call)
        return True

    def _opens_window(self, call: OutermostCall) -> None:
        """Its gradients may wait for another call's update, or those of others for its own."""
        call.trains = call.traced.trains is not False or call.traced.differentiates
        window = call.window = self.training.here.window = self.training.here.window or AccumulationWindow(
            self.training.updates
        )
        if call.trains and not window.calls:
            self._random.keep()
        self.capture.attempt(window.opens, call)

    def _leaves_call(self, call: OutermostCall) -> None:
        """It is over, in whichever way."""
        self.training.here.call = None
        self.training.calls.remove(call)
        traced = call.traced
        if traced.trains is None and self._compiled.reveals.tracing is None:
            traced.trains = False
        for step in call.steps:
            traced.written.update({key: variable for key, (variable, _) in step.held.items()})
        call.steps = ()
        if call.window is not None:
            self.capture.attempt(call.window.closes, call)

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
            self._random.keep()
        step.random = eager_state
        self.handler.begins(step)

    def _make_run(self, original: Function) -> Function:
        """A strategy runs a step, be it the strategy that Keras uses where there is none."""

        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if self.training.current() is None:
                return original(strategy, fn, args, kwargs, options)
            together = ReplicaRound()
            wrapped = self.capture.attempt(self._wrap_step, fn, together)
            result = original(strategy, fn if wrapped is None else wrapped, args, kwargs, options)
            self.capture.attempt(together.end, lambda: self._rejections.call_host_together(strategy, together))
            return result

        return run

    def _wrap_step(self, fn: Function, together: ReplicaRound) -> Function:
        api = sys.modules["tensorflow.python.autograph.impl.api"]
        context = sys.modules["tensorflow.python.autograph.core.ag_ctx"]
        converted = api.tf_convert(fn, context.control_status_ctx(), convert_by_default=False)

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._steps.current() if self._compiled.reveals.tracing is not None else together.step
            step = step or self._steps.begin()
            step.pinned = True
            batch = (FIT if _is_of_keras(fn) else SCRIPT, one_of(arguments, keywords))
            if replica() is not None:
                together.add(step, batch)
                return converted(*arguments, **keywords)
            step.batches = [batch]
            try:
                return converted(*arguments, **keywords)
            finally:
                self.capture.attempt(self._step_ends, step)

        step_function.autograph_info__ = None  # type: ignore[attr-defined]
        return step_function

    def _step_ends(self, step: TensorFlowStep) -> None:
        """What a step that was not applied moved after its update, as metrics, is put back where training goes on."""
        step.pinned = False
        moved = list(step.held.values())[step.moved :]
        if step.finite is None or not step.applied or not moved or self.capture.settings.action == STOP:
            return
        step.passes = True
        if step.graph is None:
            put_back(moved)
        else:
            tensorflow = sys.modules["tensorflow"]
            tensorflow.cond(step.finite, lambda: None, lambda: put_back(moved))

    def _make_next(self, original: Function) -> Function:
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
        get_default_graph = sys.modules["tensorflow.python.framework.ops"].get_default_graph

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
        floats = [one for one in flat if hasattr(one, "op") or hasattr(one, "_numpy")]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(one)) for one in floats if one.dtype.is_floating]
        if finite:
            name = str(getattr(layer, "path", None) or layer.name)
            step.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    def _drew(self, kind: str, drawn: Any) -> Any:
        """An operation with a random state of its own drew this; return what it is to give."""
        return self._steps.drew(kind, self.handler.drew(kind, drawn))


def _library(path: str | None) -> Any:
    from ..trail_library import Library

    return None if path is None else Library(path)


def _classes(module: ModuleType) -> list[type]:
    return [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]


def _is_of_keras(fn: Any) -> bool:
    return str(getattr(fn, "__module__", "")).startswith(("keras.", "tf_keras.", "tensorflow.python.keras."))
