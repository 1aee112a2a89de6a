"""Names for what happens in the threads of a process."""

from __future__ import annotations

import sys


def on_thread(name: str) -> str:
    """The name in the main thread, name@thread in others."""
    threading = sys.modules.get("threading")
    if threading is None or threading.current_thread() is threading.main_thread():
        return name
    return f"{name}@{threading.current_thread().name}"
