"""The event of an operator's call, common to all frameworks.

A framework's operators.py makes one event of each call, and asks its listener before and after the call. A listener
uses no private name of a framework.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from ..core.user_frames import Place

    class OperatorListener(Protocol):
        """Handles the calls of operators on the thread that makes them."""

        def begins(self, call: Any) -> Any:
            """Handle a call that is about to be executed; return what ended() is to get, or None to be done with it."""

        def ended(self, call: Any, record: Any) -> None:
            """Handle the same call after its execution."""

        def failed(self, name: str, error: Exception) -> None:
            """Handle an error of the listener itself, at a call of this operator."""


FORWARD, BACKWARD, UPDATE, DATA = "forward", "backward", "update", "data"  # DATA: in functions that a data set calls


class OperatorCalled:
    """An operator is called, or was called if it has outputs."""

    __slots__ = ("inputs", "operator", "outputs")

    def __init__(self, operator: Any, inputs: Any) -> None:
        self.operator = operator  # its properties, in the framework's class
        self.inputs = inputs  # the framework's own objects, in the order of the arguments
        self.outputs: Any = None

    @property
    def where(self) -> list[Place]:
        """The places in the user's code, the innermost first."""
        raise NotImplementedError

    @property
    def phase(self) -> str:
        """The part of a step that calls it."""
        raise NotImplementedError
