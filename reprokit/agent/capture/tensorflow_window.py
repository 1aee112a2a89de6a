"""Calls of a script's functions that add up gradients, until one of them has an optimizer apply the sum."""

from __future__ import annotations

from .tensorflow_drawn import drawing, hidden
from .tensorflow_state import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import Call

ALWAYS, SOMETIMES = "always", "sometimes"  # when a call of a function has an update
MAX_CALLS = 64


def differentiates(call: Call) -> bool:
    """Whether a call computes gradients, as is known once its function was traced."""
    return getattr(call.function, "_reprokit_differentiates", False)


def applies(call: Call, *, sometimes: bool) -> None:
    """An update was built into the function of a call."""
    known = getattr(call.function, "_reprokit_applies", ALWAYS)
    call.function._reprokit_applies = SOMETIMES if sometimes else known


def written(call: Call) -> dict[int, Any]:
    """The variables that a call's function writes to before an update, by resource_id."""
    found: dict[int, Any] = getattr(call.function, "_reprokit_written", {})
    return found


def unread(calls: list[Call]) -> list[str]:
    """The operations of calls without an update that draw from states which nobody can read."""
    graphs = {getattr(call.function, "_reprokit_graph", _none)() for call in calls} - {None}
    return [name for graph in graphs for name in [*[operation.name for operation in drawing(graph)], *hidden(graph)]]


def _none() -> None:
    """The graph of a function that has none."""


class Window:
    """The calls of one thread since the last update, and what they write to as it was before the first of them."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count  # all updates so far
        self._counted = 0
        self.calls: list[Call] = []
        self.before: dict[int, Any] = {}

    def opens(self, call: Call) -> None:
        """A call begins."""
        if not _adds_up(call):
            return
        if not self.calls:
            self.before = {key: read(variable) for key, variable in written(call).items()}
        if _when(call) == SOMETIMES:
            self._counted = self._count()

    def closes(self, call: Call) -> None:
        """It is over: with the update, or one more to wait for it."""
        if call.steps:
            held = {key: variable for step in call.steps for key, (variable, _) in step.held.items()}
            call.function._reprokit_written = {**written(call), **held}
            call.steps = ()
        if _adds_up(call) and call.captured is None and (_when(call) is None or self._counted == self._count()):
            self.calls = [*self.calls, call][-MAX_CALLS:]
        elif self.calls and (call.captured is not None or _when(call) is not None):
            self.calls, self.before = [], {}


def _when(call: Call) -> str | None:
    return getattr(call.function, "_reprokit_applies", None)


def _adds_up(call: Call) -> bool:
    return differentiates(call) and _when(call) != ALWAYS
