"""The signals by which processes of a run ended each other, as the shim noted them."""

from __future__ import annotations

import re
from pathlib import Path

from reprokit import rundir
from reprokit.model.run import SignalSent

MAX_SIZE = 1 << 20  # bytes of the list
MAX_SIGNALS = 10_000
LINE = re.compile(rb"([1-9]|[1-5]\d|6[0-4]) (-?[1-9]\d{0,9})")


def sent(run: Path) -> list[SignalSent]:
    """Each signal and target once, in the order of the targets."""
    try:
        with open(run / rundir.SIGNALS, "rb", opener=rundir.open_regular) as file:
            lines = set(file.read(MAX_SIZE).split(b"\n")[:-1])
    except OSError:
        return []
    found = {(int(match[2]), int(match[1])) for line in lines if (match := LINE.fullmatch(line))}
    first = sorted(found)[:MAX_SIGNALS]
    return [SignalSent(number=number, target=abs(target), group=target < 0) for target, number in first]
