"""Puts a function of ours around one of a framework, also where an adapter of the agent has done so already."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MARK = "_reprokit_captures"


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put make(original) in the place of a function that a module or class defines itself; once."""
    original = vars(owner).get(name)
    if not callable(original) or hasattr(original, MARK):
        return
    wrapper = functools.wraps(original)(make(original))
    setattr(wrapper, MARK, True)
    setattr(owner, name, wrapper)
