"""Records the predictions of Keras' evaluate without extra computations where possible, and the batches of fit.

A step returns its predictions as an additional result, besides the scores. XLA would fuse such a step differently, with
other bits as the result. There the batch is returned instead, outside of the code that XLA compiles, and the model's
predict_function is called again if it has no side effects. Graphs of TensorFlow 1 get additional fetches.
"""

from __future__ import annotations

import functools
import weakref
from _thread import _local

from ..core.exact_values import leaves
from ..core.patching import replace
from ..predictions import predictions_of
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent import Agent
    from ..predictions.log import BatchedEvaluation

    Function = Callable[..., Any]

LOGS, PREDICTIONS, BATCH = "reprokit_logs", "reprokit_seen", "reprokit_batch"
VALIDATION = "validation"
SHARE = 64 << 20  # bytes of rows that all validations of a process may store
_MISSING = object()
_STEPS = ("tensorflow", "torch")  # backends whose test_step takes a batch and returns scores
_READ_ONLY = frozenset("ReadVariableOp VarHandleOp PartitionedCall StatefulPartitionedCall While If Case".split())
_LOSSES = {
    "classification": ("crossentropy", "focal", "hinge"),
    "regression": ("mean_squared", "mean_absolute", "mse", "mae", "mape", "msle", "huber", "log_cosh", "logcosh"),
}
MAX_REMEMBERED = 8  # pairs of inputs and true values


class TrueValues:
    """The true values passed to fit and evaluate with inputs, while both live; predict gets the inputs alone."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}

    def remember(self, inputs: Any, truth: Any) -> None:
        try:
            pair = weakref.ref(inputs), weakref.ref(truth)
        except TypeError:  # a list, or None
            return
        self._pairs.pop(id(inputs), None)
        self._pairs[id(inputs)] = pair
        while len(self._pairs) > MAX_REMEMBERED:
            del self._pairs[next(iter(self._pairs))]

    def of(self, inputs: Any) -> Any:
        """Return the true values that were passed with the same inputs object, else None."""
        known_inputs, truth = self._pairs.get(id(inputs), (None, None))
        return truth() if known_inputs is not None and truth is not None and known_inputs() is inputs else None


class _EvaluationThread(_local):
    """The current evaluation of a thread, and the step that it traces or executes."""

    name = ""  # empty outside of evaluations
    parts: dict[str, BatchedEvaluation] | None = None
    hint: str | None = None
    fitting = False
    model: Any = None  # the model whose step is being executed
    loss_arguments: list[tuple[Any, Any]] | None = None


class Evaluations:
    """Records the evaluations of this process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._thread = _EvaluationThread()
        self._predict_functions: weakref.WeakKeyDictionary[Any, tuple[Any, bool]] = weakref.WeakKeyDictionary()

    # Begin and end of an evaluation

    @property
    def is_open(self) -> bool:
        """Whether this thread is in an evaluation."""
        return bool(self._thread.name)

    @property
    def fitting(self) -> bool:
        """Whether this thread is in fit."""
        return self._thread.fitting

    @fitting.setter
    def fitting(self, value: bool) -> None:
        self._thread.fitting = value

    def begin(self, name: str, hint: str | None) -> None:
        """Begin an evaluation, to which the predictions of the following steps belong."""
        self._thread.name, self._thread.parts, self._thread.hint = name, {}, hint

    def end(self, *, failed: bool = False) -> None:
        """End the evaluation and write its lines; those of a failed one are dropped, as they are incomplete."""
        parts, self._thread.name, self._thread.parts = self._thread.parts or {}, "", None
        for pieces in parts.values():
            self._agent.attempt(pieces.drop if failed else pieces.finish)

    def _add(self, pred: dict[str, Any], truth: dict[str, Any]) -> None:
        """Add the predictions and true values of a step, by parts of the model's output."""
        state = self._thread
        if state.parts is None:
            return
        for part in pred:
            name = state.name + part
            if part not in state.parts:
                limits = {"share": SHARE} if state.name == VALIDATION else {}
                hint = state.hint if len(pred) == 1 else None
                state.parts[part] = predictions_of(self._agent).pieces(name, hint, **limits)
            state.parts[part].add(_unchanging(pred[part]), _unchanging(truth.get(part)))

    # Steps that are functions: Keras 3, and Keras 2 in TensorFlow 2

    def make_compute_loss(self, original: Function) -> Function:
        """Wrap a model's compute_loss, which gets true values and predictions."""

        def compute_loss(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._thread.model is model:
                self._agent.attempt(self._record_loss, 1, ("y", "y_pred"), arguments, keywords)
            return original(model, *arguments, **keywords)

        return compute_loss

    def make_container_call(self, original: Function) -> Function:
        """Wrap the call of a loss container, which computes the losses in Keras 2."""

        def call(container: Any, *arguments: Any, **keywords: Any) -> Any:
            model = self._thread.model
            if model is not None and getattr(model, "compiled_loss", None) is container:
                self._agent.attempt(self._record_loss, 0, ("y_true", "y_pred"), arguments, keywords)
            return original(container, *arguments, **keywords)

        call.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
        return call

    def _record_loss(
        self, first: int, names: tuple[str, str], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        values = dict(zip(names, arguments[first : first + 2]))
        values.update({name: keywords[name] for name in names if name in keywords})
        if self._thread.loss_arguments is not None and values.get(names[1]) is not None:
            self._thread.loss_arguments.append((values.get(names[0]), values[names[1]]))

    def make_make_test_function(self, original: Function) -> Function:
        """Wrap make_test_function, so that the test_function of a model also returns predictions or batches."""

        def make_test_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            previous = getattr(model, "test_function", None)
            replacement = self._agent.attempt(self._replacement, model, original)
            if replacement is None:
                return original(model, *arguments, **keywords)
            with _TemporaryAttribute(model, *replacement):
                returned = original(model, *arguments, **keywords)
            function = model.test_function
            if function is previous or function is None:
                return returned
            model.test_function = self._unwrapping(model, function, replacement)
            return returned if returned is None else model.test_function

        return make_test_function

    def _replacement(self, model: Any, original: Function) -> tuple[str, Any] | None:
        """Return the method to replace while the function is made; None if predictions cannot be had."""
        backend = backend_of(original)
        if backend not in _STEPS or not _is_single_step(model, backend):
            return None
        if not private_api.is_compiled(model):
            return "test_step", self._step_with_predictions(model)
        compiler = getattr(model, private_api.STEP_COMPILER, None)
        if backend == "tensorflow" and compiler is not None and _is_keras_only(model):
            return private_api.STEP_COMPILER, _compiler_with_batch(compiler, model.distribute_strategy)
        return None

    def _step_with_predictions(self, model: Any) -> Function:
        """Wrap test_step to return the predictions besides the scores."""
        step, state, reference = model.test_step, self._thread, weakref.ref(model)

        def test_step(data: Any) -> Any:
            before = state.model, state.loss_arguments
            state.model, state.loss_arguments = reference(), []
            try:
                logs = step(data)
                shown = self._agent.attempt(_predictions_of, state.loss_arguments)
            finally:
                state.model, state.loss_arguments = before
            return {LOGS: logs, PREDICTIONS: shown} if shown else logs

        test_step.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
        return test_step

    def _unwrapping(self, model: Any, function: Function, replacement: tuple[str, Any]) -> Function:
        """Wrap a test_function: take the additional results out of what it returns."""
        reference = weakref.ref(model)

        def test_function(*arguments: Any) -> Any:
            with _TemporaryAttribute(reference(), *replacement):  # some versions look up the model's step at each call
                results = function(*arguments)
            if not isinstance(results, dict) or LOGS not in results:
                return results
            if self.is_open:
                self._agent.attempt(self._add_step, reference(), results)
            return results[LOGS]

        return test_function

    def _add_step(self, model: Any, results: dict[str, Any]) -> None:
        if PREDICTIONS in results:
            self._add(results[PREDICTIONS]["pred"], results[PREDICTIONS]["truth"])
        elif self._thread.name != VALIDATION:
            inputs, truth = _inputs_and_truth(results[BATCH][0])
            predicted = self._predicted(model, inputs)
            if predicted is not None:
                self._add(*_by_part(truth, predicted))

    def _predicted(self, model: Any, inputs: Any) -> Any:
        """Call the model's predict_function on a batch; return None if the function has side effects."""
        model.make_predict_function()
        function = model.predict_function
        if self._predict_functions.get(model, (None, False))[0] is not function:
            self._predict_functions[model] = function, _only_computes(function.get_concrete_function([(inputs,)]))
        return function([(inputs,)]) if self._predict_functions[model][1] else None

    # Steps that are graphs of TensorFlow 1

    def make_make_graph(self, original: Function) -> Function:
        """Wrap _make_test_function of TensorFlow 1, to fetch more tensors of the graph in each step."""

        def _make_test_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            previous = getattr(model, "test_function", None)
            returned = original(model, *arguments, **keywords)
            function = model.test_function
            if function is not previous and hasattr(function, "fetch_callbacks"):
                self._agent.attempt(self._fetch_outputs, model, function)
            return returned

        return _make_test_function

    def _fetch_outputs(self, model: Any, function: Any) -> None:
        """Fetch the model's outputs as they are: additional operations would change the seeds of later ones."""
        outputs = list(model.outputs)
        ids = list(map(id, outputs))
        if len(set(ids)) < len(ids) or set(ids) & set(map(id, function.inputs)) or not all(map(_is_dense, outputs)):
            return
        parts = [f"/{number}" for number in range(len(outputs))] if len(outputs) > 1 else [""]
        graph = GraphOutputs(parts, *private_api.fed(model), task_of(model))
        for part, output in zip(parts, outputs):
            function.fetch_callbacks[output] = functools.partial(graph.pred.__setitem__, part)
        function.fetches += outputs
        function._reprokit_graph = graph
        replace(type(function), "__call__", self._make_graph_call)

    def _make_graph_call(self, original: Function) -> Function:
        def call(function: Any, inputs: Any) -> Any:
            graph = vars(function).get("_reprokit_graph")
            result = original(function, inputs)
            if graph is not None:
                self._agent.attempt(self._add_graph_step, graph, inputs)
            return result

        return call

    def _add_graph_step(self, graph: GraphOutputs, inputs: Any) -> None:
        if not self.is_open and self.fitting:  # validation within fit
            self.begin(VALIDATION, graph.hint)
        if self.is_open:
            self._add(graph.pred, graph.truth(inputs))
        graph.pred.clear()


class GraphOutputs:
    """The model outputs fetched by a test_function of TensorFlow 1."""

    def __init__(self, parts: list[str], inputs: int, targets: int, hint: str | None) -> None:
        self.hint = hint
        self.pred: dict[str, Any] = {}
        self._parts = parts
        self._targets = slice(inputs, inputs + targets)

    def truth(self, inputs: Any) -> dict[str, Any]:
        """Return the true values among the inputs of the function; empty if they are tensors of the graph."""
        targets = list(inputs)[self._targets] if isinstance(inputs, (list, tuple)) else []
        if len(targets) != len(self._parts) or any(hasattr(target, "graph") for target in targets):
            return {}
        return dict(zip(self._parts, targets))


class _TemporaryAttribute:
    """Context manager that sets an attribute in the __dict__ of an object, bypassing __setattr__."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._attributes, self._name, self._value = vars(owner), name, value

    def __enter__(self) -> None:
        self._previous = self._attributes.get(self._name, _MISSING)
        self._attributes[self._name] = self._value

    def __exit__(self, *_: object) -> None:
        if self._previous is _MISSING:
            self._attributes.pop(self._name, None)
        else:
            self._attributes[self._name] = self._previous


def backend_of(function: Any) -> str:
    """Return the Keras 3 backend of a method or class; tensorflow for older Keras."""
    parts = function.__module__.split(".")
    return parts[3] if parts[:3] == ["keras", "src", "backend"] and len(parts) > 3 else "tensorflow"


def is_of_tensorflow(instance: Any) -> bool:
    """Return whether an optimizer or layer is of TensorFlow, not of another backend of Keras 3."""
    return all(backend_of(kind) == "tensorflow" for kind in type(instance).__mro__)


def task_of(model: Any) -> str | None:
    """Return classification or regression by the name of a model's loss, else None."""
    name = loss_name_of(model).lower()
    return next((task for task, words in _LOSSES.items() if any(word in name for word in words)), None)


def loss_name_of(model: Any) -> str:
    """Return the name of a model's loss; empty if it has none or several."""
    loss = getattr(model, "loss", None)
    return str(loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", ""))


def _is_single_step(model: Any, backend: str) -> bool:
    """Return whether the function executes a single step on a single replica."""
    if backend != "tensorflow":
        return True
    return private_api.steps_at_once(model) == 1 and "Default" in type(model.distribute_strategy).__name__


def _is_keras_only(model: Any) -> bool:
    """Return whether a model has only classes of Keras, so that tracing it again runs no code of the script."""
    kinds = [type(layer) for layer in private_api.layers(model)] + [type(model)]
    return all(kind.__module__.startswith("keras.") and kind.__name__ != "Lambda" for kind in kinds)


def _compiler_with_batch(autoconvert: Function, strategy: Any) -> Function:
    """Wrap Keras 3's step compiler, so that the compiled step returns the batch besides the scores."""
    multi_replica_strategy = strategy if strategy.num_replicas_in_sync > 1 else None
    return lambda step: _with_batch(autoconvert(step), multi_replica_strategy)


def _with_batch(inner: Function, strategy: Any) -> Function:
    """Wrap a step, so that it returns the batch too: each replica's share if the strategy has several."""

    def one_step(data: Any) -> Any:
        logs, shares = inner(data), (data,) if strategy is None else strategy.experimental_local_results(data)
        return {LOGS: logs, BATCH: shares} if _is_returnable(shares) else logs

    one_step.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
    return one_step


class KerasBatches:
    """Makes a model's train_function return fit's batch: each replica's share; of several steps per call, the last.


    The model computes nothing from it. Without Keras 3, not possible for steps compiled by XLA, for several steps per
    call, or for several replicas.
    """

    def __init__(self, model: Any, *, is_wanted: bool) -> None:
        self._model = weakref.ref(model)
        self._replacement: tuple[str, Any] = ("", None)
        compiler = getattr(model, private_api.STEP_COMPILER, None)
        if is_wanted and compiler is not None:
            self._replacement = private_api.STEP_COMPILER, _compiler_with_batch(compiler, model.distribute_strategy)
        elif is_wanted and _is_single_step(model, "tensorflow") and not private_api.is_compiled(model):
            self._replacement = "train_step", _with_batch(model.train_step, None)

    def call(self, function: Function, *arguments: Any) -> tuple[Any, tuple[Any, ...]]:
        """Call a function that executes steps, or makes one; return its result, and each replica's batch."""
        name, value = self._replacement
        if not name:
            return function(*arguments), ()
        with _TemporaryAttribute(self._model(), name, value):
            results = function(*arguments)
        has_batch = isinstance(results, dict) and LOGS in results
        return (results[LOGS], results[BATCH]) if has_batch else (results, ())


def _is_returnable(value: Any) -> bool:
    """Return whether a tf.function can return this structure: dense tensors in tuples and dicts."""
    if isinstance(value, (tuple, dict)):
        return all(map(_is_returnable, value.values() if isinstance(value, dict) else value))
    return _is_dense(value)


def _inputs_and_truth(data: Any) -> tuple[Any, Any]:
    """Return the inputs and true values of a batch."""
    if not isinstance(data, tuple):
        return data, None
    return data[0], data[1] if len(data) > 1 else None


def _only_computes(concrete: Any) -> bool:
    """Return whether a concrete function and all it calls have no side effects and draw no random numbers."""
    graph = concrete.graph.as_graph_def()
    operations = {node.op for nodes in [graph.node, *(f.node_def for f in graph.library.function)] for node in nodes}
    calls = {function.signature.name for function in graph.library.function}
    return not any(private_api.definition(name).is_stateful for name in operations - _READ_ONLY - calls)


def _predictions_of(loss_arguments: list[tuple[Any, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return predictions and true values by part, if the step has one loss of one returnable prediction."""
    if not loss_arguments or any(pred is not loss_arguments[0][1] for _, pred in loss_arguments):
        return None
    pred, truth = _by_part(*loss_arguments[0])
    if not pred or not all(map(_is_returnable_tensor, pred.values())):
        return None
    return {"pred": pred, "truth": {part: value for part, value in truth.items() if _is_returnable_tensor(value)}}


def _by_part(truth: Any, pred: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return true values and predictions of a step as dicts (predictions first) by the names of their parts."""
    return dict(leaves("", pred)), dict(leaves("", truth))


def _is_dense(value: Any) -> bool:
    """Return whether a value is a dense array or tensor."""
    if hasattr(value, "detach"):  # a PyTorch tensor
        return str(value.layout) == "torch.strided"
    is_composite = hasattr(value, "indices") or hasattr(value, "flat_values")
    return hasattr(value, "dtype") and hasattr(value, "shape") and not is_composite


def _is_returnable_tensor(value: Any) -> bool:
    """Return whether a value is a dense tensor of the graph being built, or an eager one."""
    graph = getattr(value, "graph", None)
    is_here = graph is None or graph is private_api.ops().get_default_graph()
    return is_here and _is_dense(value)


def _unchanging(value: Any) -> Any:
    """Return a value that cannot change: a copy for PyTorch; tensors of TensorFlow are immutable."""
    return value.detach().clone() if hasattr(value, "detach") else value
