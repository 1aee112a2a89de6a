"""Logs each call that JAX executes, with digests of inputs and outputs: jitted functions and single operators."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from operator import attrgetter
from weakref import WeakKeyDictionary

from ...core.patching import replace
from ...core.user_frames import where
from ..array_digests import ArrayDigests, copied_parts, description, signature
from ..log import NO_OUTPUTS, NOT_LOGGED, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


# Seen in 0.10.2: the class that executes compiled functions, and the function by which C++ takes over later calls.
_EXECUTING, _EXECUTABLE = "jax._src.interpreters.pxla", "ExecuteReplicated"
_CALLING, _SHORT_CUT = "jax._src.pjit", "_get_fastpath_data"
PRIVATE_NAMES = (f"{_EXECUTING}.{_EXECUTABLE}.__call__", f"{_CALLING}.{_SHORT_CUT}")
# The options by which compiled programs are printed: in 0.10.2, and in 0.9.2.
_LIBRARY, _PRINTED = "jax._src.lib", ("hlo.HloPrintOptions", "xla_client._xla.HloPrintOptions")
EITHER = tuple(f"{_LIBRARY}.{name}" for name in _PRINTED)


def source(log: CallLog) -> JaxCalls | None:
    """Return the source of JAX's calls; None and a warning if this release is unknown."""
    executing, calling = sys.modules.get(_EXECUTING), sys.modules.get(_CALLING)
    if not hasattr(executing, _EXECUTABLE) or not hasattr(calling, _SHORT_CUT):
        log.agent.warn("functions of this JAX cannot be logged: 0.10 is known", NOT_LOGGED)
        return None
    return JaxCalls(log)


class JaxCalls:
    """Logs the calls of JAX in this process."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._digests = ArrayDigests(log.agent)
        self._thread = threading.local()  # .busy: the agent itself is executing
        self._is_watching = False
        self._programs: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    def begin(self) -> None:
        """Patch the execution of compiled functions, and disable the path by which later calls avoid it."""
        replace(sys.modules[_CALLING], _SHORT_CUT, self._make_short_cut)
        replace(getattr(sys.modules[_EXECUTING], _EXECUTABLE), "__call__", self._make_call)

    def watch(self, is_on: bool) -> None:
        """Start or stop logging."""
        self._is_watching = is_on

    def _make_short_cut(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def short_cut(*arguments: Any, **keywords: Any) -> Any:
            return None

        return short_cut

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(executable: Any, *arguments: Any) -> Any:
            is_watched = self._is_watching and not getattr(self._thread, "busy", False)
            record = self._run_unlogged(self._before, executable, arguments) if is_watched else None
            result = original(executable, *arguments)
            if record is not None:
                self._run_unlogged(self._after, record, result)
            return result

        return call

    def _run_unlogged(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function of the agent, whose own calls are not logged."""
        self._thread.busy = True
        try:
            return self._log.agent.attempt(function, *arguments)
        finally:
            self._thread.busy = False

    def _before(self, executable: Any, arguments: tuple[Any, ...]) -> Any:
        arrays, others = _read(arguments)
        frames, name, program = where(4), str(executable.name), self._program_of(executable)

        def describe() -> Any:
            version, device = str(sys.modules["jax"].__version__), str(executable.backend.platform)
            return description("jax", version, name, device, arrays, program=program)

        call_site = {"phase": "forward", "node": "", "where": frames}
        place = self._log.number("place", tuple(frames), lambda: call_site)
        operator = self._log.number("operator", (name, program, signature(arrays)), describe)
        saved_inputs = None
        if self._log.saves(name, frames) and self._log.reserve(sum(array.nbytes for array in arrays)):
            saved_inputs = copied_parts("inputs", arrays)
        # References are read and written beside the arguments, and callbacks may have any effect.
        has_hidden_inputs = bool(others) or executable.mut is not None or executable.has_host_callbacks
        return operator, place, self._digests.of(arrays), has_hidden_inputs, saved_inputs

    def _program_of(self, executable: Any) -> str:
        """Return a digest of what a function was compiled to, if this release prints it.

        Source lines are left out: those of a program from a compilation cache are numbered otherwise.
        """
        program = self._programs.get(executable)
        make_options = _print_options() if program is None else None
        if make_options is not None:
            options = make_options()
            options.print_metadata = False
            modules = executable.xla_executable.hlo_modules()
            texts = [module.to_string(options) for module in modules]
            program = self._programs[executable] = f"{self._digests.of((), texts):016x}"
        return program or ""

    def _after(self, record: Any, result: Any) -> None:
        operator, place, inputs, has_hidden_inputs, saved_inputs = record
        arrays, others = _read(result)
        outputs = self._digests.of(arrays)
        if saved_inputs is not None:
            self._log.save(saved_inputs, copied_parts("outputs", arrays))
        flags = (0 if arrays else NO_OUTPUTS) | (UNREAD if has_hidden_inputs or others else 0)
        # Where hidden inputs exist, outputs that differ must not appear to follow from equal inputs.
        self._log.put(
            operator, place, flags, self._digests.combine(inputs, outputs) if has_hidden_inputs else inputs, outputs
        )


def _print_options() -> Any:
    """Return the class of the options by which this release prints programs; None if it is not known."""
    for names in _PRINTED:
        with suppress(AttributeError):
            return attrgetter(names)(sys.modules[_LIBRARY])
    return None


def _read(values: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return the arrays of the values on this process's devices, and the values that cannot be read."""
    numpy, arrays, others = sys.modules["numpy"], [], []
    for value in [getattr(value, "_base_array", value) for value in values]:  # typed keys of random generators
        if hasattr(value, "addressable_shards"):
            arrays += [numpy.ascontiguousarray(shard.data) for shard in value.addressable_shards]
        elif isinstance(value, (bool, int, float, complex)) or hasattr(value, "__array_interface__"):
            arrays.append(numpy.ascontiguousarray(value))
        else:
            others.append(value)
    return arrays, others
