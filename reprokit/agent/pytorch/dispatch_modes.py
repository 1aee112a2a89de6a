"""Dispatch modes that see each operator of PyTorch: one on every thread that computes, put on and taken off.

They stand below all modes of the user's, and are put on and taken off only where there is none of them. Each call is
passed on as it is; while a mode is on, PyTorch itself takes in some places the way of out-of-place operators, as for
tensors of a subclass. Backward threads have it from the thread that began the backward pass.
"""

from __future__ import annotations

from _thread import _local

from ..core.patching import replace
from ..observing.torch_calls import passed_on
from ..observing.torch_places import Places
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    class ModeWatcher(Protocol):
        """Who is told of calls."""

        watching: bool

        def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Make a call; two frames above it is who made it."""


class DispatchModes:
    """The modes of this process's threads."""

    def __init__(self, torch: Any, watcher: ModeWatcher, make_places: Callable[[], Places] | None = None) -> None:
        self._torch, self._watcher = torch, watcher
        self._class = _make_class(watcher, torch, make_places or (lambda: Places(torch)))
        self._thread = _local()  # .mode: the one of this thread

    @property
    def mode(self) -> Any:
        """The mode of this thread, if it has one."""
        return getattr(self._thread, "mode", None)

    @property
    def can_compile(self) -> bool:
        """Whether this PyTorch compiles while a mode is on; versions before 2.10 do not."""
        return hasattr(self._class.__mro__[1], "ignore_compile_internals") or not hasattr(self._torch, "compile")

    def enter(self) -> None:
        """Put the mode of this thread on, unless a mode of the user's is."""
        if private_api.count_modes(self._torch)() == 0:
            mode = self.mode
            if mode is None:
                mode = self._thread.mode = self._class()
            mode.places.forget()
            private_api.push_mode(self._torch, mode)

    def leave(self) -> None:
        """Take the mode of this thread off, unless one of the user's is above it."""
        private_api.pop_mode(self._torch, self.mode)
        if self.mode is not None:
            self.mode.places.forget()

    def follow_threads(self) -> None:
        """Put a mode on each thread that begins from now on."""
        import threading

        replace(threading.Thread, "_bootstrap_inner", self._in_threads)

    def _in_threads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _bootstrap_inner(thread: Any) -> Any:
            if self._watcher.watching:
                self.enter()
            try:
                return original(thread)
            finally:
                self.leave()

        return _bootstrap_inner


def _make_class(watcher: ModeWatcher, torch: Any, make_places: Callable[[], Places]) -> Any:
    base: Any = private_api.mode_class(torch)
    own_classes, modes = private_api.own_classes(torch), private_api.count_modes(torch)

    class ReprokitMode(base):  # type: ignore[misc]
        """Notes calls, and passes them on as they are."""

        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()
            self.places = make_places()
            self.is_quiet = False

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # it would cost each call 60 us; our code is known to dynamo as not to be compiled

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # compiled code stays compiled

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_noted = watcher.watching and not self.is_quiet and not modes()  # below: those of who traces
            if types:
                own, is_traced = own_classes(types)
                if is_traced:
                    is_noted = False
                elif own:
                    return NotImplemented  # a subclass of tensors: what it is made of comes by later
            if is_noted:
                return watcher.call(self, function, args, kwargs or {})
            return passed_on(torch, function, args, kwargs or {})

    return ReprokitMode
