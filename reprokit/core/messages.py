"""Prints the launcher's messages on stderr; stdout belongs to the training."""

from __future__ import annotations

import sys
from contextlib import suppress

from reprokit.core.printable import printable

LONGEST = 4000


def say(text: str) -> None:
    """Print one line; a closed or full stderr is ignored."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"reprokit: {printable(text, LONGEST)}\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Print a warning, which does not stop the training."""
    say(f"warning: {text}")
