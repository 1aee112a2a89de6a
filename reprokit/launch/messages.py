"""The launcher's few lines on stderr; nothing ever goes to stdout, which is the training's."""

from __future__ import annotations

import sys
from contextlib import suppress

from reprokit.printable import printable

LONGEST = 4000


def say(text: str) -> None:
    """One line of reprokit's; a stderr that is closed or full is no reason to fail."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"reprokit: {printable(text, LONGEST)}\n")
        sys.stderr.flush()


def warn(text: str) -> None:
    """Something that the user should know and that does not stop the training."""
    say(f"warning: {text}")
