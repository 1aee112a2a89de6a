"""Calls of a script's functions that add up gradients, until one of them has an optimizer apply the sum."""

from __future__ import annotations

from .tensorflow_calls import SOMETIMES
from .tensorflow_drawn import drawing, hidden
from .tensorflow_state import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .tensorflow_calls import Call

MAX_CALLS = 64


def unread(calls: list[Call]) -> list[str]:
    """The operations of calls without an update that draw from states which nobody can read."""
    graphs = {call.traced.graph() for call in calls} - {None}
    return [name for graph in graphs for name in [*[operation.name for operation in drawing(graph)], *hidden(graph)]]


class Window:
    """The calls of one thread since the last update, and what they write to as it was before the first of them."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count  # all updates so far
        self._counted = 0
        self.calls: list[Call] = []
        self.before: dict[int, Any] = {}

    def opens(self, call: Call) -> None:
        """A call begins."""
        traced = call.traced
        if not traced.adds_up:
            return
        if not self.calls:
            self.before = {key: read(variable) for key, variable in traced.written.items()}
        if traced.updates == SOMETIMES:
            self._counted = self._count()

    def closes(self, call: Call) -> None:
        """It is over: with the update, or one more to wait for it."""
        traced = call.traced
        if traced.adds_up and call.captured is None and (traced.updates is None or self._counted == self._count()):
            self.calls = [*self.calls, call][-MAX_CALLS:]
        elif self.calls and (call.captured is not None or traced.updates is not None):
            self.calls, self.before = [], {}
