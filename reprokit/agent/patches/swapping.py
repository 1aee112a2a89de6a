"""Puts a function in the place of another, and that one back."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def swap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Put make(original) in the place of a function of a module or class; returns what takes it back."""
    original = getattr(owner, name)  # not vars(owner)[name]: modules of TensorFlow 1 are wrappers that hold nothing
    function = functools.wraps(original)(make(original))
    setattr(owner, name, function)

    def undo() -> None:
        if getattr(owner, name, None) is function:  # otherwise somebody else has wrapped it, and calls it
            setattr(owner, name, original)

    return undo


def all_of(undos: list[Callable[[], None]]) -> Callable[[], None]:
    """What takes back all of these, the last one first."""

    def undo() -> None:
        for one in reversed(undos):
            one()

    return undo
