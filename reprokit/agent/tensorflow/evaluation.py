"""Keras' evaluate: what its steps predicted, taken where they computed it and without a computation more; and the
batches of its fit.

A step's predictions leave it as a further result, beside the scores. XLA would fuse a step with a further result in
another way, to other bits. There the batch leaves, outside of what XLA compiles, and the model's own predict_function
is asked once more, if it does nothing but compute. Graphs of TensorFlow 1 are asked for tensors that they have.
"""

from __future__ import annotations

import functools
import weakref
from _thread import _local

from ..core.exact_values import leaves
from ..core.patching import replace
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent
    from ..predictions.log import BatchedEvaluation

    Function = Callable[..., Any]

LOGS, SEEN, BATCH = "reprokit_logs", "reprokit_seen", "reprokit_batch"
VALIDATION = "validation"
SHARE = 64 << 20  # bytes of rows that all validations of a process may keep
_MISSING = object()
_STEPS = ("tensorflow", "torch")  # backends whose test_step takes a batch and gives scores
_READING = frozenset("ReadVariableOp VarHandleOp PartitionedCall StatefulPartitionedCall While If Case".split())
_LOSSES = {
    "classification": ("crossentropy", "focal", "hinge"),
    "regression": ("mean_squared", "mean_absolute", "mse", "mae", "mape", "msle", "huber", "log_cosh", "logcosh"),
}
MAX_REMEMBERED = 8  # pairs of inputs and true values


class KnownTruths:
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
        """Return the true values of these very inputs, None where nobody knows them."""
        of_inputs, of_truth = self._known.get(id(inputs), (None, None))
        return of_truth() if of_inputs is not None and of_truth is not None and of_inputs() is inputs else None


class _Open(_local):
    """The evaluation that a thread makes, and the step that it traces or makes."""

    name = ""  # "" where none is made
    parts: dict[str, BatchedEvaluation] | None = None
    hint: str | None = None
    fitting = False
    model: Any = None  # whose step is under way
    caught: list[tuple[Any, Any]] | None = None


class Evaluations:
    """The evaluations of one process."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._open = _Open()
        self._asked: weakref.WeakKeyDictionary[Any, tuple[Any, bool]] = weakref.WeakKeyDictionary()

    # An evaluation begins and ends

    @property
    def is_open(self) -> bool:
        """Whether this thread makes an evaluation."""
        return bool(self._open.name)

    @property
    def fitting(self) -> bool:
        """Whether this thread is in fit."""
        return self._open.fitting

    @fitting.setter
    def fitting(self, value: bool) -> None:
        self._open.fitting = value

    def begin(self, name: str, hint: str | None) -> None:
        """What steps predict from now on belongs to an evaluation."""
        self._open.name, self._open.parts, self._open.hint = name, {}, hint

    def end(self, *, failed: bool = False) -> None:
        """Write the lines of the evaluation that was begun; those of one that failed tell of no whole."""
        parts, self._open.name, self._open.parts = self._open.parts or {}, "", None
        for pieces in parts.values():
            self._agent.attempt(pieces.drop if failed else pieces.finish)

    def _add(self, pred: dict[str, Any], truth: dict[str, Any]) -> None:
        """Take in what a step predicted, by parts of the model's output."""
        held = self._open
        if held.parts is None:
            return
        for part in pred:
            name = held.name + part
            if part not in held.parts:
                share = {"share": SHARE} if held.name == VALIDATION else {}
                hint = held.hint if len(pred) == 1 else None
                held.parts[part] = self._agent.evaluation.pieces(name, hint, **share)
            held.parts[part].add(_held(pred[part]), _held(truth.get(part)))

    # Steps that are functions: Keras 3, and Keras 2 in TensorFlow 2

    def make_compute_loss(self, original: Function) -> Function:
        """Wrap a model's loss, which is given what is true and what was predicted."""

        def compute_loss(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._open.model is model:
                self._agent.attempt(self._catch, 1, ("y", "y_pred"), arguments, keywords)
            return original(model, *arguments, **keywords)

        return compute_loss

    def make_container_call(self, original: Function) -> Function:
        """Wrap the same of Keras 2, where a model has its losses in a container."""

        def call(container: Any, *arguments: Any, **keywords: Any) -> Any:
            model = self._open.model
            if model is not None and getattr(model, "compiled_loss", None) is container:
                self._agent.attempt(self._catch, 0, ("y_true", "y_pred"), arguments, keywords)
            return original(container, *arguments, **keywords)

        call.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
        return call

    def _catch(self, first: int, names: tuple[str, str], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        given = dict(zip(names, arguments[first : first + 2]))
        given.update({name: keywords[name] for name in names if name in keywords})
        if self._open.caught is not None and given.get(names[1]) is not None:
            self._open.caught.append((given.get(names[0]), given[names[1]]))

    def make_make_test_function(self, original: Function) -> Function:
        """Return a model's test_function, which Keras calls for each step, gives what it gave and shows what it saw."""

        def make_test_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            before = getattr(model, "test_function", None)
            replacement = self._agent.attempt(self._replacement, model, original)
            if replacement is None:
                return original(model, *arguments, **keywords)
            with _Attribute(model, *replacement):
                made = original(model, *arguments, **keywords)
            function = model.test_function
            if function is before or function is None:
                return made
            model.test_function = self._watched(model, function, replacement)
            return made if made is None else model.test_function

        return make_test_function

    def _replacement(self, model: Any, original: Function) -> tuple[str, Any] | None:
        """Return the method of the model to be replaced while the function is made; None where scores have to do."""
        backend = backend_of(original)
        if backend not in _STEPS or not _is_alone(model, backend):
            return None
        if not private_api.is_compiled(model):
            return "test_step", self._showing_step(model)
        compiler = getattr(model, private_api.STEP_COMPILER, None)
        if backend == "tensorflow" and compiler is not None and _is_of_keras_alone(model):
            return private_api.STEP_COMPILER, _showing_batch(compiler)
        return None

    def _showing_step(self, model: Any) -> Function:
        """Return a step that gives what it predicted beside its scores."""
        step, held, reference = model.test_step, self._open, weakref.ref(model)

        def test_step(data: Any) -> Any:
            before = held.model, held.caught
            held.model, held.caught = reference(), []
            try:
                logs = step(data)
                shown = self._agent.attempt(_shown, held.caught)
            finally:
                held.model, held.caught = before
            return {LOGS: logs, SEEN: shown} if shown else logs

        test_step.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
        return test_step

    def _watched(self, model: Any, function: Function, replacement: tuple[str, Any]) -> Function:
        """Wrap the function made: what its steps show is taken from them."""
        reference = weakref.ref(model)

        def test_function(*arguments: Any) -> Any:
            with _Attribute(reference(), *replacement):  # some look for the model's step each time
                results = function(*arguments)
            if not isinstance(results, dict) or LOGS not in results:
                return results
            if self.is_open:
                self._agent.attempt(self._take, reference(), results)
            return results[LOGS]

        return test_function

    def _take(self, model: Any, results: dict[str, Any]) -> None:
        if SEEN in results:
            self._add(results[SEEN]["pred"], results[SEEN]["truth"])
        elif self._open.name != VALIDATION:
            inputs, truth = _unpacked(results[BATCH])
            predicted = self._predicted(model, inputs)
            if predicted is not None:
                self._add(*_paired(truth, predicted))

    def _predicted(self, model: Any, inputs: Any) -> Any:
        """Return what the model's own predict_function says of a batch; None where it does more than to compute."""
        model.make_predict_function()
        function = model.predict_function
        if self._asked.get(model, (None, False))[0] is not function:
            self._asked[model] = function, _only_computes(function.get_concrete_function([(inputs,)]))
        return function([(inputs,)]) if self._asked[model][1] else None

    # Steps that are graphs of TensorFlow 1

    def make_make_graph(self, original: Function) -> Function:
        """Return a model's test_function in TensorFlow 1, which can be asked for more tensors of its graph."""

        def _make_test_function(model: Any, *arguments: Any, **keywords: Any) -> Any:
            before = getattr(model, "test_function", None)
            made = original(model, *arguments, **keywords)
            function = model.test_function
            if function is not before and hasattr(function, "fetch_callbacks"):
                self._agent.attempt(self._fetch, model, function)
            return made

        return _make_test_function

    def _fetch(self, model: Any, function: Any) -> None:
        """Ask for the model's outputs as they are: a further operation would change the seeds of later ones."""
        outputs = list(model.outputs)
        ids = list(map(id, outputs))
        if len(set(ids)) < len(ids) or set(ids) & set(map(id, function.inputs)) or not all(map(_is_dense, outputs)):
            return
        parts = [f"/{number}" for number in range(len(outputs))] if len(outputs) > 1 else [""]
        graph = Graph(parts, *private_api.fed(model), task_of(model))
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
                self._agent.attempt(self._take_of_graph, graph, inputs)
            return result

        return call

    def _take_of_graph(self, graph: Graph, inputs: Any) -> None:
        if not self.is_open and self.fitting:  # fit makes its validation itself
            self.begin(VALIDATION, graph.hint)
        if self.is_open:
            self._add(graph.pred, graph.truth(inputs))
        graph.pred.clear()


class Graph:
    """What a test_function of TensorFlow 1 is asked for beside its scores."""

    def __init__(self, parts: list[str], inputs: int, targets: int, hint: str | None) -> None:
        self.hint = hint
        self.pred: dict[str, Any] = {}
        self._parts = parts
        self._targets = slice(inputs, inputs + targets)

    def truth(self, inputs: Any) -> dict[str, Any]:
        """Return what is true, out of what the function was given; not known where that is tensors of the graph."""
        targets = list(inputs)[self._targets] if isinstance(inputs, (list, tuple)) else []
        if len(targets) != len(self._parts) or any(hasattr(target, "graph") for target in targets):
            return {}
        return dict(zip(self._parts, targets))


class _Attribute:
    """For a while an object has an attribute of its own, past whatever its class does when one is set."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._held, self._name, self._value = vars(owner), name, value

    def __enter__(self) -> None:
        self._before = self._held.get(self._name, _MISSING)
        self._held[self._name] = self._value

    def __exit__(self, *_: object) -> None:
        if self._before is _MISSING:
            self._held.pop(self._name, None)
        else:
            self._held[self._name] = self._before


def backend_of(function: Any) -> str:
    """Return the backend of Keras 3 that a method or class is of; of older Keras TensorFlow."""
    parts = function.__module__.split(".")
    return parts[3] if parts[:3] == ["keras", "src", "backend"] and len(parts) > 3 else "tensorflow"


def is_of_tensorflow(one: Any) -> bool:
    """Return whether an optimizer or a layer computes by TensorFlow, and not by another backend of Keras 3."""
    return all(backend_of(kind) == "tensorflow" for kind in type(one).__mro__)


def task_of(model: Any) -> str | None:
    """Return the task that a model was compiled for, by the name of its loss."""
    name = loss_name_of(model).lower()
    return next((task for task, words in _LOSSES.items() if any(word in name for word in words)), None)


def loss_name_of(model: Any) -> str:
    """Return the name of the loss that a model was compiled with, empty where it has none or several."""
    loss = getattr(model, "loss", None)
    return str(loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", ""))


def _is_alone(model: Any, backend: str) -> bool:
    """Return whether the function made is one step of one replica."""
    if backend != "tensorflow":
        return True
    return private_api.steps_at_once(model) == 1 and "Default" in type(model.distribute_strategy).__name__


def _is_of_keras_alone(model: Any) -> bool:
    """Return whether no code of the script's own runs when the model is traced once more."""
    kinds = [type(layer) for layer in private_api.layers(model)] + [type(model)]
    return all(kind.__module__.startswith("keras.") and kind.__name__ != "Lambda" for kind in kinds)


def _showing_batch(autoconvert: Function) -> Function:
    """Keras 3 calls this with the compiled step: outside of it a batch leaves beside the scores."""
    return lambda step: _with_batch(autoconvert(step))


def _with_batch(inner: Function) -> Function:
    def one_step(data: Any) -> Any:
        logs = inner(data)
        return {LOGS: logs, BATCH: data} if _is_returnable(data) else logs

    one_step.autograph_info__ = {}  # type: ignore[attr-defined]  # TensorFlow is not to rewrite it
    return one_step


class BatchesBeside:
    """The batches that steps of fit are given: they leave a model's train_function beside what it returns.

    Nothing is computed from them. Steps that XLA compiled without Keras 3, several at once or on several replicas show
    none.
    """

    def __init__(self, model: Any, *, are_wanted: bool) -> None:
        self._model = weakref.ref(model)
        self._replacement: tuple[str, Any] = ("", None)
        if are_wanted and _is_alone(model, "tensorflow"):
            compiler = getattr(model, private_api.STEP_COMPILER, None)
            if compiler is not None:
                self._replacement = private_api.STEP_COMPILER, _showing_batch(compiler)
            elif not private_api.is_compiled(model):
                self._replacement = "train_step", _with_batch(model.train_step)

    def call(self, function: Function, *arguments: Any) -> tuple[Any, Any]:
        """Return what a function returns that makes steps, or makes such a function; and the batch, or None."""
        name, value = self._replacement
        if not name:
            return function(*arguments), None
        with _Attribute(self._model(), name, value):
            results = function(*arguments)
        has_batch = isinstance(results, dict) and LOGS in results
        return (results[LOGS], results[BATCH]) if has_batch else (results, None)


def _is_returnable(value: Any) -> bool:
    """Return whether TensorFlow can give this structure back: tensors in tuples and dictionaries."""
    if isinstance(value, (tuple, dict)):
        return all(map(_is_returnable, value.values() if isinstance(value, dict) else value))
    return _is_dense(value)


def _unpacked(data: Any) -> tuple[Any, Any]:
    """Return the inputs of a batch and what is true of them."""
    if not isinstance(data, tuple):
        return data, None
    return data[0], data[1] if len(data) > 1 else None


def _only_computes(concrete: Any) -> bool:
    """Return whether a function of TensorFlow, with all that it calls, writes nothing and draws nothing."""
    graph = concrete.graph.as_graph_def()
    operations = {node.op for nodes in [graph.node, *(f.node_def for f in graph.library.function)] for node in nodes}
    calls = {function.signature.name for function in graph.library.function}
    return not any(private_api.definition(name).is_stateful for name in operations - _READING - calls)


def _shown(caught: list[tuple[Any, Any]]) -> dict[str, dict[str, Any]] | None:
    """Return what is to leave a step, where it has one loss of one prediction that can leave it."""
    if not caught or any(pred is not caught[0][1] for _, pred in caught):
        return None
    pred, truth = _paired(*caught[0])
    if not pred or not all(map(_can_leave, pred.values())):
        return None
    return {"pred": pred, "truth": {part: value for part, value in truth.items() if _can_leave(value)}}


def _paired(truth: Any, pred: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of what was predicted, and of what is true those that go with them, by the names of parts."""
    return dict(leaves("", pred)), dict(leaves("", truth))


def _is_dense(value: Any) -> bool:
    """Return whether it is an array or tensor, neither sparse nor ragged."""
    if hasattr(value, "detach"):  # of PyTorch
        return str(value.layout) == "torch.strided"
    is_composite = hasattr(value, "indices") or hasattr(value, "flat_values")
    return hasattr(value, "dtype") and hasattr(value, "shape") and not is_composite


def _can_leave(value: Any) -> bool:
    """Return whether it is a plain tensor of the graph that is being built, or has a value already."""
    graph = getattr(value, "graph", None)
    is_here = graph is None or graph is private_api.ops().get_default_graph()
    return is_here and _is_dense(value)


def _held(value: Any) -> Any:
    """Return a value that nobody changes any more: tensors of TensorFlow never do."""
    return value.detach().clone() if hasattr(value, "detach") else value
