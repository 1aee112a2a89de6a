"""Hooks and wrappers of TensorFlow and Keras, which turn what a training does into events."""

from __future__ import annotations

import functools
import inspect
import sys

from ..core.digests import as_array
from ..core.exact_values import describe, leaves
from ..core.patching import replace
from ..events.steps import (
    EpochEnded,
    EvaluationDue,
    EvaluationEnded,
    Events,
    LossComputed,
    ResultsReported,
    UpdateDone,
    tell,
)
from ..listeners.metrics import Metrics
from ..predictions import predictions_of
from ..seeds.ledger import seeding, seeding_method, seeds_of
from . import private_api, tensors
from .dataset_samples import DatasetSamples
from .decisions import TensorFlowDecisions
from .evaluation import VALIDATION, Evaluations, TrueValues, backend_of, task_of
from .fit_samples import FitSamples
from .state import OptimizerStep, VariableRecords
from .steps import StepHooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..core.agent import Agent

    Function = Callable[..., Any]

_SEEDING = {"set_seed": "tensorflow.random.set_seed", "set_random_seed": "tensorflow.set_random_seed"}


def watch_seeding(agent: Agent, name: str, module: Any) -> None:
    """Record the seeds set through a module of TensorFlow or Keras; a replay substitutes the recorded ones."""
    if name.endswith("random.seed_generator"):
        call = "keras.random.SeedGenerator"
        replace(module.SeedGenerator, "__init__", lambda original: seeding_method(seeds_of(agent), call, original))
    elif name.endswith("framework.random_seed"):
        for function, call in _SEEDING.items():
            replace(module, function, functools.partial(seeding, seeds_of(agent), call))
    else:
        replace(module, "set_random_seed", functools.partial(seeding, seeds_of(agent), "keras.utils.set_random_seed"))


def watch_generators(agent: Agent, module: Any) -> None:
    """Record the seeds of tf.random.Generator.from_seed."""
    method = vars(module.Generator).get("from_seed")  # not in TensorFlow 1
    if isinstance(method, classmethod):
        original = method.__func__

        @functools.wraps(original)
        def from_seed(cls: Any, *arguments: Any, **keywords: Any) -> Any:
            call = "tensorflow.random.Generator.from_seed"
            seed = seeding(seeds_of(agent), call, functools.partial(original, cls), depth=2)
            return seed(*arguments, **keywords)

        module.Generator.from_seed = classmethod(from_seed)


class KerasHooks:
    """Reports the events of Keras models and of optimizers, also within functions."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.events = Events(agent.failed)
        self.records = VariableRecords(agent, self.events)
        self.events.add(Metrics(agent, self.events, None, tensors))
        self.steps = StepHooks(agent, self.events, self.records)
        self.events.add(self.steps)
        agent.begin_events("tensorflow", self.events)
        self._decisions = TensorFlowDecisions(self.events)
        self._true_values = TrueValues()
        self._evaluations = Evaluations(agent)
        self.samples = FitSamples(agent)
        self.datasets = DatasetSamples(agent)
        self.steps.step_callbacks = (self.samples.stepped, self.datasets.stepped)
        self.steps.failure_callback = self.datasets.failed

    def watch_sessions(self, module: Any) -> None:
        """Wrap the closing of sessions, to read the variables in them before."""
        replace(module.BaseSession, "close", self._make_close)

    def _make_close(self, original: Function) -> Function:
        def close(session: Any) -> None:
            if not private_api.is_closed(session):
                self._agent.attempt(self.records.session_closes, session)
            original(session)

        return close

    def watch(self, name: str, module: Any) -> None:
        """Instrument TensorFlow, or a module with optimizers, layers, losses or models."""
        if name != "tensorflow" or private_api.module("polymorphic") is not None:  # TensorFlow 2
            self._decisions.watch(name, module)
        if name == "tensorflow":
            self.steps.watch_replicas()
        if "optimizer" in name:
            return
        if name.endswith("engine.compile_utils"):
            replace(module.LossesContainer, "__call__", self._evaluations.make_container_call)
        elif name.endswith("array_data_adapter"):
            self.samples.watch(module)
        elif name.endswith("trainers.trainer"):
            for method in private_api.COMPUTE_LOSS:
                replace(module.Trainer, method, self._evaluations.make_compute_loss)
        for owner in _classes_with(module, "fit"):
            replace(owner, "make_test_function", self._evaluations.make_make_test_function)
            replace(owner, private_api.GRAPH_TEST_FUNCTION, self._evaluations.make_make_graph)
            for kind in ("fit", "evaluate", "predict", "train_on_batch"):
                for method in (kind, f"{kind}_generator"):
                    replace(owner, method, getattr(self, f"_make_{kind}"))
        for owner in _classes_with(module, "compile"):
            self._agent.note_calls(owner, "compile", lambda *_: self._agent.made_optimizer("keras"))

    # Calls for whole trainings and evaluations

    def _make_fit(self, original: Function) -> Function:
        def prepare(model: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[str, inspect.BoundArguments]:
            name = self._agent.name("fit")
            self._remember_truth(arguments, keywords)
            bound = inspect.signature(original).bind(model, *arguments, **keywords)
            callbacks = bound.arguments.get("callbacks")
            if type(callbacks).__name__ != "CallbackList":  # Keras uses a CallbackList as it is
                users = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
                bound.arguments["callbacks"] = [*users, self._callback(original, name)]
            return name, bound

        def fit(model: Any, *arguments: Any, **keywords: Any) -> Any:
            preparation = None if self.records.nested else self._agent.attempt(prepare, model, arguments, keywords)
            if preparation is None:
                return original(model, *arguments, **keywords)
            name, bound = preparation
            self._evaluations.fitting = True
            self.samples.fitting(name, bound.arguments)
            self._agent.attempt(self.datasets.fitting, name, bound.arguments)
            try:
                result = self.records.outermost(original, *bound.args, **bound.kwargs)
            finally:
                self._evaluations.fitting = False
                self.samples.ended()
                self.datasets.ended()
                self._evaluations.end(failed=True)  # an interrupted validation
                self._agent.attempt(self.records.note, model)
            self._agent.attempt(self._fit_ended, name, result)
            return result

        return fit

    def _callback(self, fit: Function, name: str) -> Any:
        """Return a callback for the Keras package of `fit`; the last one, so that it sees what the user's ones did."""
        agent, package = self._agent, fit.__module__.partition(".engine.")[0].partition(".backend.")[0]
        epoch_ended, batch_ended = self._epoch_ended, self._batch_ended
        is_of_tensorflow = backend_of(fit) == "tensorflow"

        class EpochCallback(sys.modules[f"{package}.callbacks"].Callback):  # type: ignore[misc]
            async_safe = True

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                agent.attempt(epoch_ended, name, self, epoch, logs or {})

            if _needs_batch_callback(fit) if is_of_tensorflow else agent.counts_all_steps:

                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    batch_ended(self.model, logs or {}, is_of_tensorflow)

        return EpochCallback()

    def _batch_ended(self, model: Any, logs: dict[str, Any], is_of_tensorflow: bool) -> None:
        """Report a step that only a callback sees; those of other backends have no optimizer for the trail."""
        if self.events.update_done:
            optimizer = getattr(model, "optimizer", None) if is_of_tensorflow else None
            tell(self.events.update_done, UpdateDone(OptimizerStep(optimizer, model, logs)))

    def _epoch_ended(self, name: str, callback: Any, epoch: int, logs: dict[str, Any]) -> None:
        self._evaluations.end()
        values: dict[str, object] = {key: describe(logs[key]) for key in logs}
        steps, records = (callback.params or {}).get("steps"), self.records.of(callback.model)
        tell(self.events.epoch_ended, EpochEnded(name, int(epoch), steps, values, records))

    def _fit_ended(self, name: str, history: Any) -> None:
        values = {key: [describe(value) for value in history.history[key]] for key in history.history}
        tell(self.events.results_reported, ResultsReported("history", name, values))

    def _make_evaluate(self, original: Function) -> Function:
        reported = self._make_report(original, self._report_evaluate)

        def evaluate(model: Any, *arguments: Any, **keywords: Any) -> Any:
            evaluations, failed = self._evaluations, True
            if evaluations.is_open:  # nested: evaluate calls evaluate_generator
                return reported(model, *arguments, **keywords)
            evaluations.begin(VALIDATION if evaluations.fitting else "evaluate", task_of(model))
            try:
                result = reported(model, *arguments, **keywords)
                failed = False
            finally:
                evaluations.end(failed=failed)
            return result

        return evaluate

    def _make_predict(self, original: Function) -> Function:
        return self._make_report(original, self._report_predict)

    def _make_train_on_batch(self, original: Function) -> Function:
        """Report the loss; with PyTorch as backend, backward() has already reported it."""
        return self._make_report(original, self._record if ".torch." in original.__module__ else self._report_loss)

    def _make_report(self, original: Function, report: Function) -> Function:
        """Wrap a method, to report its outermost calls with their arguments and results."""

        def call(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if self.events.evaluation_due and original.__name__ != "train_on_batch":
                tell(self.events.evaluation_due, EvaluationDue(original.__name__.startswith("predict")))
            if self.records.nested:
                return original(model, *arguments, **keywords)
            result = self.records.outermost(original, model, *arguments, **keywords)
            self._agent.attempt(report, model, result, arguments, keywords)
            tell(self.events.evaluation_ended, EvaluationEnded())
            return result

        return call

    def _remember_truth(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Remember the true values for the inputs of fit, of its validation, or of evaluate."""
        inputs = arguments[0] if arguments else keywords.get("x")
        self._true_values.remember(inputs, arguments[1] if len(arguments) > 1 else keywords.get("y"))
        validation = keywords.get("validation_data")
        if isinstance(validation, (tuple, list)) and len(validation) >= 2:
            self._true_values.remember(*validation[:2])

    def _report_evaluate(self, model: Any, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._remember_truth(arguments, keywords)
        if not isinstance(result, dict):
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            result = dict(zip(_metric_names(model, len(results)), results))
        values = {key: describe(result[key]) for key in result}
        tell(self.events.results_reported, ResultsReported("evaluate", self._agent.name("evaluate"), values))

    def _report_predict(self, model: Any, result: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        inputs, is_single = arguments[0] if arguments else keywords.get("x"), hasattr(result, "dtype")
        truth, hint = self._true_values.of(inputs) if is_single else None, task_of(model) if is_single else None
        for part, array in leaves("predict", result):
            predictions_of(self._agent).note(part, array, truth, hint=hint)

    def _report_loss(self, model: Any, result: Any, *_: Any) -> None:
        if isinstance(result, dict):
            result = result["loss"]
        loss = result[0] if isinstance(result, (list, tuple)) else result
        tell(self.events.loss_computed, LossComputed(as_array(loss), is_here=True))
        self._record(model)

    def _record(self, model: Any, *_: Any) -> None:
        if model not in self.records:
            self.records.note(model)


def _needs_batch_callback(fit: Function) -> bool:
    """Return whether a callback must report steps: in old Keras, without make_train_function."""
    owners = _classes_with(sys.modules[fit.__module__], "fit")
    return not any("make_train_function" in vars(owner) for owner in owners)


def _classes_with(module: ModuleType, method: str) -> list[type]:
    """Return the classes defined in a module that define a method themselves."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [owner for owner in own if method in vars(owner)]


def _metric_names(model: Any, count: int) -> list[str]:
    """Return the names of evaluate's results; Keras 3 hides those of compiled metrics one level deeper."""
    names: list[str] = []
    for metric in getattr(model, "metrics", ()):
        names += [part.name for part in metric.metrics] if hasattr(metric, "metrics") else [metric.name]
    for candidate in (names, list(getattr(model, "metrics_names", ()))):
        if len(candidate) == len(set(candidate)) == count:
            return [str(name) for name in candidate]
    return [str(number) for number in range(count)]
