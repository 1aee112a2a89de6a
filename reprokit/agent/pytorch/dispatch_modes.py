"""Dispatch modes that see each operator of PyTorch: one on every thread that computes, entered and left.

They are below all modes of the user, and are entered and left only while the user has none. Each call is passed on
unchanged. While a mode is active, PyTorch itself uses out-of-place operators in some places, as for tensor subclasses.
Backward threads inherit the mode from the thread that began the backward pass.
"""

from __future__ import annotations

from _thread import _local

from ..core.patching import replace
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .places import Places

    class ModeWatcher(Protocol):
        """The listener of calls."""

        watching: bool

        def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Execute a call; its caller is two frames above."""


_NUMBER_FOR_TENSOR = "Expected a value of type 'Tensor' for argument"  # raised before the operator does anything


class DispatchModes:
    """The modes of the threads of this process."""

    def __init__(self, torch: Any, watcher: ModeWatcher, make_places: Callable[[], Places]) -> None:
        self._torch, self._watcher = torch, watcher
        self._class = _make_class(watcher, torch, make_places)
        self._thread = _local()  # .mode: the one of this thread

    @property
    def mode(self) -> Any:
        """The mode of the current thread, if it has one."""
        return getattr(self._thread, "mode", None)

    @property
    def can_compile(self) -> bool:
        """Whether torch.compile works while a mode is active (PyTorch 2.10 and later)."""
        return hasattr(self._class.__mro__[1], "ignore_compile_internals") or not hasattr(self._torch, "compile")

    def enter(self) -> bool:
        """Activate the mode of this thread, unless the user has an active mode; return whether it is active."""
        if private_api.count_modes(self._torch)() != 0:
            return False
        mode = self.mode
        if mode is None:
            mode = self._thread.mode = self._class()
        mode.places.forget()
        private_api.push_mode(self._torch, mode)
        return True

    def leave(self) -> None:
        """Deactivate the mode of this thread, unless a mode of the user is above it."""
        private_api.pop_mode(self._torch, self.mode)
        if self.mode is not None:
            self.mode.places.forget()

    def follow_threads(self) -> None:
        """Activate a mode on each thread that starts from now on, but not on those that pin a loader's batches.

        These get batches in the order in which the workers bring them.
        """
        import threading

        replace(threading.Thread, "_bootstrap_inner", self._in_threads)

    def _in_threads(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _bootstrap_inner(thread: Any) -> Any:
            if self._watcher.watching and not private_api.pins_batches(self._torch, thread):
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
        """Reports calls to the listener, and passes them on unchanged."""

        supports_higher_order_operators = True

        def __init__(self) -> None:
            super().__init__()
            self.places = make_places()
            self.is_quiet = False

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # skipping costs 60 us per call; dynamo already knows not to compile the agent's code

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # compiled code stays compiled

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_watched = watcher.watching and not self.is_quiet and not modes()  # modes below are those of tracers
            if types:
                own, is_traced = own_classes(types)
                if is_traced:
                    is_watched = False
                elif own:
                    return NotImplemented  # a tensor subclass: the operators on its components follow
            if is_watched:
                return watcher.call(self, function, args, kwargs or {})
            return passed_on(torch, function, args, kwargs or {})

    return ReprokitMode


def passed_on(torch: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Execute a call unchanged; if numbers, as TorchScript's constants, are rejected for tensors, convert them."""
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        if _NUMBER_FOR_TENSOR not in str(error):
            raise
    return function(*with_tensors(torch, function, args), **kwargs)


def with_tensors(torch: Any, function: Any, args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments with tensors, of matching dtypes, instead of numbers that stand for tensors."""
    converted = list(args)
    for number, (value, argument) in enumerate(zip(args, private_api.schema(function).arguments)):
        if isinstance(value, (bool, int, float, complex)) and str(argument.type) == "Tensor":
            dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}.get(type(value), torch.complex128)
            converted[number] = torch.tensor(value, dtype=dtype)
    return converted
