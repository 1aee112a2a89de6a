"""Names for events by their thread that repeat between runs, and whether a process is a pool's worker."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WORKERS = frozenset(
    [
        ("multiprocessing.pool", "worker"),
        ("torch.multiprocessing.pool", "clean_worker"),
        ("concurrent.futures.process", "_process_worker"),
        ("joblib.externals.loky.process_executor", "_process_worker"),
        ("loky.process_executor", "_process_worker"),
    ]
)
CLUSTER_WORKERS = frozenset([("distributed.process", "_run")])  # whose tasks a scheduler chooses
IDENTITY = "_reprokit_actor"  # attribute of a Thread: its name by the threads that created it, as m.1.2
MAX_KEPT = 1000  # names
# Python's own names count threads. In others, long numbers and hexadecimal ones are of processes, times and addresses.
_COUNTED = r"(?:Thread|Dummy|ThreadPoolExecutor|asyncio)[-_]\d+(?:_\d+)?(?: \(.*\))?"
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_HEXADECIMAL = r"0[xX][0-9a-fA-F]+|(?<![0-9A-Za-z])(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}(?![0-9A-Za-z])"
_NUMBER = r"\d+"
_LONG = 5  # digits

_kept: dict[str, tuple[str, bool]] = {}
_kept_by = 0  # process id


def on_thread(name: str) -> str:
    """Return the name unchanged in the main thread, as name@thread in others."""
    threading = sys.modules.get("threading")
    if threading is None or threading.current_thread() is threading.main_thread():
        return name
    return f"{name}@{label(threading.current_thread())}"


def label(thread: Any) -> str:
    """Return a thread's name without what another run's would have in its place; threads alike have their identity."""
    text, is_ambiguous = without_ids(thread.name)
    identity = getattr(thread, IDENTITY, "") if is_ambiguous else ""
    return f"{text} {identity}" if identity else text


def without_ids(name: str) -> tuple[str, bool]:
    """Return a name with * for process ids and other numbers that do not repeat, and whether it had such others."""
    global _kept_by
    if not any(character.isdigit() for character in name):
        return name, False
    if _kept_by != os.getpid():
        _kept.clear()
        _kept_by = os.getpid()
    if name not in _kept:
        if len(_kept) >= MAX_KEPT:
            _kept.clear()
        _kept[name] = _without_ids(name, str(_kept_by))
    return _kept[name]


def _without_ids(name: str, process: str) -> tuple[str, bool]:
    import re

    if re.fullmatch(_COUNTED, name, re.DOTALL):
        return name, False
    others = 0

    def shortened(match: re.Match[str]) -> str:
        nonlocal others
        if match[0] == process:
            return "*"
        if match[0].isdigit() and len(match[0]) < _LONG:
            return match[0]
        others += 1
        return "*"

    return re.sub(f"{_UUID}|{_HEXADECIMAL}|{_NUMBER}", shortened, name), others > 0


def takes_tasks() -> bool:
    """Return whether this process is a pool's worker: which tasks it gets, and whether it ends normally, is a race."""
    return target_of(getattr(sys.modules.get("multiprocessing.process"), "_current_process", None)) in (
        WORKERS | CLUSTER_WORKERS
    )


def target_of(process: Any) -> tuple[str | None, str | None]:
    """Return the module and the name of the function that a process of multiprocessing executes."""
    target = getattr(process, "_target", None)
    return getattr(target, "__module__", None), getattr(target, "__name__", None)
