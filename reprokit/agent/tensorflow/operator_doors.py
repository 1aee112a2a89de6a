"""Watches the eager execution of TensorFlow at its two entry points ("doors") from Python into the runtime."""

from __future__ import annotations

import functools
import sys
import threading
from typing import NamedTuple

from ..core import user_frames
from ..core.patching import MARK, replace
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    Function = Callable[..., Any]
    Frames = list[tuple[str, int, str]]

    class DoorWatcher(Protocol):
        """The listener of eager calls."""

        @property
        def watching(self) -> bool:
            """Whether calls are currently reported."""

        def call(self, call: EagerCall, original: Function, arguments: tuple[Any, ...]) -> Any:
            """Execute a call; its caller is one frame above the door."""


class EagerCall(NamedTuple):
    """A call of an operator or function: its name, inputs and attributes."""

    name: str
    inputs: Sequence[Any]
    attributes: Sequence[Any]  # alternating names and values
    is_flat: bool  # whether inputs is a flat list of tensors; else one item per input of the definition


class OperatorDoors:
    """Wraps the entry points of this process."""

    def __init__(self, watcher: DoorWatcher) -> None:
        self._watcher = watcher
        self._thread = threading.local()
        self._counts: dict[str, int | None] = {}  # number of inputs by operator

    @staticmethod
    def are_watched() -> bool:
        """Return whether the entry points are wrapped already, or missing in this TensorFlow."""
        door = getattr(private_api.module("eager"), "TFE_Py_FastPathExecute", None)
        return door is None or hasattr(door, MARK)

    @property
    def in_gradient(self) -> bool:
        """Whether this thread is in a backward pass."""
        return getattr(self._thread, "backward", False)

    def watch(self) -> None:
        """Wrap both entry points, and the computation of gradients."""
        module = private_api.module("eager")
        if hasattr(module, "TFE_Py_FastPathExecute"):
            replace(module, "TFE_Py_FastPathExecute", functools.partial(self._make_door, self._by_fast_path))
            replace(module, "TFE_Py_Execute", functools.partial(self._make_door, self._by_execute))
            replace(module, "TFE_Py_TapeGradient", self._make_gradient)

    def _make_gradient(self, original: Function) -> Function:
        """Wrap the computation of gradients, to mark the calls within it as backward."""

        def gradient(*arguments: Any, **keywords: Any) -> Any:
            before = self.in_gradient
            self._thread.backward = True
            try:
                return original(*arguments, **keywords)
            finally:
                self._thread.backward = before

        return gradient

    def _make_door(self, read: Function, original: Function) -> Function:
        """Wrap one of the entry points."""
        watcher = self._watcher

        def door(*arguments: Any) -> Any:
            call = read(arguments) if watcher.watching else None
            return original(*arguments) if call is None else watcher.call(call, original, arguments)

        return door

    def _by_fast_path(self, arguments: tuple[Any, ...]) -> EagerCall | None:
        """Parse a call through the fast path, used for most operators: context, operator, name, inputs, attributes."""
        name = arguments[1]
        if type(name) is not str:  # TensorFlow before 2.4
            return None
        if name not in self._counts:
            definition = private_api.definition(name)
            self._counts[name] = None if definition is None else len(definition.input_arg)
        count = self._counts[name]
        return None if count is None else EagerCall(name, arguments[3 : 3 + count], arguments[3 + count :], False)

    def _by_execute(self, arguments: tuple[Any, ...]) -> EagerCall:
        """Parse a call of another operator, or of a function."""
        name = arguments[2]
        name = name.decode() if isinstance(name, bytes) else name
        return EagerCall(name, arguments[3], arguments[4] or (), True)


def frames_of_caller(depth: int) -> Frames:
    """Return file, line and function of the frames on the stack, outermost first."""
    frames: Frames = []
    frame = sys._getframe(depth)
    while frame is not None and len(frames) < user_frames.MAX_DEPTH:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return frames[::-1]
