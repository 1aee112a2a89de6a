"""Ctrl-C and its kin while several runs are made: the run that goes on gets it first, then the making ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Somebody asked for the end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """While it is entered, a signal is handed to the run that goes on, or raises Interrupted where none does."""

    def __init__(self) -> None:
        self._child = 0
        self._asked = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Put back what was done with these signals before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def handing_to(self, pid: int) -> Iterator[None]:
        """Hand signals to this process meanwhile; raises at its end where there were any."""
        self._child = pid
        try:
            yield
        finally:
            self._child = 0
        if self._asked:
            raise Interrupted(self._asked)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number
        if not self._child:
            raise Interrupted(number)
        with suppress(OSError):  # the launcher tells the terminal's signals, which both got, from mine
            os.kill(self._child, number)
