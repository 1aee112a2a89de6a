"""Suppresses the traceback of the interrupt by which the launcher ends a run after it saw enough."""

from __future__ import annotations

import os
import sys

from .patching import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ENOUGH = "enough"  # the launcher's file, in the directory of the agents' files


def hide_interrupts(directory: str, is_child: Callable[[], bool]) -> None:
    """Print no traceback of an interrupt that the launcher announced by a file in this directory.

    Threads of a worker also raise, when the interrupted process does not fetch what it requested.
    """

    def is_announced(kind: Any) -> bool:
        expected = (KeyboardInterrupt, ConnectionError, EOFError) if is_child() else KeyboardInterrupt
        return issubclass(kind, expected) and os.path.exists(f"{directory}/{ENOUGH}")

    def make_excepthook(original: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: Any, *rest: Any) -> None:
            if not is_announced(kind):
                original(kind, *rest)

        return excepthook

    def make_unraisablehook(original: Callable[..., Any]) -> Callable[..., Any]:
        def unraisablehook(unraisable: Any) -> None:
            if not is_announced(unraisable.exc_type):
                original(unraisable)

        return unraisablehook

    replace(sys, "excepthook", make_excepthook)
    replace(sys, "unraisablehook", make_unraisablehook)  # of exit handlers, since Python 3.8
