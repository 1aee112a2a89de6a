"""Keras 2 and 3, standalone and inside TensorFlow: fit, evaluate, predict, train_on_batch, optimizers in loops."""

from __future__ import annotations

import atexit
import inspect
import sys

from ..agent import on_thread
from ..arrays import describe_array
from ..patching import replace
from ..seeds import seeding
from ..values import describe
from .variables import Records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


class Adapter:
    """Watches a training by Keras."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._records = Records(agent)
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
        elif "optimizer" in name:
            for owner in _classes_with(module, "apply_gradients"):
                replace(owner, "apply" if "apply" in vars(owner) else "apply_gradients", self._records.make_apply)
        else:
            for owner in _classes_with(module, "fit"):
                for method in _METHODS:
                    replace(owner, method, getattr(self, f"_make_{_METHODS[method]}"))

    def _make_fit(self, original: Function) -> Function:
        def prepare(
            model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
        ) -> tuple[str, inspect.BoundArguments]:
            name = self._agent.name("fit")
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
            try:
                result = self._records.outermost(original, *given.args, **given.kwargs)
            finally:
                self._agent.attempt(self._records.note, model)
            self._agent.attempt(self._write_history, name, result)
            return result

        return fit

    def _make_evaluate(self, original: Function) -> Function:
        return self._make_reported(original, "evaluate", self._write_evaluation)

    def _make_predict(self, original: Function) -> Function:
        return self._make_reported(original, "predict", self._write_predictions)

    def _make_train_on_batch(self, original: Function) -> Function:
        by_torch = ".torch." in original.__module__  # whose backward is seen already
        return self._make_reported(original, "train_on_batch", self._note_once if by_torch else self._write_loss)

    def _make_reported(self, original: Function, kind: str, report: Function) -> Function:
        def call(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._records.nested:
                return original(model, *arguments, **keywords)
            result = self._records.outermost(original, model, *arguments, **keywords)
            self._agent.attempt(report, model, self._agent.name(kind), result)
            return result

        return call

    def _callback(self, fit: Function, name: str) -> Any:
        """A callback of the Keras that this fit belongs to; the last in the list, it sees what the user's did."""
        agent, records = self._agent, self._records
        package = fit.__module__.partition(".engine.")[0].partition(".backend.")[0]

        class EpochCallback(sys.modules[f"{package}.callbacks"].Callback):  # type: ignore[misc]
            async_safe = True

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                agent.attempt(_write_epoch, agent, name, epoch, logs or {}, (self.params or {}).get("steps"))
                agent.attempt(records.note, self.model, epoch)

        return EpochCallback()

    def _write_history(self, name: str, history: Any) -> None:
        values = {key: [describe(value) for value in history.history[key]] for key in history.history}
        self._agent.journal.write("history", {"name": name, "values": values})

    def _write_evaluation(self, model: Any, name: str, result: Any) -> None:
        if not isinstance(result, dict):
            results = list(result) if isinstance(result, (list, tuple)) else [result]
            result = dict(zip(_metric_names(model, len(results)), results))  # noqa: B905
        values = {key: describe(result[key]) for key in result}
        self._agent.journal.write("evaluate", {"name": name, "values": values})

    def _write_predictions(self, _model: Any, name: str, result: Any) -> None:
        for part, array in _leaves(name, result):
            self._agent.journal.write("predict", {"name": part, **describe_array(array)})

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


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a model with several outputs under names of their own."""
    if isinstance(value, dict):
        for key in value:
            yield from _leaves(f"{name}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from _leaves(f"{name}/{number}", part)
    else:
        yield name, value
