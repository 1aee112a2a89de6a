"""Writes lines of reprokit's own to stderr, past the script's sys.stderr, as they are no output of the script."""

from __future__ import annotations

import os
import sys

from .signal_errors import pass_on

LONGEST = 4000


def say(text: str) -> None:
    """Write a line; ignore a stderr that is closed or full."""
    text = "".join([character if character.isprintable() else ascii(character)[1:-1] for character in text])
    line = f"reprokit: {text[:LONGEST]}\n"
    try:
        if not _written_directly(line):
            sys.stderr.write(line)
            sys.stderr.flush()
    except Exception as error:
        pass_on(error)


def _written_directly(line: str) -> bool:
    """Write a line past sys.stderr; return False if that has no descriptor."""
    try:
        sys.stderr.flush()
        descriptor = os.dup(sys.stderr.fileno())
    except Exception as error:
        pass_on(error)
        return False
    try:
        os.write(descriptor, line.encode(errors="backslashreplace"))
    finally:
        os.close(descriptor)
    return True
