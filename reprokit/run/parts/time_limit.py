"""Ends a command that exceeds its timeout."""

from __future__ import annotations

import time
from collections.abc import Iterable

from reprokit.model.plan import Plan
from reprokit.run.part import RunPart, Watch
from reprokit.run.process import Termination


class TimeLimit(RunPart):
    """The timeout of a command, which counts from its start."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._began = time.monotonic()

    def watches(self) -> Iterable[Watch]:
        assert self._plan.timeout is not None
        deadline = self._began + self._plan.timeout
        return (Termination(lambda: time.monotonic() > deadline),)


PART = TimeLimit
