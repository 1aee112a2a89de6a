"""Keras 2 and 3, standalone and inside TensorFlow: fit, evaluate, predict, train_on_batch, optimizers in loops."""

from __future__ import annotations

import atexit
import inspect
import sys
import weakref

from ..agent import on_thread
from ..parts import leaves
from ..patching import replace
from ..seeds import seeding, seeding_method
from ..tensorflow import private_api
from ..tensorflow.evaluation import VALIDATION, Evaluations, backend_of, task_of
from ..tensorflow.state import AdapterRecords
from ..values import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from ..agent import Agent

    Function = Callable[..., Any]

_METHODS = {
    "fit": "fit",
    "fit_generator": "fit",
    "evaluate": "evaluate",
    "evaluate_generator": "evaluate",
    "predict": "predict",
    "predict_generator": "predict",
    "train_on_batch": "train_on_batch",
}

MAX_REMEMBERED = 8  # pairs of inputs and true values


class Truths:
    """The true values that fit and evaluate were given with inputs, while both live: predict is given inputs alone."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}

    def remember(self, inputs: Any, truth: Any) -> None:
        try:
            pair = weakref.ref(inputs), weakref.ref(truth)
        except TypeError:  # a list, or nothing
            return
        self._known.pop(id(inputs), None)
        self._known[id(inputs)] = pair
        while len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]

    def of(self, inputs: Any) -> Any:
        """The true values of these very inputs, None where nobody knows them."""
        of_inputs, of_truth = self._known.get(id(inputs), (None, None))
        return of_truth() if of_inputs is not None and of_truth is not None and of_inputs() is inputs else None


class KerasAdapter:
    """Watches a training by Keras."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._records = AdapterRecords(agent)
        self._truths = Truths()
        self._evaluations = Evaluations(agent)
        atexit.register(self.finish)  # earlier at exit than the agent's own, which was registered first

    def forget(self) -> None:
        self._records.forget()

    def finish(self) -> None:
        self._records.finish()

    def random_states(self) -> None:
        pass

    def instrument(self, name: str, module: ModuleType) -> None:
        if name in ("keras", "tf_keras"):
            self._agent.framework(name, module)
        elif name.endswith(("utils.tf_utils", "utils.rng_utils")):
            call = "keras.utils.set_random_seed"
            replace(module, "set_random_seed", lambda original: seeding(self._agent.seeds, call, original))
        elif name.endswith("random.seed_generator"):
            seeds, call = self._agent.seeds, "keras.random.SeedGenerator"
            replace(module.SeedGenerator, "__init__", lambda original: seeding_method(seeds, call, original))
        elif "optimizer" in name:
            for owner in _classes_with(module, "apply_gradients"):
                replace(owner, "apply" if "apply" in vars(owner) else "apply_gradients", self._records.make_apply)
        elif name.endswith("engine.compile_utils"):
            replace(module.LossesContainer, "__call__", self._evaluations.make_container_call)
        elif name.endswith("trainers.trainer"):
            for method in private_api.COMPUTE_LOSS:
                replace(module.Trainer, method, self._evaluations.make_compute_loss)
        else:
            self._agent.attempt(self._begin_trail)
            for owner in _classes_with(module, "fit"):
                replace(owner, "make_train_function", self._make_make_train_function)
                replace(owner, "make_test_function", self._evaluations.make_make_test_function)
                replace(owner, private_api.GRAPH_TEST_FUNCTION, self._evaluations.make_make_graph)
                for method in _METHODS:
                    replace(owner, method, getattr(self, f"_make_{_METHODS[method]}"))

    def _begin_trail(self) -> None:
        from .. import trail_library as trail

        library = trail.load(self._agent.run) if self._records.trail is None else None
        if library is not None:
            from ..tensorflow.trail import TensorflowTrail

            in_graphs = trail.wants_gradients_in_graphs(self._agent.run)
            self._records.trail = TensorflowTrail(self._agent, library, in_graphs=in_graphs)

    def _make_make_train_function(self, original: Function) -> Function:
        """A model's train_function, which Keras calls for each step, is seen by the trail."""

        def make_train_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            made = original(model, *arguments, **keywords)
            function = model.train_function
            is_of_tensorflow = backend_of(original) == "tensorflow"
            nobody_waits = self._records.trail is None and self._agent.observer is None
            if nobody_waits or not is_of_tensorflow or hasattr(function, "_reprokit_model"):
                return made

            def train_function(*arguments: Any) -> Any:
                self._agent.attempt(self._records.begins, model)
                results = function(*arguments)
                self._steps(model, results)
                return results

            train_function._reprokit_model = True  # type: ignore[attr-defined]
            model.train_function = train_function
            return made if made is None else train_function

        return make_train_function

    def _steps(self, model: Any, results: Any) -> None:
        """A model took a step that returned this."""
        self._agent.attempt(self._records.stepped, getattr(model, "optimizer", None), model, results)

    def _observe_step(self, _model: Any, _results: Any) -> None:
        if self._agent.observer is not None:
            self._agent.observer.step()

    def _make_fit(self, original: Function) -> Function:
        def prepare(
            model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
        ) -> tuple[str, inspect.BoundArguments]:
            name = self._agent.name("fit")
            self._remember(arguments, keywords)
            given = inspect.signature(original).bind(model, *arguments, **keywords)
            callbacks = given.arguments.get("callbacks")
            if type(callbacks).__name__ != "CallbackList":  # which Keras takes as it is
                users = list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
                given.arguments["callbacks"] = [*users, self._callback(original, name)]
            return name, given

        def fit(model: Any, *arguments: Any, **keywords: Any) -> Any:
            prepared = None if self._records.nested else self._agent.attempt(prepare, model, arguments, keywords)
            if prepared is None:
                return original(model, *arguments, **keywords)
            name, given = prepared
            self._evaluations.fitting = True
            try:
                result = self._records.outermost(original, *given.args, **given.kwargs)
            finally:
                self._evaluations.fitting = False
                self._evaluations.end(failed=True)  # a validation that was broken off
                self._agent.attempt(self._records.note, model)
            self._agent.attempt(self._write_history, name, result)
            return result

        return fit

    def _make_evaluate(self, original: Function) -> Function:
        reported = self._make_reported(original, "evaluate", self._write_evaluation)

        def evaluate(model: Any, *arguments: Any, **keywords: Any) -> Any:
            evaluations, failed = self._evaluations, True
            if evaluations.is_open:  # which evaluates a generator in another method
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
        return self._make_reported(original, "predict", self._write_predictions)

    def _make_train_on_batch(self, original: Function) -> Function:
        by_torch = ".torch." in original.__module__  # whose backward is seen already
        return self._make_reported(original, "train_on_batch", self._note_once if by_torch else self._write_loss)

    def _make_reported(self, original: Function, kind: str, report: Function) -> Function:
        def call(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._agent.observer is not None and kind != "train_on_batch":
                self._agent.observer.resume()
            if self._records.nested:
                return original(model, *arguments, **keywords)
            result = self._records.outermost(original, model, *arguments, **keywords)
            if kind == "predict":
                self._agent.attempt(report, model, arguments[0] if arguments else keywords.get("x"), result)
            else:
                if kind == "evaluate":
                    self._agent.attempt(self._remember, arguments, keywords)
                self._agent.attempt(report, model, self._agent.name(kind), result)
            return result

        return call

    def _remember(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Which true values belong to the inputs of fit, its validation, or evaluate."""
        inputs = arguments[0] if arguments else keywords.get("x")
        self._truths.remember(inputs, arguments[1] if len(arguments) > 1 else keywords.get("y"))
        validation = keywords.get("validation_data")
        if isinstance(validation, (tuple, list)) and len(validation) >= 2:
            self._truths.remember(*validation[:2])

    def _callback(self, fit: Function, name: str) -> Any:
        """A callback of the Keras that this fit belongs to; the last in the list, it sees what the user's did."""
        agent, records, evaluations = self._agent, self._records, self._evaluations
        package = fit.__module__.partition(".engine.")[0].partition(".backend.")[0]

        stepped: Function | None = self._steps if _sees_batches(fit) else None
        if backend_of(fit) != "tensorflow" and agent.observer is not None:
            stepped = self._observe_step

        class EpochCallback(sys.modules[f"{package}.callbacks"].Callback):  # type: ignore[misc]
            async_safe = True

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                evaluations.end()
                agent.attempt(_write_epoch, agent, name, epoch, logs or {}, (self.params or {}).get("steps"))
                agent.attempt(records.note, self.model, epoch)

            if stepped is not None:

                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    stepped(self.model, logs or {})

        return EpochCallback()

    def _write_history(self, name: str, history: Any) -> None:
        values = {key: [describe(value) for value in history.history[key]] for key in history.history}
        self._agent.journal.write("history", {"name": name, "values": values})

    def _write_evaluation(self, model: Any, name: str, result: Any) -> None:
        if not isinstance(result, dict):
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            result = dict(zip(_metric_names(model, len(results)), results))
        values = {key: describe(result[key]) for key in result}
        self._agent.journal.write("evaluate", {"name": name, "values": values})

    def _write_predictions(self, model: Any, inputs: Any, result: Any) -> None:
        is_one = hasattr(result, "dtype")
        truth, hint = self._truths.of(inputs) if is_one else None, task_of(model) if is_one else None
        for part, array in leaves("predict", result):
            self._agent.evaluation.note(part, array, truth, hint=hint)

    def _write_loss(self, model: Any, _name: str, result: Any) -> None:
        name = on_thread("loss")
        step = self._agent.number(name)
        if isinstance(result, dict):
            result = result["loss"]
        loss = result[0] if isinstance(result, (list, tuple)) else result
        self._agent.journal.write("loss", {"name": name, "step": step, "value": describe(loss)})
        self._note_once(model)

    def _note_once(self, model: Any, _name: str = "", _result: Any = None) -> None:
        if model not in self._records:
            self._records.note(model)


def _sees_batches(fit: Function) -> bool:
    """Whether steps are seen by a callback: in old Keras, whose models have no train_function of a known form."""
    owners = _classes_with(sys.modules[fit.__module__], "fit")
    return backend_of(fit) == "tensorflow" and not any("make_train_function" in vars(owner) for owner in owners)


def _write_epoch(agent: Agent, name: str, epoch: int, logs: dict[str, Any], steps: int | None) -> None:
    values = {key: describe(logs[key]) for key in logs}
    agent.journal.write("epoch", {"name": name, "epoch": int(epoch), "values": values, "steps": steps})


def _classes_with(module: ModuleType, method: str) -> list[type]:
    """The classes that the module itself defines and that define the method themselves."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [owner for owner in own if method in vars(owner)]


def _metric_names(model: Any, count: int) -> list[str]:
    """The names of evaluate's results; Keras 3 hides those of compiled metrics one level deeper."""
    names: list[str] = []
    for metric in getattr(model, "metrics", ()):
        names += [part.name for part in metric.metrics] if hasattr(metric, "metrics") else [metric.name]
    for candidate in (names, list(getattr(model, "metrics_names", ()))):
        if len(candidate) == len(set(candidate)) == count:
            return [str(name) for name in candidate]
    return [str(number) for number in range(count)]
