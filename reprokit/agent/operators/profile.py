"""Counts the distinct calls of operators for a profile: a listener of the events of operators."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..events.operators import OperatorCalled
    from . import Observer
    from .confirm import Confirmer, Repeatable
    from .files import CallRecord


class OperatorProfile:
    """Counts the calls of a framework, and has them repeated if requested."""

    def __init__(self, observer: Observer, find: Callable[[Any], CallRecord | None]) -> None:
        self._observer = observer
        self._find = find  # returns the record of a call, new at the first such call; None if it is not counted
        self.confirmer: Confirmer | None = None

    def begins(self, call: OperatorCalled) -> tuple[CallRecord, Repeatable | None] | None:
        record = self._find(call)
        if record is None:
            return None
        return record, None if self.confirmer is None else self.confirmer.begins(record, call)

    def ended(self, _call: OperatorCalled, begun: tuple[CallRecord, Repeatable | None]) -> None:
        record, repeatable = begun
        record.line["calls"] += 1
        if record.line["calls"] == 1:
            self._observer.write(record.kind, record.key, record.line)
        if repeatable is not None and self.confirmer is not None:
            self.confirmer.ended(record, repeatable)

    def failed(self, name: str, error: Exception) -> None:
        self._observer.agent.warn(f"a call of {name} was not noted: {type(error).__name__}: {error}", "call-not-noted")
