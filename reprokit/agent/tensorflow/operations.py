"""Reports the eager operations, gradients and layers that a thread executes in TensorFlow 2 and Keras."""

from __future__ import annotations

import sys
import threading

from ..core.patching import swap
from . import private_api
from .operators import EagerCalled, TensorflowOperator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Function = Callable[..., Any]


class NoOperationCallbacks(Exception):
    """Raised if this TensorFlow has no operation callbacks."""


class OperationHooks:
    """Reports the eager execution of the thread that calls begin() to a listener, until end().

    The listener gets `ended(call, None)` for each operation, `differentiated(targets)` before a backward pass,
    `gradient_begins(name, inputs, outputs)` and `gradient_ends()` around the gradient of an operation, and
    `layer_begins(name)` ("loss NAME" for a loss) and `layer_ends()` around layers.
    """

    def __init__(self, listener: Any) -> None:
        self._listener = listener
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Begin to report; raises NoOperationCallbacks."""
        callbacks: Any = private_api.module("callbacks")
        if callbacks is None:
            raise NoOperationCallbacks("this TensorFlow does not tell of the operations that it executes; 2.2 does")
        callbacks.add_op_callback(self._executed)
        self._undo.append(lambda: callbacks.remove_op_callback(self._executed))
        self._watch_gradients()
        for kind, prefix in (("Layer", ""), ("Loss", "loss ")):
            for owner in private_api.keras_classes(kind):
                self._watch_calls(owner, prefix)

    def end(self) -> None:
        """Stop reporting, and revert all patches."""
        while self._undo:
            self._undo.pop()()

    def _executed(
        self, name: Any, inputs: Sequence[Any], attributes: Any, outputs: Sequence[Any], *_rest: Any, **_: Any
    ) -> None:
        if threading.get_ident() == self._thread and all(map(private_api.has_value, outputs)):  # not in a graph
            call = EagerCalled(TensorflowOperator(_name_text(name), None), inputs, attributes, True)
            call.frame, call.outputs = sys._getframe(1), outputs
            self._listener.ended(call, None)

    def _watch_gradients(self) -> None:
        module, listener = private_api.module("eager"), self._listener
        original = private_api.gradient_function()

        def gradient_function(name: Any, attributes: Any, count: int, inputs: Any, outputs: Any, *rest: Any) -> Any:
            listener.gradient_begins(_name_text(name), inputs, outputs)
            try:
                return original(name, attributes, count, inputs, outputs, *rest)
            finally:
                listener.gradient_ends()

        def make_tape_gradient(take: Function) -> Function:
            def tape_gradient(tape: Any, targets: Any, *arguments: Any) -> Any:
                listener.differentiated(list(filter(private_api.has_value, targets)))
                return take(tape, targets, *arguments)

            return tape_gradient

        module.TFE_Py_RegisterGradientFunction(gradient_function)
        self._undo.append(lambda: module.TFE_Py_RegisterGradientFunction(original))
        self._undo.append(swap(module, "TFE_Py_TapeGradient", make_tape_gradient))

    def _watch_calls(self, owner: Any, prefix: str) -> None:
        listener, thread = self._listener, self._thread

        def make_call(original: Function) -> Function:
            def call(layer: Any, *arguments: Any, **keywords: Any) -> Any:
                if threading.get_ident() != thread:
                    return original(layer, *arguments, **keywords)
                listener.layer_begins(prefix + str(getattr(layer, "name", type(layer).__name__)))
                try:
                    return original(layer, *arguments, **keywords)
                finally:
                    listener.layer_ends()

            return call

        if "__call__" in vars(owner):
            self._undo.append(swap(owner, "__call__", make_call))


def _name_text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
