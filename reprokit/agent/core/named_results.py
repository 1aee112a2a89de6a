"""Results of several parts, as functions of frameworks return them: under a name each."""

from __future__ import annotations

from .exact_values import describe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_SPREAD = 100  # elements of an array that are told one by one


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The arrays or numbers in dictionaries, lists and tuples; nothing for None."""
    if isinstance(value, dict):
        for key in value:
            yield from leaves(f"{name}/{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield from leaves(f"{name}/{number}", part)
    elif value is not None:
        yield name, value


def described(name: str, value: Any) -> dict[str, dict[str, object]]:
    """The VALUEs of a metric's result by name; those of small arrays one by one."""
    found: dict[str, dict[str, object]] = {}
    for part, leaf in leaves(name, value):
        count = leaf.numel() if hasattr(leaf, "numel") else getattr(leaf, "size", 1)
        if hasattr(leaf, "reshape") and 1 < count <= MAX_SPREAD:
            flat = leaf.reshape(-1)
            found.update({f"{part}/{number}": describe(flat[number]) for number in range(count)})
        else:
            found[part] = describe(leaf)
    return found
