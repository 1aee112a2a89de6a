"""Names memory that processes share without a lock: what they see there depends on who comes first.

Only what a line of the script makes, and only once a process starts that runs the script's code: neither the memory of
libraries nor what workers of loaders are handed.
"""

from __future__ import annotations

import sys

from ..core.patching import Function, replace
from ..core.user_frames import is_users
from .tracks import caller_outside, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any

    from ..agent import Agent

_MARK = "_reprokit_shares"  # another than patching's, as the pools' orders wrap the start of processes too
_MAKERS = ("RawArray", "RawValue", "Array", "Value")  # of a context; the latter two with lock=False
_LOADERS = ("torch.utils.data",)  # whose workers share what they are given


class SharedMemory:
    """Notes which memory the script makes to share, and names it when somebody comes to share it."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._made: dict[str, bool] = {}  # what and where: whether no lock helps, as libraries take none
        self._has_locks = False

    def watch(self, module: Any) -> None:
        """Watch one of multiprocessing's modules."""
        if module.__name__ == "multiprocessing.shared_memory":
            replace(module.SharedMemory, "__init__", self._make_noting("SharedMemory"), _MARK)
        elif module.__name__ == "multiprocessing.process":
            replace(module.BaseProcess, "start", self._make_start, _MARK)
        elif module.__name__ == "multiprocessing.synchronize":
            replace(module.SemLock, "__init__", self._make_lock, _MARK)
        elif module.__name__ == "multiprocessing.context":
            for name in _MAKERS:
                replace(module.BaseContext, name, self._make_noting(name), _MARK)

    def watch_torch(self, torch: Any) -> None:
        """Watch what puts PyTorch's tensors into such memory."""
        for kind, method in (torch.Tensor, "share_memory_"), (torch.nn.Module, "share_memory"):
            replace(kind, method, self._make_noting(method, lockless=True), _MARK)

    def _make_noting(self, name: str, lockless: bool = False) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def share(*arguments: Any, **keywords: Any) -> Any:
                has_lock = name in ("Array", "Value") and keywords.get("lock", True) is not False
                if not has_lock:
                    self._agent.attempt(self._note, name, sys._getframe(1), lockless)
                return original(*arguments, **keywords)

            return share

        return make

    def _note(self, name: str, caller: FrameType, lockless: bool) -> None:
        if is_users(caller.f_code.co_filename):
            self._made.setdefault(f"{name} at {place(caller)}", lockless)

    def _make_lock(self, original: Function) -> Function:
        def initialize(lock: Any, *arguments: Any, **keywords: Any) -> None:
            original(lock, *arguments, **keywords)
            maker = caller_outside(("multiprocessing.context", "multiprocessing.synchronize"))
            self._has_locks |= maker is not None and is_users(maker.f_code.co_filename)

        return initialize

    def _make_start(self, original: Function) -> Function:
        def start(process: Any) -> Any:
            result = original(process)
            if self._made:
                self._agent.attempt(self._name, getattr(process, "_target", None))
            return result

        return start

    def _name(self, target: Any) -> None:
        if str(getattr(target, "__module__", "")).startswith(_LOADERS):
            return
        for what, lockless in self._made.items():
            if lockless or not self._has_locks:
                self._agent.journal.write("shared", {"what": what})
        self._made.clear()
