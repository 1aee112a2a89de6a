"""Names for events by their thread, and whether a process is a pool's worker."""

from __future__ import annotations

import sys

WORKERS = frozenset(
    [
        ("multiprocessing.pool", "worker"),
        ("torch.multiprocessing.pool", "clean_worker"),
        ("concurrent.futures.process", "_process_worker"),
        ("joblib.externals.loky.process_executor", "_process_worker"),
        ("loky.process_executor", "_process_worker"),
    ]
)


def on_thread(name: str) -> str:
    """Return the name unchanged in the main thread, as name@thread in others."""
    threading = sys.modules.get("threading")
    if threading is None or threading.current_thread() is threading.main_thread():
        return name
    return f"{name}@{threading.current_thread().name}"


def takes_tasks() -> bool:
    """Return whether this process is a pool's worker: which tasks it gets, and whether it ends normally, is a race."""
    process = getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)
    target = getattr(process, "_target", None)
    return (getattr(target, "__module__", None), getattr(target, "__name__", None)) in WORKERS
