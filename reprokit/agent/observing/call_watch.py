"""Tells of calls of a function of a library, which stays what it is."""

from __future__ import annotations

import sys

from ..core.patching import replace
from ..core.user_frames import is_own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from . import Observer

_MARK = "_reprokit_watched"  # another than patching's, as adapters may have replaced the function already


def watch(observer: Observer, owner: Any, name: str, note: Callable[[tuple[Any, ...], dict[str, Any]], object]) -> None:
    """Have note(arguments, keywords) called before each call, as long as the observer collects."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if observer.collecting:
                caller = sys._getframe(1)
                if caller.f_code is getattr(vars(owner).get(name), "__code__", None) and caller.f_back is not None:
                    caller = caller.f_back  # a hook that was put around this one since: it passes the script's call on
                if not is_own(caller.f_code.co_filename):  # what we do is none of the script's
                    observer.agent.attempt(note, arguments, keywords)
            return original(*arguments, **keywords)

        return watched

    replace(owner, name, make, _MARK)


def argument(arguments: tuple[Any, ...], keywords: dict[str, Any], position: int, name: str) -> Any:
    """One argument of a call; None where it was left out."""
    return arguments[position] if len(arguments) > position else keywords.get(name)
