"""Says in words why a step was captured."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_WORDS = 300


def in_words(trigger: Mapping[str, Any]) -> str:
    """The trigger of a snapshot's header in one phrase."""
    kind, what, name = (_text(trigger, key) for key in ("kind", "what", "name"))
    if kind == "gradient":
        words = f"gradient of {name or 'a parameter'} is not finite{_counted(trigger)}"
    elif kind == "parameter":
        words = f"{name or 'a parameter'} is not finite after the update{_counted(trigger)}{_since(trigger)}"
    elif kind == "activation":
        words = f"output of {name or 'a module'} is not finite{_counted(trigger)}"
    elif kind == "loss":
        words = f"the loss is {what or 'not finite'}"
    else:
        words = what or kind or "nobody knows why"
    return words[:MAX_WORDS]


def _since(trigger: Mapping[str, Any]) -> str:
    updates = trigger.get("updates")
    is_told = isinstance(updates, int) and not isinstance(updates, bool)
    return f", or after one of the {updates:,} updates since this state" if is_told else ""


def _text(trigger: Mapping[str, Any], key: str) -> str:
    value = trigger.get(key)
    return value[:MAX_WORDS] if isinstance(value, str) else ""


def _counted(trigger: Mapping[str, Any]) -> str:
    count, whole = trigger.get("count"), trigger.get("of")
    if isinstance(count, int) and isinstance(whole, int):
        return f" ({count:,} of {whole:,} elements)"
    return ""
