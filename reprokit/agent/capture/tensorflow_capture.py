"""Captures the steps of TensorFlow 2 and Keras whose gradients or loss are not finite, before they are applied.

Gradients are tested where an optimizer applies them: in eager code before that, in graphs by the graph itself
(tensorflow_updates). Where a function compiled by XLA is called, a variable is looked at afterwards. A failure of ours
leaves the training as it is.
"""

from __future__ import annotations

import functools
import sys
import weakref

from .. import events
from ..core import native_module
from ..tensorflow import private_api
from ..tensorflow.decisions import TensorFlowDecisions
from ..tensorflow.evaluation import is_of_tensorflow
from .random_states import RandomStates
from .settings import NEEDS_KERAS_ON_TENSORFLOW, NEEDS_TENSORFLOW_2, STOP
from .tensorflow_graphs import ReplicaRound, are_finite, call_host, in_loop, now, put_back, replica
from .tensorflow_state import FIT, SCRIPT, as_array, is_finite, plain, put_variable, read, resource_id
from .tensorflow_steps import (
    ALWAYS,
    AccumulationWindow,
    FunctionRecord,
    OutermostCall,
    TrainingState,
    one_of,
)
from .tensorflow_updates import Rejections, UpdateGuard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from . import CaptureSession
    from .tensorflow_steps import TensorFlowStep
    from .tensorflow_updates import UpdateSite

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Pairs = list[tuple[Any, Any]]  # of variables and their values
    Function = Callable[..., Any]

MAX_LOSSES = 16  # of one step
MAX_DRAWN = 10_000
COMPUTED_AGAIN = "the step was compiled by XLA; its gradients were computed once more to be kept"
NOT_COMPUTED_AGAIN = "the gradients could not be computed once more"


class TensorFlowCapture:
    """Listens to trainings by TensorFlow and Keras."""

    def __init__(self, capture: CaptureSession, first: events.EventListener | None = None) -> None:
        self._capture = capture
        self.training = TrainingState()
        self.rejections = Rejections(capture, self.training)
        xla = XlaCalls(self.rejections)
        self.updates = UpdateGuard(self.rejections, xla)
        self.calls = OutermostCalls(self.updates, xla)
        self._events = events.Events()
        for listener in (first, self):
            if listener is not None:
                self._events.add(listener)
        order = self.training.order
        self._hooks = TensorFlowDecisions(self._events, lambda: [one for known in order for one in known.remembering])

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to a module that has just been executed."""
        version = old_version()
        if version:
            self._capture.unavailable("tensorflow", version, NEEDS_TENSORFLOW_2)
            return
        if name == "tensorflow":
            self.rejections.random = RandomStates(compiled=native_module.load(self._capture.settings.library))
        self._hooks.watch(name, module)

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        outputs: dict[type[events.TrainingEvent], events.Handler] = {events.OutputComputed: self._output_computed}
        return {
            events.BatchFetched: self._batch_fetched,
            events.LoaderExhausted: self._loader_exhausted,
            events.ForwardBegan: self._forward_began,
            events.ForwardEnded: self._forward_ended,
            events.BackwardBegan: self._backward_began,
            events.LossScaled: self._loss_scaled,
            events.VariableChanges: self._variable_changes,
            events.RandomDrawn: self._random_drawn,
            events.GradientsDue: self._gradients_due,
            events.FunctionDue: self.calls.function_due,
            events.ReplicasDue: self.calls.replicas_due,
            **(outputs if self._capture.settings.conditions.activations else {}),
        }

    def failed(self, error: Exception, handler: events.Handler) -> None:
        """The training goes on, and so do the captures."""
        self._capture.failed(handler, error)

    def forget(self) -> None:
        """Drop what a parent process noted, in a forked child."""
        self.training.forget()
        self.updates.rollback.forget()

    def _gradients_due(self, event: events.GradientsDue) -> None:
        if is_of_tensorflow(event.optimizer):
            self.updates.gradients_due(event)
        else:
            self._capture.unavailable("keras", sys.modules["keras"].__version__, NEEDS_KERAS_ON_TENSORFLOW)

    # Batches and tapes

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        here = self.training.here
        if private_api.executing_eagerly():
            here.fetched.add(event.began, event.batch, here.step)
        else:
            private_api.default_graph()._reprokit_batch = event.batch

    def _loader_exhausted(self, event: events.LoaderExhausted) -> None:
        here = self.training.here
        here.fetched.ended(event.began, here.step)

    def _forward_began(self, _event: events.ForwardBegan) -> None:
        step = self.training.step()
        if step is None or (step.over and (step.graph is None or step.graph is private_api.default_graph())):
            step = self.training.begin_step()
        step.tapes += 1

    def _forward_ended(self, _event: events.ForwardEnded) -> None:
        step = self.training.step()
        if step is not None:
            step.tapes = max(0, step.tapes - 1)

    # What it comes to

    def _backward_began(self, event: events.BackwardBegan) -> None:
        step, call = self.training.step(), self.training.call()
        if step is None:
            return
        step.differentiated = True
        if step.graph is not None and call is not None:
            call.traced.differentiates = True
            call.traced.graph = weakref.ref(step.graph)
            call.steps = [*call.steps, step]
        flat = sys.modules["tensorflow"].nest.flatten(event.tensors)
        losses = [one for one in flat if getattr(getattr(one, "dtype", None), "is_floating", False)]
        step.values.losses = [*step.values.losses, *losses][-MAX_LOSSES:]

    def _loss_scaled(self, event: events.LossScaled) -> None:
        step = self.training.step()
        if step is not None and hasattr(event.loss, "dtype"):
            step.values.unscaled = event.loss

    def _output_computed(self, event: events.OutputComputed) -> None:
        """Look at a layer's outputs, where activations are asked for."""
        if not hasattr(event.module, "weights") or not is_of_tensorflow(event.module):  # a loss is no layer
            return
        step = self.training.step()
        if step is None or step.differentiated:
            return
        if step.graph is not None and step.graph is not private_api.default_graph():
            return
        tensorflow = sys.modules["tensorflow"]
        flat = [one for one in tensorflow.nest.flatten(event.output) if getattr(one, "dtype", None) is not None]
        floats = [one for one in flat if hasattr(one, "op") or private_api.has_value(one)]
        finite = [tensorflow.reduce_all(tensorflow.math.is_finite(one)) for one in floats if one.dtype.is_floating]
        if finite:
            name = str(getattr(event.module, "path", None) or event.module.name)
            step.values.activations.append((name, tensorflow.reduce_all(tensorflow.stack(finite))))

    # What it changes

    def _variable_changes(self, event: events.VariableChanges) -> None:
        step = self.training.step()
        if step is not None:
            step.hold(event.variable)

    def _random_drawn(self, event: events.RandomDrawn) -> None:
        """Note what no state tells; graphs hand it out themselves."""
        step = self.training.step() if private_api.has_value(event.drawn) else None
        if step is not None and not step.over and len(step.values.drawn) < MAX_DRAWN:
            step.values.drawn.append((event.kind, event.drawn))


def old_version() -> str:
    """Return which TensorFlow is here, if its steps cannot be seen."""
    version = str(getattr(sys.modules.get("tensorflow"), "__version__", ""))
    return version if version.startswith("1.") else ""


class OutermostCalls:
    """Outermost calls of a training from eager code, and the steps that a strategy runs in them."""

    def __init__(self, updates: UpdateGuard, xla: XlaCalls) -> None:
        self._rejections = updates.rejections
        self._capture = self._rejections.capture
        self._training = self._rejections.training
        self._rollback = updates.rollback
        self._xla = xla
        self.run: Callable[[OutermostCall], Any] = OutermostCall.run  # makes an outermost call

    def function_due(self, due: events.FunctionDue) -> None:
        """A Keras train function, or a function of the script's, be it within another."""
        if due.model is None and hasattr(due.function, "python_function") and private_api.is_compiled(due.function):
            due.call = functools.partial(self._xla.call, due.call)
        if self._training.here.call is None and private_api.executing_eagerly():
            call = OutermostCall(due)
            due.call = lambda *_arguments, **_keywords: self._outermost(call)

    def _outermost(self, call: OutermostCall) -> Any:
        """Make an outermost call. What was captured in it ends the training behind it, also where the call fails."""
        self._begins(call)
        try:
            result = self.run(call)
        except Exception:
            if call.pending is not None:
                raise call.pending from None
            raise
        finally:
            self._ends(call)
        if call.pending is not None:
            raise call.pending
        if self._rollback.is_on and call.trains:
            self._capture.attempt(self._rollback.keep_or_go_back, call.rolls_back)
        return result

    def _begins(self, call: OutermostCall) -> None:
        here, traced = self._training.here, call.traced
        has_window = here.window is not None and here.window.calls
        if call.model is not None or (traced.updates == ALWAYS and here.window is not None and not has_window):
            self._rejections.keep_random()
        else:  # its gradients may wait for another call's update, or those of others for its own
            window = call.window = here.window = here.window or AccumulationWindow(self._training.updates)
            if call.trains and not window.calls:
                self._rejections.keep_random()
            self._capture.attempt(window.opens, call)
        here.call = call
        self._training.calls.append(call)

    def _ends(self, call: OutermostCall) -> None:
        """It is over, in whichever way."""
        self._training.here.call = None
        self._training.calls.remove(call)
        traced = call.traced
        if traced.trains is None and self._xla.tracing is None:
            traced.trains = False
        for step in call.steps:
            traced.written.update({key: variable for key, (variable, _) in step.variables.held.items()})
        call.steps = ()
        if call.window is not None:
            self._capture.attempt(call.window.closes, call)

    # Steps that a strategy runs, be it the strategy that Keras uses where there is none

    def replicas_due(self, due: events.ReplicasDue) -> None:
        if self._training.call() is None:
            return
        together, run = ReplicaRound(), due.call
        due.function = self._step_function(due.function, together)

        def call(function: Function) -> Any:
            result = run(function)
            host = functools.partial(self._rejections.call_host_together, due.strategy, together)
            self._capture.attempt(together.end, host)
            return result

        due.call = call

    def _step_function(self, fn: Function, together: ReplicaRound) -> Function:
        status = private_api.module("autograph_status").control_status_ctx()
        converted = private_api.module("autograph").tf_convert(fn, status, convert_by_default=False)
        origin = FIT if private_api.is_of_keras(str(getattr(fn, "__module__", ""))) else SCRIPT

        def step_function(*arguments: Any, **keywords: Any) -> Any:
            step = self._training.step() if self._xla.tracing is not None else together.step
            step = step or self._training.begin_step()
            step.pinned = True
            batch = (origin, one_of(arguments, keywords))
            if replica() is not None:
                together.add(step, batch)
                return converted(*arguments, **keywords)
            step.values.batches = [batch]
            try:
                return converted(*arguments, **keywords)
            finally:
                self._capture.attempt(self._step_ends, step)

        step_function.autograph_info__ = None  # type: ignore[attr-defined]
        return step_function

    def _step_ends(self, step: TensorFlowStep) -> None:
        """What a step that was not applied moved after its update, as metrics, is put back where training goes on."""
        step.pinned = False
        moved = list(step.variables.held.values())[step.variables.count :]
        if step.finite is None or not step.applied or not moved or self._capture.settings.action == STOP:
            return
        step.passes = True
        if step.graph is None:
            put_back(moved)
        else:
            tensorflow = sys.modules["tensorflow"]
            tensorflow.cond(step.finite, lambda: None, lambda: put_back(moved))


class XlaCalls:
    """Calls of functions that XLA compiles: what they update is held before, and behind them the flag is looked at.

    A graph cannot be asked for more than it hands out once XLA has compiled it, so a step that should not have happened
    has, and is undone: the variables are given what they had. Its gradients are computed once more to be kept.
    """

    def __init__(self, rejections: Rejections) -> None:
        self.tracing: dict[str, Any] | None = None  # of a function that gives gradients: by the id of the optimizer
        self._rejections = rejections
        self._capture = rejections.capture
        self._training = rejections.training

    # ---- calls of compiled functions ---------------------------------------------------------------------------------

    def call(self, bare: Function, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a function that XLA compiles, by what calls it as TensorFlow does."""
        record, here = FunctionRecord.of(function), self._training.here
        if here.compiled is not None or self.tracing is not None or record.reveals is function:
            return bare(function, *arguments, **keywords)
        before = self._capture.attempt(self._before, record, function, arguments, keywords)
        here.compiled = record
        try:
            result = bare(function, *arguments, **keywords)
        finally:
            here.compiled = None
        if before is not None:
            look = self._look if private_api.executing_eagerly() else self._look_in_graph
            self._capture.attempt(look, function, arguments, keywords, before)
        return result

    def expect(self, site: UpdateSite, step: TensorFlowStep) -> None:
        """Behind the call of the outermost function that is being built, its flag is to be looked at."""
        record = self._training.here.compiled
        if record is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.moved = step.variables.held
        record.sites = [*[one for one in record.sites or () if one.known is not site.known], site]
        record.moved = None

    def _before(self, record: FunctionRecord, function: Any, arguments: Arguments, keywords: Keywords) -> Pairs:
        """Return what the variables that a compiled function updates have before it is called."""
        if record.sites is None:  # its graph is built before, so that it is known what it updates
            self._training.here.compiled = record
            self._capture.attempt(lambda: function.get_concrete_function(*arguments, **keywords))
            self._training.here.compiled = None
            record.sites = record.sites or []
        if record.moved is None:
            moved = [variable for site in record.sites for variable, _ in site.moved.values()]
            updated = [variable for site in record.sites for variable in [*site.variables, *site.known.updated]]
            record.moved = list({resource_id(one): plain(one) for one in [*updated, *moved]}.values())
        return [(variable, variable.read_value()) for variable in record.moved]

    # ---- behind them -------------------------------------------------------------------------------------------------

    def _look(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from eager code."""
        for site in FunctionRecord.of(function).sites or ():
            after = list(map(read, site.updated))
            if site.known.memory.is_flagged() or not all(is_finite(as_array(value)) for value in after):
                for variable, value in before:
                    put_variable(variable, value)
                self._revealed(site, function, arguments, keywords, {"after": after}, loops=False)

    def _look_in_graph(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Behind a call of a compiled function from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], in_loop()
        for site in FunctionRecord.of(function).sites or ():

            def host(site: UpdateSite = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._revealed(site, function, tuple(seen["arguments"]), seen["keywords"], seen, loops=loops)

                after = now(site.updated)
                put_back(before)
                graph = private_api.default_graph()
                put = [one for one in graph.get_operations() if one.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(put):
                    call_host(on_host, {"arguments": list(arguments), "keywords": keywords, "after": after})
                return tensorflow.constant(0)

            good = tensorflow.logical_and(site.known.memory.good.read_value(), are_finite(now(site.updated)))
            tensorflow.cond(good, lambda: tensorflow.constant(0), host)

    def _revealed(
        self,
        site: UpdateSite,
        function: Any,
        arguments: Arguments,
        keywords: Keywords,
        known: dict[str, Any],
        *,
        loops: bool,
    ) -> None:
        put_variable(site.known.memory.good, True)
        key = str(id(site.known.optimizer()))
        seen = self._capture.attempt(lambda: self._reveal(function)(*arguments, **keywords)[key])
        note = COMPUTED_AGAIN
        if seen is None:
            seen = {"gradients": [None] * len(site.variables), "loss": None, "activations": []}
            note = NOT_COMPUTED_AGAIN
        seen = {**seen, "batches": [one_of(arguments, keywords)], "after": known["after"]}
        found = self._rejections.of_site(site, seen, [FIT if site.model is not None else SCRIPT])
        found.notes.append(note)
        self._rejections.end_behind(site, found, loops=loops)

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def take(self, step: TensorFlowStep, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Note gradients in the place of an update."""
        assert self.tracing is not None
        self.tracing[str(id(optimizer))] = {
            "gradients": [gradient for gradient, _ in pairs],
            "loss": step.values.loss,
            "activations": [finite for _, finite in step.values.activations],
        }

    def _reveal(self, function: Any) -> Any:
        """Return the function that gives the gradients, loss and activations of the step that another takes."""
        record = FunctionRecord.of(function)
        if record.reveals is None:
            make = sys.modules["tensorflow"].function
            is_compiled = private_api.is_compiled(function)
            record.reveals = make(self._revealing(function), jit_compile=is_compiled, autograph=False)
            FunctionRecord.of(record.reveals).reveals = record.reveals
        return record.reveals

    def _revealing(self, function: Any) -> Function:
        python, is_converted = private_api.python_function(function)
        if is_converted:  # as autograph makes it
            status = private_api.module("autograph_status")
            enabled = status.ControlStatusCtx(status=status.Status.ENABLED)
            python = private_api.module("autograph").tf_convert(python, enabled)

        def reveal(*arguments: Any, **keywords: Any) -> dict[str, Any]:
            found = self.tracing = {}
            step = self._training.begin_step()
            step.pinned = True
            try:
                python(*arguments, **keywords)
            finally:
                self.tracing = None
                step.passes = True
                put_back(list(step.variables.held.values()))
            return found

        return reveal
