"""Makes the events of TensorFlow's eager operators, at the two entry points ("doors") from Python into its runtime."""

from __future__ import annotations

import functools
import sys
import threading
from typing import NamedTuple

from ..core import user_frames
from ..core.patching import MARK, replace
from ..core.signal_errors import pass_on
from ..events.operators import BACKWARD, OperatorCalled
from . import graphs, private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any

    from ..core.user_frames import Place
    from ..events.operators import OperatorListener

    Function = Callable[..., Any]
    Frames = list[tuple[str, int, str]]


class TensorflowOperator(NamedTuple):
    """An operator, or a function that is called as a whole: then it has no definition."""

    name: str
    definition: Any


class EagerCalled(OperatorCalled):
    """An eager call; its place is read only on request. The frame lives no longer than the call."""

    __slots__ = ("_located", "flat_attributes", "frame", "is_backward", "is_flat")

    def __init__(
        self, operator: TensorflowOperator, inputs: Sequence[Any], attributes: Sequence[Any], is_flat: bool
    ) -> None:
        super().__init__(operator, inputs)
        self.flat_attributes = attributes  # alternating names and values
        self.is_flat = is_flat  # inputs are a flat list of tensors, else one entry per defined input
        self.frame: FrameType | None = None  # of the caller
        self.is_backward = False
        self._located: tuple[list[Place], str] | None = None

    def _locate(self) -> tuple[list[Place], str]:
        if self._located is None:
            frames = _frames(self.frame)
            phase = BACKWARD if self.is_backward else graphs.phase_of(self.operator.name, "", frames)
            self._located = graphs.frames_of_user(frames), phase
        return self._located

    @property
    def where(self) -> list[Place]:
        return self._locate()[0]

    @property
    def phase(self) -> str:
        return self._locate()[1]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name."""
        return dict(zip(self.flat_attributes[::2], self.flat_attributes[1::2]))

    @property
    def node(self) -> str:
        """The operation whose gradient is computed; empty if there is none."""
        return private_api.forward_operator(self.frame) if self.phase == BACKWARD else ""


class TensorflowOperatorEvents:
    """Makes the event of each call while it is watching, except of what only moves values and of the agent's calls."""

    def __init__(
        self,
        listener: OperatorListener,
        is_watching: Callable[[], bool],
        call_function: Callable[[EagerCalled, Function], Any] | None = None,
    ) -> None:
        self._listener = listener
        self._is_watching = is_watching
        self._call_function = call_function  # executes a function in a way of its own
        self._thread = threading.local()  # .backward: in a backward pass; .busy: the agent itself executes operators
        self._counts: dict[str, int | None] = {}  # number of inputs by operator
        self._operators: dict[str, TensorflowOperator | None] = {}

    @staticmethod
    def are_watched() -> bool:
        """Return whether the entry points are wrapped already, or missing in this TensorFlow."""
        door = getattr(private_api.module("eager"), "TFE_Py_FastPathExecute", None)
        return door is None or hasattr(door, MARK)

    def watch(self) -> None:
        """Wrap both entry points, and the computation of gradients."""
        module = private_api.module("eager")
        if hasattr(module, "TFE_Py_FastPathExecute"):
            replace(module, "TFE_Py_FastPathExecute", functools.partial(self._make_door, self._by_fast_path))
            replace(module, "TFE_Py_Execute", functools.partial(self._make_door, self._by_execute))
            replace(module, "TFE_Py_TapeGradient", self._make_gradient)

    @property
    def is_busy(self) -> bool:
        """Whether the agent itself executes operators on this thread."""
        return getattr(self._thread, "busy", False)

    def undisturbed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the agent's, of whose operators no events are made."""
        before, self._thread.busy = self.is_busy, True
        try:
            return function(*arguments)
        finally:
            self._thread.busy = before

    def execute(self, call: OperatorCalled, execute: Callable[[], Any]) -> Any:
        """Execute a call with its event."""
        if self.is_busy:
            return execute()
        record = self._attempt(self._listener.begins, call)
        result = execute()
        if record is not None:
            call.outputs = result
            self._attempt(self._listener.ended, call, record)
        return result

    def _attempt(self, handler: Function, call: OperatorCalled, *record: Any) -> Any:
        try:
            return self.undisturbed(handler, call, *record)
        except Exception as error:
            self._listener.failed(call.operator.name, error)
            pass_on(error)
            return None

    def _make_gradient(self, original: Function) -> Function:
        """Wrap the computation of gradients, to mark the calls within it as backward."""

        def gradient(*arguments: Any, **keywords: Any) -> Any:
            before = getattr(self._thread, "backward", False)
            self._thread.backward = True
            try:
                return original(*arguments, **keywords)
            finally:
                self._thread.backward = before

        return gradient

    def _make_door(self, read: Function, original: Function) -> Function:
        """Wrap one of the entry points."""

        def door(*arguments: Any) -> Any:
            call = read(arguments) if self._is_watching() and not self.is_busy else None
            if call is None:
                return original(*arguments)
            call.frame, call.is_backward = sys._getframe(1), getattr(self._thread, "backward", False)
            if call.operator.definition is None and self._call_function is not None:
                return self._call_function(call, lambda: original(*arguments))
            return self.execute(call, lambda: original(*arguments))

        return door

    def _by_fast_path(self, arguments: tuple[Any, ...]) -> EagerCalled | None:
        """Parse a call through the fast path, used for most operators: context, operator, name, inputs, attributes."""
        name = arguments[1]
        if type(name) is not str:  # TensorFlow before 2.4
            return None
        operator = self._operator(name)
        if operator is None or operator.definition is None:
            return None
        count = len(operator.definition.input_arg)
        return EagerCalled(operator, arguments[3 : 3 + count], arguments[3 + count :], False)

    def _by_execute(self, arguments: tuple[Any, ...]) -> EagerCalled | None:
        """Parse a call of another operator, or of a function."""
        name = arguments[2]
        operator = self._operator(name.decode() if isinstance(name, bytes) else name)
        return None if operator is None else EagerCalled(operator, arguments[3], arguments[4] or (), True)

    def _operator(self, name: str) -> TensorflowOperator | None:
        """Return an operator or function; None if it makes no events."""
        if name not in self._operators:
            definition = private_api.definition(name) if name[:2] != "__" else None
            is_function = definition is None and self._call_function is not None
            makes_events = is_function or (definition is not None and graphs.computes(name))
            self._operators[name] = TensorflowOperator(name, definition) if makes_events else None
        return self._operators[name]


def _frames(frame: FrameType | None) -> Frames:
    """Return file, line and function of the frames on the stack, outermost first."""
    frames: Frames = []
    while frame is not None and len(frames) < user_frames.MAX_DEPTH:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames[::-1]
