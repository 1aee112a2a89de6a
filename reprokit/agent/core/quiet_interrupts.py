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

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: Any, *rest: Any) -> None:
            expected = (KeyboardInterrupt, ConnectionError, EOFError) if is_child() else KeyboardInterrupt
            if not (issubclass(kind, expected) and os.path.exists(f"{directory}/{ENOUGH}")):
                original(kind, *rest)

        return excepthook

    replace(sys, "excepthook", make)
