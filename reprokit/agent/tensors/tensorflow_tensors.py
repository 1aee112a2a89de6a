"""Saves tensors of TensorFlow and Keras: variables and optimizer state before an update, gradients, outputs of layers
and losses under a gradient tape, inputs and results of a step of fit, and its validation losses. Of an evaluation or
prediction by Keras it saves the outputs of layers for the last batch.

In a function's graph, extra variables capture gradients and outputs, if these are asked for.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from types import MappingProxyType

from ..core.exact_values import leaves
from ..events import steps as events
from ..tensorflow import private_api
from ..tensorflow.evaluation import loss_name_of
from ..tensorflow.loops import ForgottenVariables, live_optimizers
from ..tensorflow.state import optimizer_variables
from ..tensorflow.steps import current_replica
from ..tensorflow.tensor_names import name_of
from ..tensorflow.tensors import is_eager, value, view
from ..tensorflow.trail import NOT_RESULTS, capture_gradient, extra_variable
from .tensor_rules import EVAL, PREDICT, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Handler, TrainingEvent
    from .saved_steps import SavedSteps

_ACTIVATIONS = {"relu": "ReLU", "relu6": "ReLU6", "sigmoid": "Sigmoid", "tanh": "Tanh"}  # and their layers' classes
LOSS = "loss"
BY_XLA = "XLA compiles the step"
OUTSIDE_TAPE = "a function computes it outside of a gradient tape"
BY_ALL_REPLICAS = "all replicas compute it together"
UNSHOWN = "the step does not show its batch"
_EMPTY_SHAPE = (0,) * 6  # the shape of a variable that the step has not assigned


class GraphValues:
    """Extra variables that capture what functions compute; in a loop, the values of its last iteration.

    XLA has no variables of unknown shape, so nothing is captured there. Each replica has its own variables.
    """

    def __init__(self) -> None:
        self._variables: dict[tuple[str, int, int, Any], tuple[Any, Sequence[str], Mapping[str, object]]] = {}
        self.uncaptured: dict[str, tuple[Sequence[str], str]] = {}  # collections by name, and why

    def capture(self, name: str, collections: Sequence[str], tensor: Any, facts: Mapping[str, object]) -> None:
        """Add an assignment to the graph that is being built, which captures this tensor, if possible."""
        tensorflow = sys.modules["tensorflow"]
        active_replica = current_replica()
        if private_api.in_xla() or active_replica is None:
            self.uncaptured[name] = collections, BY_XLA if private_api.in_xla() else BY_ALL_REPLICAS
            return
        counts = tensor.graph._reprokit_counts = getattr(tensor.graph, "_reprokit_counts", Counter())
        counts[name, active_replica] += 1
        key = name, active_replica[0], counts[name, active_replica], tensor.dtype
        if key not in self._variables:
            with private_api.ops().init_scope():
                zeros, shape = tensorflow.zeros(_EMPTY_SHAPE, tensor.dtype), tensorflow.TensorShape(None)
                variable = extra_variable(zeros, "reprokit_output", shape=shape)
            self._variables[key] = variable, collections, facts
        self._variables[key][0].assign(tensor)

    def has_captured(self, name: str) -> bool:
        """Return whether values of this name are captured."""
        return any(captured == name for captured, *_ in self._variables)

    def clear(self) -> None:
        """Reset the variables before the next step."""
        for variable, _, _ in self._variables.values():
            variable.assign(sys.modules["tensorflow"].zeros(_EMPTY_SHAPE, variable.dtype))

    def written(self) -> Iterator[tuple[str, Sequence[str], Any, Mapping[str, object]]]:
        """Yield what the step has written: name, collections, value and facts."""
        for (name, *_), (variable, collections, facts) in self._variables.items():
            tensor = value(variable)
            if tensor is not None and tuple(tensor.shape) != _EMPTY_SHAPE:
                yield name, collections, tensor, facts


class TensorflowTensors:
    """Saves the tensors of TensorFlow and Keras in this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps
        steps.forget_callbacks.append(self.forget)
        steps.flush_callbacks.append(self._report_outside)
        self.forget()

    def forget(self) -> None:
        """Start without optimizers and variables, also in a forked child."""
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._optimizer_count, self._has_batch = 0, False
        self._is_in_keras_step = False  # whose results have the loss
        self._keras_optimizer: Any = None  # by which the last step of Keras is known; others may update in it
        self._saved_optimizer = 0  # the identity of the one whose state was saved at the begin of this step of Keras
        self._update_count: int | None = None  # before the step, of an optimizer that may skip it
        self._forgotten, self._forgotten_step = ForgottenVariables(), -1  # the last step in which they were saved
        self._computed, self._evaluated = GraphValues(), GraphValues()  # under a gradient tape, and in evaluations
        self._outside: dict[str, Sequence[str]] = {}  # collections by name of what is computed outside of tapes
        self._mode = ""  # of the last evaluation or prediction since a step
        # By optimizer and replica: each variable with the one that captures its gradient.
        self._holders: weakref.WeakKeyDictionary[Any, dict[Any, dict[int, Any]]] = weakref.WeakKeyDictionary()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        always: dict[type[TrainingEvent], Handler] = {
            events.GradientsDue: self._gradients_due,
            events.UpdateDue: self._update_due,
            events.UpdateDone: self._update_done,
            events.BackwardBegan: self._backward_began,
        }
        rules = self._steps.rules
        outputs: dict[type[TrainingEvent], Handler] = {
            events.OutputComputed: self._output_computed,
            events.EvaluationDue: self._evaluation_due,
            events.EvaluationEnded: lambda _: self._end_evaluation(),
            events.EpochEnded: self._epoch_ended,
            events.ResultsReported: self._results_reported,
        }
        inputs: dict[type[TrainingEvent], Handler] = {events.InputsGiven: self._inputs_given}
        always.update(outputs if rules.wants("outputs", "losses", ever=True) else {})
        return {**always, **inputs} if rules.wants("inputs", "labels", ever=True) else always

    def _gradients_due(self, event: events.GradientsDue) -> None:
        rules, pairs = self._steps.rules, event.pairs
        if not pairs:
            return
        self._forgotten.updated([variable for _, variable in pairs])
        if all(is_eager(gradient) for gradient, _ in pairs):
            self._steps.begin_due_step(event.optimizer)
            if self._steps.is_armed:
                self._save_gradients([(variable, gradient) for gradient, variable in pairs])
                if self._saved_optimizer != id(_innermost(event.optimizer)):
                    self._save_state([variable for _, variable in pairs], event.optimizer)
        elif rules.wants("gradients", ever=True):
            owner = self._keras_optimizer if self._is_in_keras_step else _innermost(event.optimizer)
            holders = self._holders.setdefault(owner, {}).setdefault(current_replica(), {})
            for gradient, variable in pairs:
                capture_gradient(holders, gradient, variable)

    def _update_due(self, event: events.UpdateDue) -> None:
        """Begin a step of Keras or of a function: save the state it starts from."""
        step = event.optimizer
        self._end_evaluation()
        self._is_in_keras_step = hasattr(step.model, "weights")
        if step.optimizer is not None:
            self._keras_optimizer = _innermost(step.optimizer)
            self._steps.begin_backward()
            self._steps.begin_due_step(step.optimizer)
            if self._steps.is_armed and step.model is not None:
                self._save_state(list(getattr(step.model, "weights", step.model)), step.optimizer)
                self._saved_optimizer = id(_innermost(step.optimizer))
            self._update_count = _update_count(step.optimizer)

    def _update_done(self, event: events.UpdateDone) -> None:
        step = event.optimizer
        self._is_in_keras_step = False
        if step.optimizer is None:
            return
        if self._steps.is_armed:
            is_of_keras = hasattr(step.model, "weights")
            is_skipped = self._update_count is not None and self._update_count == _update_count(step.optimizer)
            if not (step.is_eager or is_skipped):
                for holders in self._holders.get(_innermost(step.optimizer), {}).values():
                    self._save_gradients([(variable, value(holder)) for variable, holder in holders.values()])
            for name, collections, tensor, facts in self._computed.written():
                if name != LOSS or not is_of_keras:
                    self._save(name, collections, tensor, facts)
            for name, (collections, why) in self._computed.uncaptured.items():
                if name != LOSS or not is_of_keras:
                    self._steps.report_unsaved(name, collections, TRAIN, why)
            self._report_outside()
            results = step.results if is_of_keras and step.results is not None else {}
            results = results if isinstance(results, dict) else {LOSS: results}
            for name in results:
                if name not in NOT_RESULTS:
                    self._save(name, ("losses" if name.endswith("loss") else "metrics",), results[name])
            if is_of_keras and not self._has_batch:
                self._steps.report_unsaved(f"{step.model.name}_input_0", ("inputs",), TRAIN, UNSHOWN)
                self._steps.report_unsaved(_name_of_labels(step.model), ("inputs", "labels"), TRAIN, UNSHOWN)
        self._has_batch, self._saved_optimizer = False, 0
        self._optimizer_name(step.optimizer)
        self._steps.updated(step)
        if self._steps.is_armed:
            self._computed.clear()

    def _inputs_given(self, event: events.InputsGiven) -> None:
        """Save a batch of fit; with several labels it is unknown to which loss each belongs."""
        if not self._steps.is_armed:
            return
        self._has_batch = True
        for number, (_, part) in enumerate(leaves("", event.arguments[0])):
            self._save(f"{event.module.name}_input_{number}", ("inputs",), part)
        truths = list(leaves("", event.arguments[1])) if len(event.arguments) > 1 else []
        for part, truth in truths:
            name = _name_of_labels(event.module) if len(truths) == 1 else f"labels{part}"
            self._save(name, ("inputs", "labels"), truth)
        for _, weights in leaves("", event.arguments[2]) if len(event.arguments) > 2 and len(truths) == 1 else ():
            self._save(f"{_name_of_labels(event.module)[:-1]}2", ("inputs",), weights)

    def _evaluation_due(self, event: events.EvaluationDue) -> None:
        self._end_evaluation()
        self._evaluated.clear()
        self._mode = PREDICT if event.is_prediction else EVAL

    def _end_evaluation(self) -> None:
        """Save the last outputs of layers, if a rule applies to this step."""
        mode, self._mode = self._mode, ""
        if mode:
            self._steps.begin_due_step()
            for name, collections, tensor, facts in self._evaluated.written() if self._steps.is_armed else ():
                self._save(name, collections, tensor, facts, mode)
            for name, (collections, why) in self._evaluated.uncaptured.items():
                self._steps.report_unsaved(name, collections, mode, why)

    def _epoch_ended(self, event: events.EpochEnded) -> None:
        self._save_evaluation(event.values.get("val_loss"))

    def _results_reported(self, event: events.ResultsReported) -> None:
        self._save_evaluation(event.values.get("loss") if event.kind == "evaluate" else None)

    def _save_evaluation(self, loss: Any) -> None:
        decimal = loss.get("decimal") if isinstance(loss, dict) else None
        if decimal is not None:
            self._steps.begin_due_step()
            self._steps.put_array(LOSS, ("losses",), EVAL, lambda: sys.modules["numpy"].float64(decimal))
        self._end_evaluation()

    def _output_computed(self, event: events.OutputComputed) -> None:
        output = list(event.output.values()) if isinstance(event.output, dict) else event.output
        parts = output if isinstance(output, (list, tuple)) else [output]
        module, is_layer = event.module, hasattr(event.module, "weights")
        name = getattr(module, "path", None) or module.name
        collections, facts = ("outputs",) if is_layer else ("outputs", "losses"), {"class": _class_of(module)}
        for number, part in enumerate(parts):
            self._save_computed(f"{name}_output_{number}", collections, part, facts)

    def _backward_began(self, event: events.BackwardBegan) -> None:
        if private_api.executing_eagerly():
            self._steps.begin_backward()
        if event.tape is not None:
            self._forgotten.differentiated(event.tape)
        if self._steps.rules.wants("outputs", "losses", ever=True):
            self._save_computed(LOSS, ("losses",), event.tensors, {})

    def _save_computed(self, name: str, collections: Sequence[str], tensor: Any, facts: Mapping[str, object]) -> None:
        """Save an output or loss now, or after the step if a function's graph computes it."""
        if is_eager(tensor):
            self._steps.begin_due_step()
            if self._steps.is_armed and not (name == LOSS and self._is_in_keras_step):
                self._save(name, collections, tensor, facts, self._mode or TRAIN)
        elif private_api.is_in_function(tensor):
            if name == LOSS or private_api.is_watched():
                self._computed.capture(name, collections, tensor, facts)
            elif self._mode:
                self._evaluated.capture(name, collections, tensor, facts)
            elif tensor.graph.structured_input_signature is not None:  # else Keras only infers a shape
                self._outside[name] = collections

    def _report_outside(self) -> None:
        """Report outputs that are not saved: extra assignments could change what a function without a tape computes."""
        for name, collections in self._outside.items():
            mode = EVAL if self._computed.has_captured(name) else TRAIN
            self._steps.report_unsaved(name, collections, mode, OUTSIDE_TAPE)

    def _save_gradients(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        for variable, gradient in pairs:
            name = f"gradient/{name_of(variable)}"
            if hasattr(gradient, "indices"):
                self._save(f"{name}.indices", ("gradients",), gradient.indices)
                self._save(f"{name}.values", ("gradients",), gradient.values)
            else:
                self._save(name, ("gradients",), gradient)

    def _save_state(self, variables: Sequence[Any], optimizer: Any) -> None:
        rules, owner = self._steps.rules, self._optimizer_name(optimizer)
        if rules.wants("weights", "biases") and self._forgotten_step != self._steps.step:
            self._forgotten_step = self._steps.step
            others = self._forgotten.find(self._optimizers)
            variables = [*variables, *(added for added in others if not any(added is known for known in variables))]
        for variable in variables if rules.wants("weights", "biases") else ():
            name = name_of(variable)
            is_bias = name.partition(":")[0].rpartition("/")[2].endswith("bias")
            kinds = ("biases" if is_bias else "weights",) if getattr(variable, "trainable", True) else ()
            self._save(name, kinds, value(variable))
        for variable in optimizer_variables(optimizer) if rules.wants("optimizer_variables") else ():
            self._save(f"{owner}/{name_of(variable)}", ("optimizer_variables",), value(variable))

    def _optimizer_name(self, optimizer: Any) -> str:
        """Return an optimizer's name, numbered by the order of first updates."""
        if optimizer not in self._optimizers:
            for other in live_optimizers() if not self._optimizer_count else ():
                self._steps.expect(other)
            self._optimizers[optimizer] = f"optimizer#{self._optimizer_count}"
            self._optimizer_count += 1
        return self._optimizers[optimizer]

    def _save(
        self,
        name: str,
        collections: Sequence[str],
        tensor: Any,
        facts: Mapping[str, object] = MappingProxyType({}),
        mode: str = TRAIN,
    ) -> None:
        self._steps.put_array(name, collections, mode, lambda: _array_of(tensor), facts)


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer that updates: of one that scales losses, the one inside."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _update_count(optimizer: Any) -> int | None:
    """Return how often an optimizer that scales losses has updated, as it skips a step of infinite gradients."""
    inner = _innermost(optimizer)
    counter = None if inner is optimizer else private_api.counter(inner)
    count = None if counter is None else _array_of(value(counter))
    return None if count is None else int(count)


def _array_of(tensor: Any) -> Any:
    array = view(tensor)
    if array is None and tensor is not None and private_api.has_value(tensor):
        array = tensor.numpy()  # on another device
    return array


def _name_of_labels(model: Any) -> str:
    """Return the name of the labels of a model with one output."""
    return f"{loss_name_of(model) or 'loss'}_input_1"


def _class_of(module: Any) -> str:
    """Return a module's class, or the class of its activation; recurrent layers have gates after theirs."""
    activation = None if hasattr(module, "recurrent_activation") else getattr(module, "activation", None)
    return _ACTIVATIONS.get(getattr(activation, "__name__", ""), type(module).__name__)
