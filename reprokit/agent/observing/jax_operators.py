"""Observes JAX: which functions XLA compiled, and where the user's code called them first."""

from __future__ import annotations

from . import where

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from . import Observer

_COMPILED = "/jax/core/compile/backend_compile_duration"
MAX_FUNCTIONS = 2000


def observe(module: ModuleType, observer: Observer) -> None:
    """Begin to observe JAX, which has just been imported, by what it tells of its compilations."""
    from importlib import import_module

    lines: dict[object, dict[str, Any]] = {}
    version = str(getattr(module, "__version__", ""))

    def listen(event: str, _seconds: float, **details: Any) -> None:
        if event == _COMPILED and observer.collecting:
            observer.agent.attempt(note, str(details.get("fun_name", "")))

    def note(function: str) -> None:
        places = where(4)
        key = (function, places[0] if places else None)
        line = lines.get(key)
        if line is None and len(lines) < MAX_FUNCTIONS:
            line = lines[key] = {"framework": "jax", "version": version, "name": "xla", "function": function}
            line.update(where=places, operators=[], calls=0)
            observer.write("compiled", key, line)
        if line is not None:
            line["calls"] += 1  # compilations: executions are not seen

    import_module("jax.monitoring").register_event_duration_secs_listener(listen)
    observer.in_child(lines.clear)
