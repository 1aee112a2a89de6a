"""Ctrl-C and its kin while several runs are made: the run that goes on gets it first, then the making ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
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
    """While it is entered, a signal is handed to the run that goes on, or raises Interrupted where none does.

    One that is made to wait raises only within `raising`; elsewhere a signal is noted in `asked`. It raises once: who
    asks again while everything is brought to its end asks for nothing new.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.asked = 0  # the first signal's number
        self._child = 0
        self._raises = not waits
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
    def raising(self) -> Iterator[None]:
        """Raise Interrupted meanwhile; at once where a signal has come already."""
        try:
            self._raises = True
            self._raise_if_asked()
            yield
        finally:
            self._raises = False

    @contextmanager
    def handing_to(self, start: Callable[[], int]) -> Iterator[int]:
        """Start a process, and hand signals to it meanwhile; raises at its end where there were any."""
        self._raise_if_asked()
        before, self._raises = self._raises, False  # no signal comes between the start and its process id
        try:
            self._child = start()
            if self.asked:
                self._hand_on(self.asked)
            yield self._child
        finally:
            self._child, self._raises = 0, before
        self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self.asked:
            raise Interrupted(self.asked)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        is_first, self.asked = not self.asked, self.asked or number
        if self._child:
            self._hand_on(number)
        elif self._raises and is_first:
            raise Interrupted(number)

    def _hand_on(self, number: int) -> None:
        with suppress(OSError):  # the launcher tells the terminal's signals, which both got, from mine
            os.kill(self._child, number)
