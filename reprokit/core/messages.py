"""Prints the launcher's messages on stderr; stdout belongs to the training."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from reprokit.core.printable import printable

LONGEST = 4000


def is_watched() -> bool:
    """Return whether a person may see what is said: on a terminal, unless NO_COLOR asks for plain output."""
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return False


def say(text: str) -> None:
    """Print one line; a closed or full stderr is ignored."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"reprokit: {printable(text, LONGEST)}\n")
        sys.stderr.flush()


def warn(text: str, code: str) -> None:
    """Print a warning, which does not stop the training, and its code."""
    say(f"warning: {printable(text, LONGEST)} [{code}]")


def time_left(seconds: float) -> str:
    """Return a time that is left, such as "about 4 min left"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    return f"about {minutes} min left" if minutes < 90 else f"about {seconds / 3600:.1f} h left"


class TrainingCount:
    """Counts trainings that begin one after the other, of which each takes about as long as those before it."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic, *, may_be_fewer: bool = False) -> None:
        self._total, self._clock, self._most = total, clock, "at most " if may_be_fewer else ""
        self._begun, self._start = 0, 0.0

    def begin(self) -> str:
        """Count a training that begins; return which it is, and to a person the time that is left."""
        now = self._clock()
        self._start = self._start if self._begun else now
        done, self._begun = self._begun, self._begun + 1
        if self._begun > self._total:  # more than was foreseen, as something differs
            return f"training {self._begun}"
        words = f"training {self._begun} of {self._most}{self._total}"
        if not done or not is_watched():
            return words
        return f"{words}, {self._most}{time_left((now - self._start) / done * (self._total - done))}"

    def tell(self, say: Callable[[str], None]) -> None:
        """Count a training that begins, and say which it is if a person watches."""
        words = self.begin()
        if is_watched():
            say(words)
