"""Names memory that processes share without a lock: what they read there depends on their timing.

Only memory that a line of the script creates, and only once a process starts that runs the script's code; not memory
of libraries, nor what data loaders share with their workers.
"""

from __future__ import annotations

import sys

from ..core.patching import Function, replace
from ..core.user_frames import is_users
from .callers import caller_outside, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent

_MARK = "_reprokit_shares"  # not the default mark, as process pools' orders patch the start of processes too
_MAKERS = ("RawArray", "RawValue", "Array", "Value")  # methods of a context; the last two with lock=False
_LOADERS = ("torch.utils.data",)  # start workers that share the memory they are given


class SharedMemory:
    """Records what memory the script creates to share, and reports it once a process starts that may use it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._segments: dict[str, bool] = {}  # by name and line: whether it has no lock even if the script has one
        self._has_locks = False

    def watch(self, module: Any) -> None:
        """Patch one of multiprocessing's modules."""
        if module.__name__ == "multiprocessing.shared_memory":
            replace(module.SharedMemory, "__init__", self._make_recording("SharedMemory"), _MARK)
        elif module.__name__ == "multiprocessing.process":
            replace(module.BaseProcess, "start", self._make_start, _MARK)
        elif module.__name__ == "multiprocessing.synchronize":
            replace(module.SemLock, "__init__", self._make_lock, _MARK)
        elif module.__name__ == "multiprocessing.context":
            for name in _MAKERS:
                replace(module.BaseContext, name, self._make_recording(name), _MARK)

    def watch_torch(self, torch: Any) -> None:
        """Patch the methods that move PyTorch's tensors into shared memory."""
        for kind, method in (torch.Tensor, "share_memory_"), (torch.nn.Module, "share_memory"):
            replace(kind, method, self._make_recording(method, lockless=True), _MARK)

    def _make_recording(self, name: str, lockless: bool = False) -> Callable[[Function], Function]:
        def wrap(original: Function) -> Function:
            def share(*arguments: Any, **keywords: Any) -> Any:
                has_lock = name in ("Array", "Value") and keywords.get("lock", True) is not False
                if not has_lock:
                    self._agent.attempt(self._record, name, sys._getframe(1), lockless)
                return original(*arguments, **keywords)

            return share

        return wrap

    def _record(self, name: str, caller: FrameType, lockless: bool) -> None:
        if is_users(caller.f_code.co_filename):
            self._segments.setdefault(f"{name} at {place(caller)}", lockless)

    def _make_lock(self, original: Function) -> Function:
        def initialize(lock: Any, *arguments: Any, **keywords: Any) -> None:
            original(lock, *arguments, **keywords)
            maker = caller_outside(("multiprocessing.context", "multiprocessing.synchronize"))
            self._has_locks |= maker is not None and is_users(maker.f_code.co_filename)

        return initialize

    def _make_start(self, original: Function) -> Function:
        def start(process: Any) -> Any:
            result = original(process)
            if self._segments:
                self._agent.attempt(self._report, getattr(process, "_target", None))
            return result

        return start

    def _report(self, target: Any) -> None:
        if str(getattr(target, "__module__", "")).startswith(_LOADERS):
            return
        for origin, lockless in self._segments.items():
            if lockless or not self._has_locks:
                self._agent.journal.write("shared", {"what": origin})
        self._segments.clear()
