"""Watches the steps of TensorFlow 2 and Keras, and captures those whose gradients or loss are not finite.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_update). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import sys
import weakref

from ..frameworks.variables import is_eager, optimizer_variables
from .compiled import load as load_compiled
from .random_states import RandomStates
from .settings import NEEDS_TENSORFLOW_2, ROLLBACK, STOP
from .tensorflow_calls import (
    ALWAYS,
    AccumulationWindow,
    FunctionRecord,
    OptimizerRecord,
    OutermostCall,
    ThreadState,
    UpdateSite,
    iterations,
    unread,
)
from .tensorflow_checks import LAST_LOSSES, EagerTest, UpdateTest
from .tensorflow_graph import (
    batch_in_graph,
    building,
    call_host,
    conditional,
    flagged,
    has_numbers,
    in_loop,
    in_xla,
    numbers_given_to,
    put_back,
)
from .tensorflow_random import watch_random_operations
from .tensorflow_replicas import OF_THE_FIRST, ReplicaRound, replica, wait_for_workers, worker
from .tensorflow_saved_model import watch_saving
from .tensorflow_snapshot import RejectedStep, in_fit, local_batch, loss_scale, places
from .tensorflow_state import as_array, digest, eager_state, plain, put_variable, read, resource_id
from .tensorflow_steps import StepTracker, put
from .tensorflow_xla import GradientRecomputation, XlaCalls, one_of
from .words import in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .tensorflow_steps import TensorFlowStep

    Function = Callable[..., Any]


class TensorFlowCapture:
    """The part for TensorFlow and Keras."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._settings = capture.settings
        self._conditions = capture.settings.conditions
        self.here = ThreadState()
        self._steps = StepTracker()
        self._reveals = GradientRecomputation(self._steps)
        self._test = EagerTest(None, self._conditions)
        self._compiled = XlaCalls(self, self._reveals)
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child."""
        self.calls: list[OutermostCall] = []
        self._known: weakref.WeakKeyDictionary[Any, OptimizerRecord] = weakref.WeakKeyDictionary()
        self._order: list[OptimizerRecord] = []
        self._good: list[tuple[Any, Any]] = []  # a state to go back to: variables and values
        self._since = 0

    # ---- attaching ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed."""
        version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
        if version.startswith("1."):
            self.unavailable(version)
        elif name == "tensorflow":
            self._begin_tensorflow()
        elif "optimizer" in name:
            self._watch_optimizers(module)
        else:
            self._watch_models(module)

    def unavailable(self, version: str) -> None:
        """Say that steps of this TensorFlow are not captured; the training goes on."""
        self.capture.unavailable("tensorflow", version, NEEDS_TENSORFLOW_2)

    def _begin_tensorflow(self) -> None:
        path = self._settings.library
        library = self.capture.attempt(_library, path)
        compiled = self.capture.attempt(load_compiled, path) if library is not None else None
        self._random = RandomStates(library, None, compiled)
        self._test = EagerTest(library, self._conditions)
        self._steps.begins = self._begins
        self._steps.differentiates = self._differentiates
        modules, python = sys.modules, "tensorflow.python."
        self._steps.watch_tapes(modules[python + "eager.backprop"].GradientTape)
        variables = modules[python + "ops.resource_variable_ops"]
        for owner in (variables.BaseResourceVariable, variables.ResourceVariable, variables.UninitializedVariable):
            if "assign" in vars(owner):  # methods are copied from class to class there
                self._steps.watch_writes(owner)
        self._steps.watch_generators(modules[python + "ops.stateful_random_ops"].Generator)
        self.capture.attempt(watch_random_operations, self.drew)
        self.capture.attempt(watch_saving, lambda: [one for known in self._order for one in known.remembering])
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
                    put(owner, name, self._make_apply)
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
                return self._outermost(OutermostCall("fit", model, function, given, {}, None, traced))

            train_function._reprokit_captured = True  # type: ignore[attr-defined]
            if hasattr(function, "_reprokit_model"):
                train_function._reprokit_model = True  # type: ignore[attr-defined]
            model.train_function = train_function
            return made if made is None else train_function

        return make_train_function

    def _make_call(self, original: Function) -> Function:
        """Calls of tf.functions, from eager code and from graphs that are being built."""
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly
        here, compiled = self.here, self._compiled
        compiled.bare = original

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            by = compiled.call if function._jit_compile else original
            if here.call is None and executing_eagerly():
                return self._outermost(OutermostCall("function", None, function, arguments, keywords, by))
            return by(function, *arguments, **keywords)

        return call

    def _make_concrete_call(self, original: Function) -> Function:
        """The same of a graph of theirs that a script asked for."""
        executing_eagerly = sys.modules["tensorflow.python.eager.context"].executing_eagerly

        def call(function: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.here.call is None and executing_eagerly():
                return self._outermost(OutermostCall("function", None, function, arguments, keywords, original))
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
            result = self.outermost(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._leaves_call(call)
        if call.pending is not None:
            raise call.pending
        if self._settings.action == ROLLBACK and call.trains:
            self.capture.attempt(self._keep_or_go_back, call.rolls_back)
        return result

    def _begins_call(self, call: OutermostCall) -> bool:
        """Whether it is an outermost one."""
        here, traced = self.here, call.traced
        if here.call is not None:
            return False
        if call.origin == "fit" or (traced.updates == ALWAYS and here.window is not None and not here.window.calls):
            self._random.keep()
        else:
            self._opens_window(call)
        here.call = call
        self.calls.append(call)
        return True

    def _opens_window(self, call: OutermostCall) -> None:
        """Its gradients may wait for another call's update, or those of others for its own."""
        call.trains = call.traced.trains is not False or call.traced.differentiates
        window = call.window = self.here.window = self.here.window or AccumulationWindow(self._updates)
        if call.trains and not window.calls:
            self._random.keep()
        self.capture.attempt(window.opens, call)

    def _leaves_call(self, call: OutermostCall) -> None:
        """It is over, in whichever way."""
        self.here.call = None
        self.calls.remove(call)
        traced = call.traced
        if traced.trains is None and self._reveals.tracing is None:
            traced.trains = False
        for step in call.steps:
            traced.written.update({key: variable for key, (variable, _) in step.held.items()})
        call.steps = ()
        if call.window is not None:
            self.capture.attempt(call.window.closes, call)

    def _updates(self) -> int:
        """How many updates all optimizers have made."""
        return sum(iterations(known.optimizer()) or 0 for known in self._order)

    def _differentiates(self, step: TensorFlowStep) -> None:
        """A step asks for gradients."""
        call = self.current()
        if step.graph is not None and call is not None:
            call.traced.differentiates = True
            call.traced.graph = weakref.ref(step.graph)
            call.steps = [*call.steps, step]

    outermost: Callable[[OutermostCall], Any] = staticmethod(OutermostCall.run)  # makes an outermost call

    def current(self) -> OutermostCall | None:
        """The call under way in this thread; else, as in a thread of TensorFlow's own, the last that began."""
        call = self.here.call
        return call if call is not None or not self.calls else self.calls[-1]

    def _make_run(self, original: Function) -> Function:
        """A strategy runs a step, be it the strategy that Keras uses where there is none."""

        def run(strategy: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
            if self.current() is None:
                return original(strategy, fn, args, kwargs, options)
            together = ReplicaRound()
            wrapped = self.capture.attempt(self._wrap_step, fn, together)
            result = original(strategy, fn if wrapped is None else wrapped, args, kwargs, options)
            self.capture.attempt(together.end, lambda: self._call_host_together(strategy, together))
            return result

        return run

    def _wrap_step(self, fn: Function, together: ReplicaRound) -> Function:
        api = sys.modules["tensorflow.python.autograph.impl.api"]
        context = sys.modules["tensorflow.python.autograph.core.ag_ctx"]
        converted = api.tf_convert(fn, context.control_status_ctx(), convert_by_default=False)

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._steps.current() if self._reveals.tracing is not None else together.step
            step = step or self._steps.begin()
            step.pinned = True
            batch = ("fit" if _is_of_keras(fn) else "script", one_of(arguments, keywords))
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
        if step.finite is None or not step.applied or not moved or self._settings.action == STOP:
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
            fetched, step = self.here.fetched, self._steps.here.step
            try:
                value = original(iterator, *arguments)
            except Exception:  # it is at its end
                fetched.ended(iterator, step)
                raise
            fetched.add(iterator, value, step)
            return value

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

    # ---- updates -----------------------------------------------------------------------------------------------------

    def _make_apply(self, original: Function) -> Function:
        by_pairs = original.__name__ == "apply_gradients"

        def apply(optimizer: Any, gradients: Any, *arguments: Any, **keywords: Any) -> Any:
            gradients = list(gradients)
            if self.here.applies:
                return original(optimizer, gradients, *arguments, **keywords)
            self.here.applies = True
            try:
                pairs = self.capture.attempt(_pairs, optimizer, gradients, by_pairs, arguments, keywords)
                if not pairs:
                    return original(optimizer, gradients, *arguments, **keywords)
                done = self._apply(optimizer, pairs, lambda: original(optimizer, gradients, *arguments, **keywords))
            finally:
                self.here.applies = False
            return done if done is not None or not by_pairs else getattr(optimizer, "iterations", None)

        return apply

    def _apply(self, optimizer: Any, pairs: list[tuple[Any, Any]], update: Function) -> Any:
        step = self._steps.current() or self._steps.begin()
        if self._reveals.tracing is not None:
            self._reveals.tracing.take(step, optimizer, pairs)
            return None
        known, one_of_several = self._know(optimizer, pairs), replica()
        if one_of_several is not None:
            return self._apply_together(one_of_several, step, known, pairs, update)
        if all(is_eager(gradient) for gradient, _ in pairs):
            return self._apply_eagerly(step, known, pairs, update)
        try:
            self._apply_in_graph(step, known, pairs, update)
        except Exception as error:
            self.capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            return update()
        return None

    def _know(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> OptimizerRecord:
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = OptimizerRecord(optimizer)
            self._order.append(known)
            self._good = []  # of which its variables are no part
        if not known.variables:
            known.variables = [variable for _, variable in pairs]
        if known.first is None:
            known.first = iterations(optimizer)
        return known

    def _apply_in_graph(
        self, step: TensorFlowStep, known: OptimizerRecord, pairs: list[tuple[Any, Any]], update: Function
    ) -> None:
        optimizer, gradients = known.optimizer(), [gradient for gradient, _ in pairs]
        _build(optimizer, [variable for _, variable in pairs])
        call = self.current()
        site = UpdateSite(known, [variable for _, variable in pairs], step, call)
        if call is not None:
            call.traced.has_update(sometimes=building() is not step.graph)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        test = UpdateTest(step, gradients, self._conditions, known.memory, allowed)
        step.moved = len(step.held)
        if in_xla():
            self._compiled.expect(site, step)
            flagged(step, test, update, known.memory)
        else:
            if site.model is not None:
                self._hold_metrics(step, site.model)
            stops = self._settings.action == STOP
            before, moved = step.before, [*step.held.values(), *step.updated.values()]
            if stops:  # the call begins at the state that the snapshot holds
                moved = list(before.values())
            known.moved.update({key: variable for key, (variable, _) in before.items()})
            self.capture.attempt(step.hold_updated, _updated(known))
            on_host, seen = self._for_host(site, step, gradients, before)
            conditional(step, test, update, lambda: call_host(on_host, seen), moved, stops=stops)
        step.applied = True

    def _hold_metrics(self, step: TensorFlowStep, model: Any) -> None:
        """Metrics are moved while the host looks at a step."""
        for metric in getattr(model, "metrics", ()):
            for variable in metric.variables:
                self.capture.attempt(step.hold, plain(variable))

    def _apply_together(
        self, replica: Any, step: TensorFlowStep, known: OptimizerRecord, pairs: list[tuple[Any, Any]], update: Function
    ) -> Any:
        """One of several replicas applies gradients that are summed over them."""
        if step.together is None:
            self.capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self.capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        call, optimizer = self.current(), known.optimizer()
        if call is not None:
            call.traced.has_update(sometimes=False)
        step.together.site = UpdateSite(known, [variable for _, variable in pairs], step, call)
        scale = loss_scale(optimizer)
        allowed = None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
        step.together.take(replica, [gradient for gradient, _ in pairs], self._conditions, allowed)
        step.applied = True
        return update()

    def _apply_eagerly(
        self, step: TensorFlowStep, known: OptimizerRecord, pairs: list[tuple[Any, Any]], update: Function
    ) -> Any:
        if step.finite is False and step.applied:  # it was captured where another optimizer was to update
            known.skipped += 1
            return None
        finite = self.capture.attempt(self._test.passes, step, known, pairs)
        self._shares(step, known)
        known.moved.update({key: variable for key, (variable, _) in step.held.items()})
        step.moved = len(step.held)
        step.applied = True
        if finite is False:
            step.finite = False
            self._found_eagerly(step, known, pairs)
            return None
        if known.shares:
            self.capture.attempt(step.hold_updated, _updated(known))
        step.passes = True
        try:
            result = update()
        finally:
            step.passes = False
        if step.loss is not None:
            known.losses = [*known.losses, step.loss][-LAST_LOSSES:]
        if self._settings.action == ROLLBACK and self.here.call is None:
            self.capture.attempt(self._keep_or_go_back, False)
        self.applied(known.optimizer())
        return result

    def _shares(self, step: TensorFlowStep, known: OptimizerRecord) -> None:
        """Where a further optimizer updates in the same step, what those before it update is held from then on."""
        for other in step.optimizers:
            if other is not known:
                other.shares = True
        step.optimizers.append(known)

    # ---- what was found ----------------------------------------------------------------------------------------------

    def drew(self, kind: str, drawn: Any) -> Any:
        """An operation with a random state of its own drew this; what it is to give."""
        return self._steps.drew(kind, drawn)

    def _begins(self, step: TensorFlowStep) -> None:
        """An eager step begins."""
        if self.here.call is None:
            self._random.keep()
        step.random = eager_state
        self.begins(step)

    def begins(self, step: TensorFlowStep) -> None:
        """An eager step begins; for who does a step again."""

    def applied(self, optimizer: Any) -> None:
        """An eager step was applied; likewise."""

    def _found_eagerly(self, step: TensorFlowStep, known: OptimizerRecord, pairs: list[tuple[Any, Any]]) -> None:
        found = RejectedStep(
            known.optimizer(), [variable for _, variable in pairs], [gradient for gradient, _ in pairs]
        )
        found.loss = step.loss
        found.held = {key: value for key, (_, value) in step.before.items()}
        found.moved = _variables(step.before)
        found.drawn = step.drawn
        found.activations = [(name, bool(finite)) for name, finite in step.activations]
        found.batches = step.batches or [("loader", value) for value in self.here.fetched.values]
        if not found.batches and self.here.call is None:
            found.batches = local_batch(sys._getframe(1))
        if self._conditions.gradient_jump is not None and known.norms:
            found.norm_limit = self._conditions.gradient_jump * known.mean
        pending = self._handle(found, known, self.current(), sys._getframe(1))
        step.passes = True
        put_back([*step.held.values(), *step.updated.values()])
        step.passes = False
        if pending is not None:
            raise pending
        if self._settings.action == ROLLBACK and self.here.call is None:
            self.capture.attempt(self._keep_or_go_back, True)

    def _handle(
        self, found: RejectedStep, known: OptimizerRecord, call: OutermostCall | None, frame: Any
    ) -> BaseException | None:
        """Complete what was found and have it captured; what is to end the training, if that is to happen."""
        self.capture.attempt(self._complete, found, known, call, frame)
        try:
            self.found(found)
        except SystemExit as error:
            return error
        except Exception as error:
            self.capture.say_once(f"warning: no snapshot: {type(error).__name__}: {error}")
        finally:
            known.skipped += 1
        if call is not None:
            call.rolls_back = True
        return None

    def _complete(self, found: RejectedStep, known: OptimizerRecord, call: OutermostCall | None, frame: Any) -> None:
        updates = iterations(found.optimizer, found.held)
        found.step = max(0, (updates or 0) - (known.first or 0)) + known.skipped
        found.losses = known.last_losses()
        found.random, found.eager = self._random.kept(), eager_state()
        found.optimizers = [one for one in (entry.optimizer() for entry in self._order) if one is not None]
        if call is None or call.model is None:
            found.others = [plain(variable) for entry in self._order if entry is not known for variable in entry.alive]
        if call is not None:
            found.model = call.model
            if call.origin == "function":
                self._add_window(found, call)
        found.where = places(frame)
        found.epoch, found.steps_in_epoch = in_fit(frame)
        if not found.batches:
            found.notes.append("the batch is not known: nothing was fetched from a data set, and no function called")

    def _add_window(self, found: RejectedStep, call: OutermostCall) -> None:
        """The batches whose gradients were added up, and the state before the first of them."""
        window = call.window
        earlier = [] if window is None else [one for one in window.calls if one.arguments or one.keywords]
        if not found.batches and (call.arguments or call.keywords or not earlier):
            found.batches = [("script", one_of(call.arguments, call.keywords))]
        found.batches = [*[("script", one_of(one.arguments, one.keywords)) for one in earlier], *found.batches]
        if window is not None and window.calls:
            found.held = {**found.held, **window.before}
            found.moved = [*found.moved, *[one for call in window.calls for one in call.traced.written.values()]]
            found.unreadable = [*found.unreadable, *unread(window.calls)]

    def found(self, found: RejectedStep) -> None:
        """Save a step that must not be applied, and say so; raises SystemExit where the training is to end."""
        triggers = found.triggers(self._conditions)
        saved = self.capture.attempt(found.contents, self._conditions)
        path = None if saved is None else self.capture.save(*saved)
        self.capture.captured(found.step, in_words(triggers[0]) if triggers else "it is not finite", path)

    # In graphs

    def _for_host(
        self, site: UpdateSite, step: TensorFlowStep, gradients: list[Any], before: dict[int, tuple[Any, Any]]
    ) -> tuple[Callable[[dict[str, Any]], None], dict[str, Any]]:
        """In a graph: a function on the host for a step that must not be applied, and all that a snapshot needs."""
        held = {str(key): value for key, (_, value) in before.items()}
        site.moved = before
        batches = step.batches or batch_in_graph()
        seen = {
            "gradients": gradients,
            "loss": step.loss,
            "batches": [value for _, value in batches],
            "held": held,
            "activations": [finite for _, finite in step.activations],
        }
        seen["drawn"] = site.drawn()
        seen["given"] = numbers_given_to(step.graph)
        origins = [origin for origin, _ in batches]
        loops = in_loop()

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, list(zip(origins, seen["batches"])))  # noqa: B905
            found.held = {int(key): value for key, value in seen["held"].items()}
            self.end_behind(site, found, loops=loops, call=self._call_with(seen["given"]))

        return on_host, seen

    def _call_host_together(self, strategy: Any, together: ReplicaRound) -> None:
        """The same behind the run of several replicas, with the batches of those of this process."""
        step, site, number, loops = together.step, together.site, worker(strategy), in_loop()
        if step is None:
            return
        origins = [origin for origin, _ in step.batches]
        seen = {
            "gradients": together.gradients,
            "loss": together.shares[0].loss,
            "where": together.shares[0].where,
            "batches": [value for _, value in step.batches],
            "held": {str(key): value for key, (_, value) in step.held.items()},
            "activations": [finite for _, finite in step.activations],
            "drawn": site.drawn(),
        }

        def on_host(seen: dict[str, Any]) -> None:
            found = self.of_site(site, seen, list(zip(origins, seen["batches"])))  # noqa: B905
            found.held = {int(key): value for key, value in seen["held"].items()}
            found.norm_limit, found.place = None, number
            found.notes.append(OF_THE_FIRST)
            found.only_in = int(seen["where"])
            found.replicas = [share.number for share in together.shares]
            self.end_behind(site, found, loops=loops)

        call_host(on_host, seen)

    def of_site(self, site: UpdateSite, seen: dict[str, Any], batches: list[tuple[str, Any]]) -> RejectedStep:
        found = RejectedStep(site.known.optimizer(), site.variables, seen["gradients"])
        found.loss, found.batches = seen["loss"], batches
        found.activations = [(name, bool(one)) for name, one in zip(site.activations, seen["activations"])]  # noqa: B905
        found.drawn = list(zip(site.draws, seen.get("drawn", ())))  # noqa: B905
        found.unreadable = self.capture.attempt(lambda: site.unreadable) or []
        found.moved = _variables(site.moved)
        if self._conditions.gradient_jump is not None:
            mean, _ = as_array(site.known.memory.norms).tolist()
            found.norm_limit = self._conditions.gradient_jump * mean
        return found

    def _call_with(self, given: list[Any]) -> OutermostCall | None:
        """The call under way that was given these numbers: threads may call the same graph at once."""
        if self.here.call is None and len(self.calls) > 1:
            wanted = [digest(one) for one in given]
            for call in self.calls:
                flat = sys.modules["tensorflow"].nest.flatten([call.arguments, call.keywords], expand_composites=True)
                if wanted == [digest(one) for one in flat if has_numbers(one)]:
                    return call
        return self.current()

    def end_behind(
        self, site: UpdateSite, found: RejectedStep, *, loops: bool, call: OutermostCall | None = None
    ) -> None:
        """Handle what was found; the training ends when its call has come back, or at once where a graph loops."""
        call = call or self.current()
        if call is not None and call.pending is not None:  # an earlier step of the same graph, which ends the training
            return
        if call is not None and not loops and call.captured is site.step:  # where another optimizer was to update
            site.known.skipped += 1
            return
        if call is not None:
            call.captured = site.step
        frame = None if call is None else sys._current_frames().get(call.thread)
        pending = self._handle(found, site.known, call, frame)
        if pending is None:
            return
        if found.place is not None:
            wait_for_workers()
        if call is None:
            raise pending
        call.pending = pending
        if loops:
            raise RuntimeError("the step was captured, and no further one is taken")

    # ---- going back --------------------------------------------------------------------------------------------------

    def _keep_or_go_back(self, goes_back: bool) -> None:
        """Go back to the state that was kept last, or keep the present one where it is time to."""
        if goes_back:
            for variable, value in self._good:
                put_variable(variable, value)
            return
        self._since += 1
        if not self._good or self._since >= self._settings.rollback_every:
            self._since = 0
            self._good = [(variable, read(variable)) for variable in self._all_variables()]

    def _all_variables(self) -> list[Any]:
        found: dict[int, Any] = {}
        for known in self._order:
            optimizer = known.optimizer()
            if optimizer is not None:
                for variable in [*known.variables, *optimizer_variables(optimizer)]:
                    found[resource_id(variable)] = plain(variable)
        return list(found.values())


def _updated(known: OptimizerRecord) -> list[Any]:
    """What an optimizer's update writes to."""
    return [*known.variables, *optimizer_variables(known.optimizer())]


def _variables(held: dict[int, tuple[Any, Any]]) -> list[Any]:
    return [variable for variable, _ in held.values()]


def _library(path: str | None) -> Any:
    from ..trail_library import Library

    return None if path is None else Library(path)


def _classes(module: ModuleType) -> list[type]:
    return [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]


def _pairs(
    optimizer: Any, gradients: list[Any], by_pairs: bool, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> list[tuple[Any, Any]]:
    """The gradients that there are, each with its variable."""
    if by_pairs:
        return [(gradient, variable) for gradient, variable in gradients if gradient is not None]
    variables = (arguments and arguments[0]) or keywords.get("trainable_variables") or optimizer._trainable_variables
    return [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]  # noqa: B905


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Have an optimizer of Keras 3 make its variables, where it would itself: outside of the condition."""
    module = sys.modules.get("keras.src.backend")
    if module is None or getattr(optimizer, "built", True) or not hasattr(optimizer, "_tracker"):
        return
    with module.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.built = True


def _is_of_keras(fn: Any) -> bool:
    return str(getattr(fn, "__module__", "")).startswith(("keras.", "tf_keras.", "tensorflow.python.keras."))
