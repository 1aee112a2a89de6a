"""Handles Ctrl-C and similar signals between runs: the current run receives them first, then everything ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Raised when a signal asks to end; carries its number."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """A context in which signals are forwarded to the current run, or raise Interrupted if there is none.

    With `waits`, Interrupted is raised only within `raising`; elsewhere a signal is noted in `asked`. It is raised
    once: further signals while the runs end change nothing.
    """

    def __init__(self, *, waits: bool = False) -> None:
        self.asked = 0  # number of the first signal
        self._child = 0
        self._raises = not waits
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruption:
        for number in WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
                self._previous_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _where: TracebackType | None) -> None:
        self.restore()

    def restore(self) -> None:
        """Restore the previous handlers of these signals."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise Interrupted within this context; at once if a signal has arrived already."""
        try:
            self._raises = True
            self._raise_if_asked()
            yield
        finally:
            self._raises = False

    @contextmanager
    def handing_to(self, start: Callable[[], int]) -> Iterator[int]:
        """Start a process and forward signals to it; raise Interrupted at its end if there were any."""
        self._raise_if_asked()
        raises_before, self._raises = (
            self._raises,
            False,
        )  # must not raise between the start and the return of its process id
        try:
            self._child = start()
            if self.asked:
                self._forward(self.asked)
            yield self._child
        finally:
            self._child, self._raises = 0, raises_before
        self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self.asked:
            raise Interrupted(self.asked)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        is_first, self.asked = not self.asked, self.asked or number
        if self._child:
            self._forward(number)
        elif self._raises and is_first:
            raise Interrupted(number)

    def _forward(self, number: int) -> None:
        with suppress(OSError):  # the launcher tells signals of the terminal, which both receive, from forwarded ones
            os.kill(self._child, number)
