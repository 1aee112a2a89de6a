"""Logs each call of an operator within the steps of the question: of PyTorch, TensorFlow and JAX."""

from __future__ import annotations

from importlib import import_module

from .operator_log import CallLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..agent import Agent
    from ..events import EventListener, Events
    from .operator_log import CallSource

_SOURCES = {"jax": "jax_calls", "torch": "pytorch_calls", "tensorflow": "tensorflow_calls"}


def listener(agent: Agent, question: Mapping[str, Any], framework: str, _events: Events | None) -> EventListener | None:
    """Return what logs the calls of this framework."""
    if framework not in _SOURCES:
        return None
    log = CallLog(agent, question)
    source: CallSource | None = import_module(f"{__package__}.{_SOURCES[framework]}").source(log)
    if source is None:
        return None
    log.begin(source)
    return log
