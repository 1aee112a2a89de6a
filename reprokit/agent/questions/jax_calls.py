"""Sees each call that JAX executes, with digests of its inputs and outputs: jitted functions, and single operators."""

from __future__ import annotations

import sys

from ..core.patching import replace
from ..core.user_frames import where
from .array_digests import ArrayCalls, described, parts, signature
from .operator_log import NO_OUTPUTS, UNREAD, CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


# Seen in 0.10.2: what executes a compiled function, and what hands its later calls to C++, past that.
_EXECUTING, _EXECUTABLE = "jax._src.interpreters.pxla", "ExecuteReplicated"
_CALLING, _SHORT_CUT = "jax._src.pjit", "_get_fastpath_data"
PRIVATE_NAMES = (f"{_EXECUTING}.{_EXECUTABLE}.__call__", f"{_CALLING}.{_SHORT_CUT}")


def source(log: CallLog) -> JaxCalls | None:
    """Return what sees the calls."""
    executing, calling = sys.modules.get(_EXECUTING), sys.modules.get(_CALLING)
    if not hasattr(executing, _EXECUTABLE) or not hasattr(calling, _SHORT_CUT):
        log.agent.warn("functions of this JAX cannot be logged: 0.10 is known")
        return None
    return JaxCalls(log)


class JaxCalls(ArrayCalls):
    """The calls of this process."""

    def begin(self) -> None:
        """See what is executed."""
        replace(sys.modules[_CALLING], _SHORT_CUT, self._make_short_cut)
        replace(getattr(sys.modules[_EXECUTING], _EXECUTABLE), "__call__", self._make_call)

    def _make_short_cut(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def short_cut(*arguments: Any, **keywords: Any) -> Any:
            return None

        return short_cut

    def _make_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(executable: Any, *arguments: Any) -> Any:
            if not self.watching:
                return original(executable, *arguments)
            return self._logged(lambda: original(executable, *arguments), executable, arguments)

        return call

    def _before(self, executable: Any, arguments: tuple[Any, ...]) -> Any:
        arrays, others = _read(arguments)
        frames, name = where(5), str(executable.name)

        def describe() -> Any:
            return described("jax", str(sys.modules["jax"].__version__), name, str(executable.backend.platform), arrays)

        named = {"phase": "forward", "node": "", "where": frames}
        place = self._log.number("place", tuple(frames), lambda: named)
        operator = self._log.number("operator", (name, signature(arrays)), describe)
        keeping = None
        if self._log.keeps(name, frames) and self._log.has_room(sum(array.nbytes for array in arrays)):
            keeping = parts("inputs", arrays)
        # References are read and written beside the arguments, callbacks may do whatever they like.
        hides = bool(others) or executable.mut is not None or executable.has_host_callbacks
        return operator, place, self._digests.of(arrays), hides, keeping

    def _after(self, seen: Any, result: Any) -> None:
        operator, place, inputs, hides, keeping = seen
        arrays, others = _read(result)
        outputs = self._digests.of(arrays)
        if keeping is not None:
            self._log.keep(keeping, parts("outputs", arrays))
        flags = (0 if arrays else NO_OUTPUTS) | (UNREAD if hides or others else 0)
        # Of what depends on something unseen it is not said that its inputs are equal where its outputs differ.
        self._log.put(operator, place, flags, self._digests.joined(inputs, outputs) if hides else inputs, outputs)


def _read(values: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Return arrays with the values on this process's devices, and what cannot be read."""
    numpy, found, others = sys.modules["numpy"], [], []
    for value in [getattr(value, "_base_array", value) for value in values]:  # of keys of random generators
        if hasattr(value, "addressable_shards"):
            found += [numpy.ascontiguousarray(shard.data) for shard in value.addressable_shards]
        elif isinstance(value, (bool, int, float, complex)) or hasattr(value, "__array_interface__"):
            found.append(numpy.ascontiguousarray(value))
        else:
            others.append(value)
    return found, others
