"""The parts of a run, in the order in which they are prepared, armed and finished.

A part has a module here, whose `PART` is its class, and a row in this table. It is imported by runs that need it: each
millisecond before the start delays every training. What has nothing to do before the start is imported after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import NamedTuple

from reprokit.model.plan import RECORD, REPLAY, RUN, Plan
from reprokit.run.part import RunPart


class Row(NamedTuple):
    """A part: its module, the runs that need it, and whether it only begins once the command runs."""

    name: str
    is_needed: Callable[[Plan], bool]
    is_late: bool = False


def _is_shimmed(plan: Plan) -> bool:
    return plan.mode != RUN


def _is_kept(plan: Plan) -> bool:
    return plan.mode != RUN or plan.observed


def _always(_plan: Plan) -> bool:
    return True


TABLE: tuple[Row, ...] = (
    Row("plain", lambda plan: plan.mode == RUN),
    Row("proof", lambda plan: plan.prove),
    Row("profiling", lambda plan: plan.profiling is not None),
    Row("shim", _is_shimmed),
    Row("found_files", lambda plan: plan.kind == RECORD),
    Row("question", lambda plan: plan.question is not None),
    Row("continuation", lambda plan: plan.continues is not None),
    Row("console", lambda plan: plan.console and plan.mode != RUN),
    Row("seeds", lambda plan: plan.mode == REPLAY),
    Row("metrics", _is_kept, is_late=True),
    Row("trail", _is_kept, is_late=True),
    Row("samples", _is_kept, is_late=True),
    Row("keyframes", lambda plan: plan.question is not None and plan.question.keyframes is not None, is_late=True),
    Row("evaluation", _is_kept, is_late=True),
    Row("agent", _always, is_late=True),
    Row("orders", lambda plan: plan.mode == REPLAY, is_late=True),
    Row("shared_memory", _is_shimmed, is_late=True),
    Row("patches", lambda plan: bool(plan.patches)),
    Row("environment", _is_kept),
    Row("outputs", lambda plan: plan.mode != RUN or plan.observed or plan.untouched, is_late=True),
    Row("signals", _is_shimmed, is_late=True),
    Row("modules", _is_shimmed, is_late=True),
    Row("snapshots", lambda plan: plan.captures),
    Row("noted", lambda plan: plan.capture is not None and not plan.captures, is_late=True),
    Row("rules", lambda plan: plan.rules is not None, is_late=True),
    Row("progress", lambda plan: plan.tells_progress, is_late=True),
    Row("time_limit", lambda plan: plan.timeout is not None, is_late=True),
    Row("upload", lambda plan: bool(plan.push), is_late=True),
)


class Parts:
    """The parts of one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows = [row for row in TABLE if row.is_needed(plan)]
        self._parts = {row.name: self._make(row) for row in self._rows if not row.is_late}

    def _make(self, row: Row) -> RunPart:
        part: type[RunPart] = import_module(f"{__name__}.{row.name}").PART
        return part(self._plan)

    def late(self) -> Iterator[RunPart]:
        """Make the parts that only begin once the command runs."""
        for row in self._rows:
            if row.is_late:
                self._parts[row.name] = self._make(row)
                yield self._parts[row.name]

    def __iter__(self) -> Iterator[RunPart]:
        return (self._parts[row.name] for row in self._rows if row.name in self._parts)
