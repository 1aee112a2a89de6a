"""Replaces a function by one of ours that looks like it."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "_reprokit_original"


def replace(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put make(original) in the place of a function of a module or class; once, and only where there is one."""
    original = vars(owner).get(name)
    if original is None or not callable(original) or hasattr(original, MARK):
        return
    wrapper = functools.wraps(original)(make(original))
    if not isinstance(owner, type):  # pickle finds functions by module and name
        wrapper.__module__, wrapper.__qualname__ = owner.__name__, name
    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)
