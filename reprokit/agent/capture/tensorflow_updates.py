"""Applies the updates of TensorFlow's optimizers only if everything is finite, in eager code and in graphs.

A step that must not be applied is described here (a RejectedStep), and then saved, or compared.
"""

from __future__ import annotations

import sys

from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.tensors import is_eager
from ..tensorflow.training_state import as_array, plain, put_variable, put_variables, read_variable, resource_id
from . import tensorflow_graphs as graphs
from .settings import ROLLBACK, STOP
from .tensorflow_graphs import UpdateSite
from .tensorflow_snapshot import RejectedStep, RejectionHandler, local_batch
from .tensorflow_state import FIT, LOADER, SCRIPT, is_finite, loss_scale
from .tensorflow_steps import FunctionRecord, StepValues, as_one_value
from .variables import loop_counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..events.steps import GradientsDue
    from . import CaptureSession
    from .tensorflow_steps import OutermostCall, TensorFlowStep, TrainingState, WatchedOptimizer

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Function = Callable[..., Any]
    Pairs = list[tuple[Any, Any]]  # of gradients, or values, and variables

COMPUTED_AGAIN = "the step's gradients were computed once more to be kept"
NOT_COMPUTED_AGAIN = "the gradients could not be computed once more"


class XlaCalls:
    """Handles calls of XLA-compiled functions: saves the variables they update, and checks a flag after the call.

    A compiled graph returns nothing beyond its outputs. So a step that must not happen does, and is then undone by
    restoring the variables. Its gradients are computed again for the snapshot.
    """

    def __init__(self, rejections: RejectionHandler) -> None:
        self.tracing: dict[str, Any] | None = None  # gradients by optimizer's id, while a gradient function is traced
        self._rejections = rejections
        self._capture = rejections.capture
        self._training = rejections.training

    # ---- calls of compiled functions ---------------------------------------------------------------------------------

    def call(self, call_function: Function, function: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call an XLA-compiled function by TensorFlow's own way, and check its steps afterwards."""
        record, thread_state = FunctionRecord.of(function), self._training.thread_state
        if thread_state.compiled is not None or self.tracing is not None or record.gradient_function is function:
            return call_function(function, *arguments, **keywords)
        values_before = self._capture.attempt(self._values_before_call, record, function, arguments, keywords)
        thread_state.compiled = record
        try:
            result = call_function(function, *arguments, **keywords)
        finally:
            thread_state.compiled = None
        if values_before is not None:
            check = self._check_flags if private_api.executing_eagerly() else self._check_flags_in_graph
            self._capture.attempt(check, function, arguments, keywords, values_before)
        return result

    def add_site(self, site: UpdateSite, step: TensorFlowStep) -> None:
        """Have the flag of this update checked after the call of the outermost function that is being built."""
        record = self._training.thread_state.compiled
        if record is None:
            raise RuntimeError("a function compiled by XLA was built by no call of it")
        site.changed = step.variables.saved
        record.sites = [*[other for other in record.sites or () if other.watched is not site.watched], site]
        record.changed = None

    def _values_before_call(
        self, record: FunctionRecord, function: Any, arguments: Arguments, keywords: Keywords
    ) -> Pairs:
        """Return the variables that a compiled function updates, with their values before its call."""
        if record.sites is None:  # its graph is built first, which shows what it updates
            self._training.thread_state.compiled = record
            self._capture.attempt(lambda: function.get_concrete_function(*arguments, **keywords))
            self._training.thread_state.compiled = None
            record.sites = record.sites or []
        if record.changed is None:
            changed = [variable for site in record.sites for variable, _ in site.changed.values()]
            updated = [variable for site in record.sites for variable in [*site.variables, *site.watched.updated]]
            record.changed = list({resource_id(each): plain(each) for each in [*updated, *changed]}.values())
        return [(variable, variable.read_value()) for variable in record.changed]

    # ---- after calls ------------------------------------------------------------------------------------------------

    def _check_flags(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Check the flags after a call from eager code; undo a step that should not have happened."""
        for site in FunctionRecord.of(function).sites or ():
            after = list(map(read_variable, site.updated))
            if site.watched.memory.is_flagged() or not all(is_finite(as_array(value)) for value in after):
                put_variables(before)
                self._report_rejected(site, function, arguments, keywords, {"after": after}, loops=False)

    def _check_flags_in_graph(self, function: Any, arguments: Arguments, keywords: Keywords, before: Pairs) -> None:
        """Add the same check after a call from a graph that is being built."""
        tensorflow, loops = sys.modules["tensorflow"], graphs.in_loop()
        for site in FunctionRecord.of(function).sites or ():

            def host(site: UpdateSite = site) -> Any:
                def on_host(seen: dict[str, Any]) -> None:
                    self._report_rejected(site, function, tuple(seen["arguments"]), seen["keywords"], seen, loops=loops)

                after = graphs.current_values(site.updated)
                graphs.restore_values(before)
                graph = private_api.default_graph()
                assignments = [node for node in graph.get_operations() if node.type == "AssignVariableOp"]
                with tensorflow.control_dependencies(assignments):
                    graphs.call_host(on_host, {"arguments": list(arguments), "keywords": keywords, "after": after})
                return tensorflow.constant(0)

            is_good = tensorflow.logical_and(
                site.watched.memory.all_good.read_value(), graphs.are_finite(graphs.current_values(site.updated))
            )
            tensorflow.cond(is_good, lambda: tensorflow.constant(0), host)

    def _report_rejected(
        self,
        site: UpdateSite,
        function: Any,
        arguments: Arguments,
        keywords: Keywords,
        host_values: dict[str, Any],
        *,
        loops: bool,
    ) -> None:
        put_variable(site.watched.memory.all_good, True)
        values, note = self.computed_again(site, lambda: self._gradient_function(function)(*arguments, **keywords))
        values = {**values, "batches": [as_one_value(arguments, keywords)], "after": host_values["after"]}
        rejected = self._rejections.of_site(site, values, [FIT if site.model is not None else SCRIPT])
        rejected.notes.append(note)
        self._rejections.end_after_call(site, rejected, loops=loops)

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def record_gradients(self, step: TensorFlowStep, optimizer: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Record gradients in place of an update, while a gradient function is traced."""
        assert self.tracing is not None
        step.applied = True
        self.tracing[str(id(optimizer))] = {
            "gradients": [gradient for gradient, _ in pairs],
            "loss": step.values.loss,
            "activations": [finite for _, finite in step.values.activations],
        }

    def computed_again(self, site: UpdateSite, compute: Function) -> tuple[dict[str, Any], str]:
        """Return gradients, loss and outputs that an update was given, computed once more, and a note on that."""
        key = str(id(site.watched.optimizer()))
        values = self._capture.attempt(lambda: compute()[key])
        if values is not None:
            return values, COMPUTED_AGAIN
        return {"gradients": [None] * len(site.variables), "loss": None, "activations": []}, NOT_COMPUTED_AGAIN

    def gradients_of_call(self, call: OutermostCall, batch: Any = None, *, arguments: Arguments | None = None) -> Any:
        """Return gradients, loss and outputs of the updates in a call, without applying them; Keras' of this batch.

        A script's function is called with its own arguments or these.
        """
        if call.model is None:
            return self._gradient_function(call.function)(*(arguments or call.arguments), **call.keywords)
        return self.step_function(call.model, self._revealing)(batch)

    @staticmethod
    def step_function(model: Any, around: Function = lambda step: step) -> Any:
        """Return a function that makes one step of a model of Keras with a batch."""
        step = around(lambda data: model.distribute_strategy.run(model.train_step, args=(data,)))
        is_compiled = getattr(model, "jit_compile", False) is True
        return sys.modules["tensorflow"].function(step, jit_compile=is_compiled, autograph=False)

    def _gradient_function(self, function: Any) -> Any:
        """Return a function that computes gradients, loss and activations of a function's step without applying."""
        record = FunctionRecord.of(function)
        if record.gradient_function is None:
            make = sys.modules["tensorflow"].function
            is_compiled = private_api.is_compiled(function)
            record.gradient_function = make(
                self._collecting_gradients(function), jit_compile=is_compiled, autograph=False
            )
            FunctionRecord.of(record.gradient_function).gradient_function = record.gradient_function
        return record.gradient_function

    def _collecting_gradients(self, function: Any) -> Function:
        python, is_converted = private_api.python_function(function)
        if is_converted:  # AutoGraph would convert it, too
            status = private_api.module("autograph_status")
            enabled = status.ControlStatusCtx(status=status.Status.ENABLED)
            python = private_api.module("autograph").tf_convert(python, enabled)
        return self._revealing(python)

    def _revealing(self, python: Function) -> Function:
        def reveal(*arguments: Any, **keywords: Any) -> dict[str, Any]:
            gradients = self.tracing = {}
            step = self._training.begin_step()
            step.pinned = True
            try:
                python(*arguments, **keywords)
            finally:
                self.tracing = None
                step.is_updating = True
                graphs.restore_values(list(step.variables.saved.values()))
            return gradients

        return reveal


class RollbackState:
    """The state to roll back to, of all variables that optimizers update."""

    def __init__(self, capture: CaptureSession, training: TrainingState) -> None:
        self.is_on = capture.settings.action == ROLLBACK
        self._every = capture.settings.rollback_every
        self._training = training
        self._since = 0
        self._optimizers = 0
        self._saved_values: list[tuple[Any, Any]] = []  # variables and values

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self._saved_values = []

    def keep_or_roll_back(self, rolls_back: bool) -> None:
        """Roll back to the saved state, or save the current one if it is due."""
        if len(self._training.watched) != self._optimizers:  # nothing is saved of a new optimizer
            self._optimizers, self._saved_values = len(self._training.watched), []
        if rolls_back:
            put_variables(self._saved_values)
            return
        self._since += 1
        if not self._saved_values or self._since >= self._every:
            self._since = 0
            self._saved_values = [(variable, read_variable(variable)) for variable in self._training.variables()]


class UpdateGuard:
    """Guards the updates of all optimizers of this process."""

    def __init__(self, rejections: RejectionHandler, xla: XlaCalls) -> None:
        self.rejections = rejections
        self.rollback = RollbackState(rejections.capture, rejections.training)
        self.applied_listeners: list[Callable[[Any], object]] = []  # called with the optimizer of an applied eager step
        self._capture = rejections.capture
        self._training = rejections.training
        self._settings = self._capture.settings
        self._conditions = self._settings.conditions
        self._xla = xla

    def gradients_due(self, due: GradientsDue) -> None:
        """Replace an update with one that is applied only if everything is finite."""
        optimizer, pairs, update = due.optimizer, due.pairs, due.update
        due.update = lambda: self._apply(optimizer, pairs, update)  # type: ignore[arg-type]

    def _apply(self, optimizer: Any, pairs: Pairs, update: Function) -> Any:
        step = self._training.step() or self._training.begin_step()
        if self._xla.tracing is not None:
            self._xla.record_gradients(step, optimizer, pairs)
            return None
        watched, replica = self._training.watch_optimizer(optimizer, pairs), graphs.replica()
        if step.is_over and watched in step.optimizers:  # the tape of this one recorded in a function
            step = self._training.begin_step()
        is_in_graph = not all(is_eager(gradient) for gradient, _ in pairs)
        if self.rejections.requested.number is not None and (is_in_graph or replica is not None):
            self._note_site(step, watched, [variable for _, variable in pairs])
            return update()
        if replica is not None:
            return self._apply_together(replica, step, watched, pairs, update)
        if not is_in_graph:
            return self._apply_eagerly(step, watched, pairs, update)
        try:
            self._apply_in_graph(step, watched, pairs, update)
        except Exception as error:
            self._capture.say_once(f"warning: steps are not captured: {type(error).__name__}: {error}")
            pass_on(error)
            return update()
        return None

    # In graphs

    def _apply_in_graph(self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function) -> None:
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        private_api.build(watched.optimizer(), variables)
        site = self._site(step, watched, variables, sometimes=private_api.default_graph() is not step.graph)
        test = graphs.UpdateTest(step.values, gradients, self._conditions, watched.memory, _may_overflow(watched))
        step.variables.count = len(step.variables.saved)
        if private_api.in_xla():
            self._xla.add_site(site, step)
            graphs.flagged_update(step, test, update, watched.memory)
        else:
            for metric in getattr(site.model, "metrics", ()):  # they change while the host handles a step
                for variable in metric.variables:
                    self._capture.attempt(step.variables.save_value, plain(variable))
            watched.changed.update({key: variable for key, (variable, _) in step.variables.before.items()})
            updated = site.updated
            if updated:
                self._capture.attempt(step.variables.save_updated, watched.updated)
            stops, saved = self._settings.action == STOP, step.variables.before
            changed = [*step.variables.saved.values(), *step.variables.updated.values()]
            if stops:  # the snapshot has the state before the call
                changed = list(saved.values())
            if not updated:  # for a further optimizer in the same step
                self._capture.attempt(step.variables.save_updated, watched.updated)
            on_host, tensors = self.rejections.host_callback(site, step, gradients, saved)

            def host() -> None:
                graphs.call_host(on_host, {**tensors, "after": graphs.current_values(updated)})

            graphs.conditional_update(step, test, update, host, changed, updated, stops=stops)
        step.applied = True

    def _site(
        self, step: TensorFlowStep, watched: WatchedOptimizer, variables: list[Any], sometimes: bool
    ) -> UpdateSite:
        call = self._training.call()
        if call is not None:
            call.record.has_update(sometimes=sometimes)
        return UpdateSite(watched, variables, step, call)

    def _note_site(self, step: TensorFlowStep, watched: WatchedOptimizer, variables: list[Any]) -> None:
        """Note an update in a graph that stays as it is, for the snapshot that a replay may take of its step."""
        step.applied = True
        site = self._site(step, watched, variables, sometimes=private_api.default_graph() is not step.graph)
        if site.record is not None:
            site.record.sites = [*(site.record.sites or ()), site]

    def _apply_together(
        self, replica: Any, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function
    ) -> Any:
        """Handle the update of one of several replicas, whose gradients are summed over them."""
        if step.replica_round is None:
            self._capture.say_once("warning: eager steps of several replicas are not captured, only a tf.function's")
            return update()
        if self._conditions.gradient_jump is not None:
            self._capture.say_once("warning: jumps of gradients are not looked for where there are several replicas")
        step.replica_round.site = self._site(step, watched, [variable for _, variable in pairs], sometimes=False)
        gradients = [gradient for gradient, _ in pairs]
        step.replica_round.take(replica, gradients, self._conditions, _may_overflow(watched))
        step.applied = True
        return update()

    # In eager code

    def _apply_eagerly(self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, update: Function) -> Any:
        if step.finite is False and step.applied:  # it was captured at another optimizer's update
            watched.skipped += 1
            return None
        gradients = [gradient for gradient, _ in pairs]
        test = graphs.UpdateTest(step.values, gradients, self._conditions, watched.memory, _may_overflow(watched))
        requested = self.rejections.requested
        finite = requested.number is not None or self._capture.attempt(lambda: bool(test.is_good()))
        private_api.build(watched.optimizer(), [variable for _, variable in pairs])
        for other in step.optimizers:  # variables of earlier optimizers are saved from now on
            other.shares = other.shares or other is not watched
        step.optimizers.append(watched)
        watched.changed.update({key: variable for key, (variable, _) in step.variables.saved.items()})
        step.variables.count = len(step.variables.saved)
        step.applied = True
        if finite is False:
            step.finite = False
            self._reject_eagerly(step, watched, pairs)
            return None
        is_due = requested.is_next(watched)
        is_tested = finite is not None and (is_due if requested.number is not None else watched.is_backed_up)
        if watched.shares or is_tested:
            self._capture.attempt(step.variables.save_updated, watched.updated)
        if is_due:
            self._capture.attempt(self._take_eagerly, step, watched, pairs)
        step.is_updating = True
        try:
            result = update()
        finally:
            step.is_updating = False
        after = [read_variable(variable) for _, variable in pairs] if is_tested else []
        is_ruined = is_tested and self._capture.attempt(lambda: bool(graphs.are_finite(after))) is False
        if is_ruined and is_due:
            self._capture.attempt(self._take_eagerly, step, watched, pairs, after)
        elif is_ruined:
            step.finite = False
            self._reject_eagerly(step, watched, pairs, after)
            return None
        self._capture.attempt(self._write_variables, step, test.remember)
        if self.rollback.is_on and self._training.thread_state.call is None:
            self._capture.attempt(self.rollback.keep_or_roll_back, False)
        for listener in self.applied_listeners:
            listener(watched.optimizer())
        return result

    def _write_variables(self, step: TensorFlowStep, pairs: Callable[[], Pairs]) -> None:
        """Write variables outside of the step's own writes: reprokit's, or saved values."""
        step.is_updating = True
        try:
            graphs.restore_values([(variable, value) for variable, value in pairs()])
        finally:
            step.is_updating = False

    def _take_eagerly(
        self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, after: Sequence[Any] = ()
    ) -> None:
        rejected = self._rejected_eagerly(step, watched, pairs, after)
        self.rejections.take(rejected, watched, self._training.call(), sys._getframe(1))

    def _reject_eagerly(
        self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, after: Sequence[Any] = ()
    ) -> None:
        rejected = self._rejected_eagerly(step, watched, pairs, after)
        pending = self.rejections.handle(rejected, watched, self._training.call(), sys._getframe(1))
        self._write_variables(step, lambda: [*step.variables.saved.values(), *step.variables.updated.values()])
        if pending is not None:
            raise pending
        if self.rollback.is_on and self._training.thread_state.call is None:
            self._capture.attempt(self.rollback.keep_or_roll_back, True)

    def _rejected_eagerly(
        self, step: TensorFlowStep, watched: WatchedOptimizer, pairs: Pairs, after: Sequence[Any]
    ) -> RejectedStep:
        values = StepValues(
            step.values.batches or [(LOADER, value) for value in self._training.thread_state.fetched.values]
        )
        values.losses, values.drawn = [] if step.values.loss is None else [step.values.loss], step.values.drawn
        values.activations = [(name, bool(finite)) for name, finite in step.values.activations]
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        rejected = RejectedStep(watched.optimizer(), variables, gradients, values)
        rejected.after = list(after)
        rejected.state.saved = {key: value for key, (_, value) in step.variables.before.items()}
        rejected.state.changed = [variable for variable, _ in step.variables.before.values()]
        if not values.batches and self._training.thread_state.call is None:
            values.batches = local_batch(sys._getframe(1))
            rejected.facts = rejected.facts.with_(loops=loop_counters(sys._getframe(1)))
        self.rejections.set_norm_mean(rejected, watched)
        return rejected


def _may_overflow(watched: WatchedOptimizer) -> Any:
    """Return a tensor: whether gradients may overflow, as a scaled loss's may; None if they never may."""
    scale = loss_scale(watched.optimizer())
    return None if scale is None else sys.modules["tensorflow"].convert_to_tensor(scale) > 1.0
