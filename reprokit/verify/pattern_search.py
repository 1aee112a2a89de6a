"""Searches lines by the user's regular expressions, in a process of their own that is ended when it takes too long."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

Span: TypeAlias = "tuple[int, int]"  # start and end in a line

SECONDS = 2  # of processor time for an expression, beside those for what it reads
CHARACTERS_A_SECOND = 1 << 20
PATIENCE = 10  # times the processor time that may pass on a machine with much else to do
SCRIPT = Path(__file__).with_name("pattern_process.py")


class SlowPattern(Exception):
    """Raised if an expression takes too long; it has its number, and the seconds that it was given."""

    def __init__(self, number: int, seconds: int) -> None:
        super().__init__(number, seconds)
        self.number, self.seconds = number, seconds


def search(expressions: Sequence[str], lines: Sequence[str]) -> list[list[list[Span]]]:
    """Return the spans that match, by expression and line; raises SlowPattern."""
    if not (expressions and lines):
        return [[[] for _ in lines] for _ in expressions]
    seconds = len(expressions) * SECONDS + len(expressions) * sum(map(len, lines)) // CHARACTERS_A_SECOND
    request = json.dumps({"seconds": seconds, "expressions": list(expressions), "lines": list(lines)})
    command = [sys.executable, "-I", "-S", str(SCRIPT)]
    try:
        done = subprocess.run(
            command, input=request.encode(), capture_output=True, timeout=PATIENCE * seconds, check=False
        )
        answers = done.stdout
    except subprocess.TimeoutExpired as expired:
        answers = expired.stdout or b""
    found = [[list(map(tuple, spans)) for spans in json.loads(line)] for line in answers.split(b"\n")[:-1]]
    if len(found) < len(expressions):
        raise SlowPattern(len(found), seconds)
    return found
