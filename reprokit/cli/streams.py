"""What becomes of a command whose output nobody reads to its end, as before ``head -1``."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


def is_unread() -> bool:
    """Return whether stdout is a pipe whose reader has gone."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


@contextmanager
def ending_with(status: int) -> Iterator[None]:
    """End the command with the status of its verdict, which is printed inside, also if nobody reads that."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing to complain of at exit
    click.get_current_context().exit(status)
