"""Lists the signals by which processes of a run ended each other, and the processes that signals ended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from reprokit.model.run import ProcessKilled, SignalSent
from reprokit.run.part import Closing, RunPart
from reprokit.run_files import rundir

MAX_READ = 1 << 20  # bytes of a list of signals
MAX_SIGNALS = 10_000
SIGNAL = re.compile(rb"([1-9]|[1-5]\d|6[0-4]) (-?[1-9]\d{0,9})")


class SignalsPart(RunPart):
    """The signals of a run, which the shim has listed."""

    def finish(self, closing: Closing) -> None:
        run, ended = closing.run, closing.ended
        sent = _first(_listed(closing.path / rundir.SIGNALS))
        run.signals = [SignalSent(number=number, target=abs(target), group=target < 0) for target, number in sent]
        killed = _listed(closing.path / rundir.KILLED)
        if ended.signal_number is not None and ended.pid:
            killed.add((ended.pid, ended.signal_number))
        positive = _first(pair for pair in killed if pair[0] > 0)
        run.killed = [ProcessKilled(number=number, process=process) for process, number in positive]


def _first(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(pairs)[:MAX_SIGNALS]


def _listed(path: Path) -> set[tuple[int, int]]:
    """Return pairs of a process and a signal."""
    lines = set(rundir.beginning(path, MAX_READ).split(b"\n")[:-1])
    return {(int(match[2]), int(match[1])) for line in lines if (match := SIGNAL.fullmatch(line))}


PART = SignalsPart
