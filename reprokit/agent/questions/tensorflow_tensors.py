"""Saves tensors of TensorFlow and Keras: variables and optimizer state as an update finds them, gradients, what a step
of fit was given and returned, its validation losses, and in loops that run eagerly what layers and losses returned.

In a graph that Keras builds, variables beside take the gradients, where gradients are asked for.
"""

from __future__ import annotations

import sys
import weakref

from ..core.exact_values import leaves
from ..events import EpochEnded, GradientsDue, InputsGiven, OutputComputed, ResultsReported, UpdateDone, UpdateDue
from ..tensorflow import private_api
from ..tensorflow.evaluation import loss_name_of
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensors import is_eager, name_of, value, view
from ..tensorflow.trail import NOT_RESULTS, take_in_graph
from .tensor_rules import EVAL, TRAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..agent import Agent
    from ..events import Handler, TrainingEvent
    from .tensors import SavedSteps


class TensorflowTensors:
    """Saves the tensors of this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps
        steps.forgetting.append(self.forget)
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child."""
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen = 0
        self._holders: weakref.WeakKeyDictionary[Any, dict[int, tuple[Any, Any]]] = weakref.WeakKeyDictionary()

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        always: dict[type[TrainingEvent], Handler] = {
            GradientsDue: self._gradients_due,
            UpdateDue: self._update_due,
            UpdateDone: self._update_done,
        }
        rules = self._steps.rules
        outputs: dict[type[TrainingEvent], Handler] = {
            OutputComputed: self._output_computed,
            EpochEnded: self._epoch_ended,
            ResultsReported: self._results_reported,
        }
        inputs: dict[type[TrainingEvent], Handler] = {InputsGiven: self._inputs_given}
        always.update(outputs if rules.wants("outputs", "losses", ever=True) else {})
        return {**always, **inputs} if rules.wants("inputs", "labels", ever=True) else always

    def failed(self, error: Exception, handler: Handler) -> None:
        """What could not be saved is said; the training, and further saving, goes on."""
        self._agent.failed(handler, error)

    def _gradients_due(self, event: GradientsDue) -> None:
        rules, pairs = self._steps.rules, event.pairs
        if not pairs:
            return
        if all(is_eager(gradient) for gradient, _ in pairs):
            self._steps.go_on(event.optimizer)
            if self._steps.is_armed:
                self._take_gradients([(variable, gradient) for gradient, variable in pairs])
                self._take_state([variable for _, variable in pairs], event.optimizer)
        elif rules.wants("gradients", ever=True):
            holders = self._holders.setdefault(event.optimizer, {})
            for gradient, variable in pairs:
                take_in_graph(holders, gradient, variable)

    def _update_due(self, event: UpdateDue) -> None:
        """A step of Keras begins."""
        step = event.optimizer
        if step.optimizer is not None:
            self._steps.go_on(step.optimizer)
            if self._steps.is_armed and step.model is not None:
                self._take_state(list(step.model.weights), step.optimizer)

    def _update_done(self, event: UpdateDone) -> None:
        step = event.optimizer
        if step.optimizer is None:
            return
        if self._steps.is_armed and step.results is not None:
            holders = self._holders.get(step.optimizer, {})
            self._take_gradients([(variable, value(holder)) for variable, holder in holders.values()])
            results = step.results if isinstance(step.results, dict) else {"loss": step.results}
            for name in results:
                if name not in NOT_RESULTS:
                    self._take(name, ("losses" if name.endswith("loss") else "metrics",), results[name])
        self._number(step.optimizer)
        self._steps.updated(step)

    def _inputs_given(self, event: InputsGiven) -> None:
        """Save a batch of fit; of several kinds of labels none is known to be of a loss."""
        if not self._steps.is_armed:
            return
        for number, (_, part) in enumerate(leaves("", event.arguments[0])):
            self._take(f"{event.module.name}_input_{number}", ("inputs",), part)
        truths = list(leaves("", event.arguments[1])) if len(event.arguments) > 1 else []
        name = f"{loss_name_of(event.module) or 'loss'}_input_1"
        for part, truth in truths:
            self._take(name if len(truths) == 1 else f"labels{part}", ("inputs", "labels"), truth)

    def _epoch_ended(self, event: EpochEnded) -> None:
        self._take_evaluation(event.values.get("val_loss"))

    def _results_reported(self, event: ResultsReported) -> None:
        if event.kind == "evaluate":
            self._take_evaluation(event.values.get("loss"))

    def _take_evaluation(self, loss: Any) -> None:
        decimal = loss.get("decimal") if isinstance(loss, dict) else None
        if decimal is not None:
            self._steps.go_on()
            self._steps.put_array("loss", ("losses",), EVAL, lambda: sys.modules["numpy"].float64(decimal))

    def _output_computed(self, event: OutputComputed) -> None:
        parts = event.output if isinstance(event.output, (list, tuple)) else [event.output]
        if not all(is_eager(part) for part in parts):
            return
        self._steps.go_on()
        name, is_layer = getattr(event.module, "path", None) or event.module.name, hasattr(event.module, "weights")
        for number, part in enumerate(parts if self._steps.is_armed else ()):
            self._take(f"{name}_output_{number}", ("outputs",) if is_layer else ("outputs", "losses"), part)

    def _take_gradients(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        for variable, gradient in pairs:
            name = f"gradient/{name_of(variable)}"
            if hasattr(gradient, "indices"):
                self._take(f"{name}.indices", ("gradients",), gradient.indices)
                self._take(f"{name}.values", ("gradients",), gradient.values)
            else:
                self._take(name, ("gradients",), gradient)

    def _take_state(self, variables: Sequence[Any], optimizer: Any) -> None:
        rules = self._steps.rules
        for variable in variables if rules.wants("weights", "biases") else ():
            name = name_of(variable)
            is_bias = name.partition(":")[0].rpartition("/")[2].endswith("bias")
            kinds = ("biases" if is_bias else "weights",) if getattr(variable, "trainable", True) else ()
            self._take(name, kinds, value(variable))
        number = self._number(optimizer)
        for variable in optimizer_variables(optimizer) if rules.wants("optimizer_variables") else ():
            self._take(f"{number}/{name_of(variable)}", ("optimizer_variables",), value(variable))

    def _number(self, optimizer: Any) -> str:
        """Return what an optimizer is called: by the order of first updates."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = f"optimizer#{self._seen}"
            self._seen += 1
        return self._optimizers[optimizer]

    def _take(self, name: str, collections: Sequence[str], tensor: Any) -> None:
        self._steps.put_array(name, collections, TRAIN, lambda: _array_of(tensor))


def _array_of(tensor: Any) -> Any:
    array = view(tensor)
    if array is None and tensor is not None and private_api.has_value(tensor):
        array = tensor.numpy()  # of another device
    return array
