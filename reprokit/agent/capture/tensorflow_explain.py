"""Executes a step of TensorFlow 2 operation by operation, and finds the one that made something that is not finite.

TensorFlow tells each operation that it executed, of the forward pass and of gradients alike. It asks Python for each
gradient and hands over tensors of the forward pass: by them a gradient's operations are known to belong to one of the
user's lines.
"""

from __future__ import annotations

import sys

from ..core import user_frames
from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.operations import OperationHooks
from .causes import BACKWARD, FORWARD, MAX_TENSORS, UPDATE, OperatorEvent, Origin, Statistics, Trace, cause, line
from .tensorflow_rows import SampleRows
from .tensorflow_state import as_array, is_finite, limits_of, numbers
from .variables import lines_that_made, user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType
    from typing import Any

_GENERATED = "__autograph_generated_file"
MAX_KNOWN = 2_000_000  # tensors of the forward pass whose origins are kept
# Operations that only give what was there before, and how a person calls that; of constants infinities are meant.
_SOURCES = {"ReadVariableOp": "a variable", "VariableV2": "a variable", "IteratorGetNext": "the batch"}
_CONSTANTS = frozenset(["", "Const", "Fill", "Placeholder", "OnesLike", "ZerosLike", "Pack"])
_ASSIGNMENTS = frozenset(["AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"])
# What the first input is of the forward pass, of these gradients' operations.
_OF_FORWARD = {"SqrtGrad": "saved result", "RsqrtGrad": "saved result"}
_OF_LOGARITHMS = (("Reciprocal", "Log"), ("Inv", "Log"))


class OperationWatcher:
    """While it is entered, sees what this thread executes eagerly."""

    def __init__(self, samples: int = 0) -> None:
        self.trace = Trace()
        self.targets: list[Any] = []  # that gradients were taken of: losses
        self._made: dict[int, Origin] = {}  # by tensors of the forward pass
        self._given: dict[tuple[str, int], Origin] = {}  # by name and input, where the results are let go
        self._gradient: list[Origin] = []  # whose gradient is being computed
        self._names: list[str] = []  # of the layers that are being called
        self._updates: list[OperatorEvent] = []  # of optimizers
        self._rows = SampleRows(samples)
        self._hooks = OperationHooks(self)

    def __enter__(self) -> OperationWatcher:
        self._hooks.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hooks.end()

    def cause(
        self, roots: Sequence[Any], batch: Sequence[Any] = (), samples: int | None = None
    ) -> dict[str, object] | None:
        """What result.json holds of where it began, as seen from tensors that are not finite; None if it is not known.

        ``batch`` has the arrays that the step was given, which no operation may have made.
        """
        found = cause(self.trace.reached(map(private_api.number, roots)))
        if found is None:
            return None
        if not (found.is_origin or found.parents):
            bad = [_statistics("", array) for array in batch if not is_finite(array)]
            if bad:
                found.given, found.lines = [("the batch", one) for one in bad], None
        return {**line(found, samples), **({"phase": UPDATE} if found in self._updates else {})}

    # What is executed

    def executed(self, name: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._rows.made(name, inputs, outputs, attributes)
        phase, origin = FORWARD, None
        if self._gradient:
            phase, origin = BACKWARD, self._gradient[-1]
        elif len(self._made) < MAX_KNOWN:
            origin = Origin(_where(), self._layer())
            self._made.update(dict.fromkeys(_present(outputs), origin))
            self._given.update(dict.fromkeys([(name, key) for key in _present(inputs)], origin))
        self.trace.count += 1
        if name in _ASSIGNMENTS:
            self._assigned(*inputs[:2])
        bad = [(key, array) for key, array in _arrays(outputs) if not is_finite(array)]
        if bad:
            event = self._event(name, phase, origin or Origin(_where(), self._layer()), inputs)
            self._tell(event, inputs, [array for _, array in bad])
            worst = next(one for one in outputs if private_api.number(one) == bad[0][0])
            event.batch = None if self._rows.in_order(worst) else range(0)
            self.trace.add(event, [key for key, _ in bad])
            if phase == FORWARD and _is_update():
                self._updates.append(event)

    def _assigned(self, variable: Any, value: Any) -> None:
        """Note who made what a variable has from here on, where that is not finite."""
        maker = self.trace.maker([private_api.number(value)])
        self.trace.hand_on(maker, private_api.number(variable))

    def _event(self, name: str, phase: str, origin: Origin, inputs: Sequence[Any]) -> OperatorEvent:
        event = OperatorEvent(self.trace.count, name, phase, origin)
        event.is_meant = name in _CONSTANTS
        assigned = self.trace.maker(map(private_api.number, inputs)) if name in _SOURCES else None
        event.parents += [] if assigned is None else [assigned]
        for key, array in _arrays(inputs):
            kept = _OF_FORWARD.get(name, "saved self" if (name, origin.gradient_of) in _OF_LOGARITHMS else "")
            event.inputs.append(_statistics("" if event.inputs else kept, array))
            maker = self.trace.maker([key])
            if event.inputs[-1].nonfinite and maker is not None:
                event.parents.append(maker)
            elif event.inputs[-1].nonfinite:
                event.given.append(("", event.inputs[-1]))
        if phase == FORWARD and event.given and not event.parents:  # neither an operation nor, if finite, the batch
            event.lines = lines_that_made(user_functions(sys._getframe(1)), lambda value: is_finite(as_array(value)))
        return event

    def _tell(self, event: OperatorEvent, inputs: Sequence[Any], bad: list[Any]) -> None:
        outputs = [_statistics("", array) for array in bad[:MAX_TENSORS]]
        if not (event.inputs or event.parents or event.is_meant):
            event.given = [(_SOURCES.get(event.name, "what the step was given"), outputs[0])]
        event.makes_nan = any(one.nans for one in outputs) and not any(one.nans for one in event.inputs)
        given = [numbers(array) for _, array in _arrays(inputs)]
        event.tell(sys.modules["numpy"], event.inputs, outputs, numbers(bad[0]), given)

    def _layer(self) -> str:
        names = self._names[1:] if len(self._names) > 1 and self._names[0][:5] != "loss " else self._names
        return "/".join(names)

    def layer_begins(self, name: str) -> None:
        self._names.append(name)

    def layer_ends(self) -> None:
        self._names.pop()

    # Gradients

    def differentiated(self, targets: Sequence[Any]) -> None:
        self.targets += targets

    def gradient_begins(self, name: str, inputs: Any, outputs: Any) -> None:
        """Note the operation of the forward pass that had one of these tensors."""
        made = next((self._made[key] for key in _present(outputs) if key in self._made), None)
        given = (self._given[name, key] for key in _present(inputs) if (name, key) in self._given)
        found = made or next(given, None) or Origin(_where())
        self._gradient.append(Origin(found.where, found.layer, name))

    def gradient_ends(self) -> None:
        self._gradient.pop()


def _is_update() -> bool:
    """Return whether an optimizer is at work."""
    frame = sys._getframe(1)
    while frame is not None and ".optimizers." not in str(frame.f_globals.get("__name__")):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _where() -> list[user_frames.Place]:
    """Return the user's lines, without those of code that TensorFlow made of them, which has no lines to look at."""
    return [place for place in user_frames.where(3) if _GENERATED not in place[0]]


def _present(tensors: Any) -> Iterator[int]:
    for tensor in tensors if isinstance(tensors, (list, tuple)) else ():
        key = private_api.number(tensor)
        if key is not None:
            yield key


def _arrays(tensors: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Key and values of those tensors that have numbers."""
    arrays = [(private_api.number(tensor), _array(tensor)) for tensor in tensors if private_api.has_value(tensor)]
    return [(key, array) for key, array in arrays if array is not None]


def _array(tensor: Any) -> Any:
    """Return the values of a tensor, without a copy where they lie on this side; None of what has no numbers."""
    try:
        dtype = tensor.dtype
        return private_api.value(tensor) if dtype.is_floating or dtype.is_integer or dtype.is_complex else None
    except Exception as error:  # a device, or a kind of value, that cannot be read; it is left out
        pass_on(error)
        return None


def _statistics(name: str, array: Any) -> Statistics:
    return Statistics(sys.modules["numpy"], numbers(array), name, array.dtype.name, array.shape, limits_of(array))
