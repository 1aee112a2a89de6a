"""Observes TensorFlow's operators that are called eagerly, at both doors from Python into its runtime.

Each call costs some microseconds, so that steps that are not looked at are left alone; calls are counted in the others.
"""

from __future__ import annotations

import sys
import threading

from ..core import user_frames
from ..core.patching import replace
from ..tensorflow import private_api
from . import tensorflow_graphs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from . import Observer
    from .tensorflow_operators import Tensorflow

    Function = Callable[..., Any]

MAX_CALLS = 10_000  # different ones
MAX_LIST = 64  # tensors in a list that is one input
_PLAIN = (bool, int, str, bytes)
_KINDS = frozenset(["bool", "int", "float", "string"])


class Call:
    """An operator that is being called: its inputs, one by one, and its attributes by name."""

    def __init__(
        self, name: str, definition: Any, inputs: Sequence[Any], attributes: Sequence[Any], *, is_flat: bool
    ) -> None:
        self.name = name
        self.definition = definition
        self.is_flat = is_flat  # the inputs, which are tensors then; else there are as many as the definition names
        self.inputs = inputs
        self.attributes = dict(zip(attributes[::2], attributes[1::2]))


def watch(calls: EagerCalls) -> None:
    """See what goes through both doors, and where the backward pass begins and ends."""
    module = private_api.module("eager")
    if module is None or not hasattr(module, "TFE_Py_FastPathExecute"):
        return
    replace(module, "TFE_Py_FastPathExecute", calls.make_fast_path)
    replace(module, "TFE_Py_Execute", calls.make_execute)
    replace(module, "TFE_Py_TapeGradient", calls.make_gradient)


class EagerCalls:
    """The eager calls of this process."""

    def __init__(self, tensorflow: Tensorflow, observer: Observer) -> None:
        self._tensorflow = tensorflow
        self._observer = observer
        self._lines: dict[object, dict[str, Any]] = {}
        self._definitions: dict[str, Any] = {}
        self._thread = threading.local()
        observer.in_child(self._lines.clear)

    def make_gradient(self, original: Function) -> Function:
        """What is called on the way is backward."""

        def gradient(*arguments: Any, **keywords: Any) -> Any:
            before = getattr(self._thread, "backward", False)
            self._thread.backward = True
            try:
                return original(*arguments, **keywords)
            finally:
                self._thread.backward = before

        return gradient

    def make_fast_path(self, original: Function) -> Function:
        """The door of most operators: the context, the operator, a name, inputs, attributes."""
        attempt, observer, busy = self._observer.agent.attempt, self._observer, self._tensorflow.busy
        counted = self._tensorflow.counted

        def fast_path(*arguments: Any) -> Any:
            if not (observer.collecting and observer.sampling) or getattr(busy, "now", False):
                return original(*arguments)
            line = attempt(self._by_fast_path, arguments)
            result = original(*arguments)
            if line is not None:
                counted(line)
            return result

        return fast_path

    def make_execute(self, original: Function) -> Function:
        """The door of the others, and of functions."""
        attempt, observer, busy = self._observer.agent.attempt, self._observer, self._tensorflow.busy
        counted = self._tensorflow.counted

        def execute(*arguments: Any) -> Any:
            if not (observer.collecting and observer.sampling) or getattr(busy, "now", False):
                return original(*arguments)
            line = attempt(self._by_execute, arguments)
            result = original(*arguments)
            if line is not None:
                counted(line)
            return result

        return execute

    def _by_fast_path(self, arguments: tuple[Any, ...]) -> dict[str, Any] | None:
        name = arguments[1]
        if type(name) is not str:  # TensorFlow before 2.4
            return None
        definition = self._definition(name)
        if definition is None:
            return None
        end = 3 + len(definition.input_arg)
        return self._note(name, definition, arguments[3:end], arguments[end:], is_flat=False)

    def _by_execute(self, arguments: tuple[Any, ...]) -> dict[str, Any] | None:
        name = arguments[2]
        name = name.decode() if isinstance(name, bytes) else name
        definition = self._definition(name)
        if definition is None:
            return None
        return self._note(name, definition, arguments[3], arguments[4] or (), is_flat=True)

    def _definition(self, name: str) -> Any:
        """What TensorFlow knows of an operator; None of a function, and of one that only moves values."""
        if name not in self._definitions:
            known = private_api.definition(name) if tensorflow_graphs.computes(name) and name[:2] != "__" else None
            self._definitions[name] = known
        return self._definitions[name]

    def _note(
        self, name: str, definition: Any, inputs: Sequence[Any], attributes: Sequence[Any], *, is_flat: bool
    ) -> dict[str, Any] | None:
        frame = user_frames.users_frame(sys._getframe(3))
        place = (frame.f_code, frame.f_lineno) if frame is not None else None
        plain = tuple([value for value in attributes if type(value) in _PLAIN])
        draws = _draws(attributes) if tensorflow_graphs.is_parallel(name) else None
        key = (name, place, getattr(self._thread, "backward", False), tuple(map(_signature, inputs)), plain, draws)
        line = self._lines.get(key)
        if line is None and len(self._lines) < MAX_CALLS:
            call = Call(name, definition, inputs, attributes, is_flat=is_flat)
            line = self._lines[key] = self._tensorflow.line(self._describe(call, draws), write=False)
            self._first(call, line)
        return line

    def _first(self, call: Call, line: dict[str, Any]) -> None:
        """The first call of its kind: note the functions that a pipeline will call, or repeat the call."""
        if tensorflow_graphs.is_of_data(call.name):
            for value in call.attributes.values():
                if private_api.function_graph(value) is not None:
                    self._tensorflow.data_function(value)
        elif self._tensorflow.confirmer is not None:
            self._tensorflow.confirmer.eager(call, line)

    def _describe(self, call: Call, draws: bool | None) -> dict[str, Any]:
        flat = flatten(call.inputs)
        line = tensorflow_graphs.line_of(
            call.name,
            self._phase(call.name),
            _device(flat) or ("cuda" if self._tensorflow.reader.has_gpu else "cpu"),
            [_dtype_name(value) for value in flat],
            [_shape(value) for value in flat],
            _attributes(call),
            user_frames.where(5),
        )
        line["version"] = self._tensorflow.version
        if draws is not None:
            line["attributes"]["draws"] = draws
        return line

    def _phase(self, name: str) -> str:
        if getattr(self._thread, "backward", False):
            return tensorflow_graphs.BACKWARD
        frames: tensorflow_graphs.Frames = []
        frame: FrameType | None = sys._getframe(4)
        while frame is not None and len(frames) < user_frames.MAX_DEPTH:
            frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return tensorflow_graphs.phase_of(name, "", frames[::-1])


def _draws(attributes: Sequence[Any]) -> bool:
    """Whether the functions that a pipeline will call take random numbers."""
    return tensorflow_graphs.draws(private_api.function_graph(value) for value in attributes[1::2])


def flatten(inputs: Sequence[Any]) -> list[Any]:
    """The inputs one by one."""
    flat: list[Any] = []
    for value in inputs:
        if isinstance(value, (list, tuple)):
            flat += value[:MAX_LIST]
        else:
            flat.append(value)
    return flat


def _signature(value: Any) -> object:
    """What tells an input's type and shape, fast."""
    try:
        return private_api.signature(value)
    except AttributeError:
        if isinstance(value, (list, tuple)):
            return tuple(map(_signature, value[:MAX_LIST]))
        return type(value)


def _dtype_name(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    name = getattr(getattr(dtype, "base_dtype", dtype), "name", None)
    return str(name or type(value).__name__)


def _shape(value: Any) -> list[int]:
    shape = getattr(value, "shape", ())
    try:
        return tensorflow_graphs.shape_of(shape)
    except (TypeError, ValueError):
        return [-1]


def _device(values: list[Any]) -> str:
    """The device of the inputs: a GPU's if one of them is there."""
    kinds = {tensorflow_graphs.kind_of_device(str(getattr(value, "device", "") or "")) for value in values}
    return max(kinds - {""}, default="")


def _attributes(call: Call) -> dict[str, object]:
    """Those that are plain values, with what is meant where none is given."""
    found: dict[str, object] = {}
    for attribute in call.definition.attr:
        given = call.attributes.get(attribute.name)
        if attribute.type not in _KINDS:
            continue
        if given is None:
            kind = attribute.default_value.WhichOneof("value")
            given = getattr(attribute.default_value, kind) if kind in ("b", "i", "f", "s") else None
        plain = tensorflow_graphs.simple(given)
        if plain is not None:
            found[attribute.name] = bool(plain) if attribute.type == "bool" else plain
    if "num_parallel_calls" in [argument.name for argument in call.definition.input_arg]:
        found.update(_parallel_calls(call))
    return found


def _parallel_calls(call: Call) -> dict[str, object]:
    """How many elements a pipeline works on at once, which is an input of its operator; -1: as TensorFlow likes."""
    names = [argument.name for argument in call.definition.input_arg]
    if len(names) != len(call.inputs):
        return {}
    value = call.inputs[names.index("num_parallel_calls")]
    return {"num_parallel_calls": int(value)}
