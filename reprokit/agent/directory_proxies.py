"""Puts objects that see the names pass by in the place of os.listdir and os.scandir, and look and act like them.

The interpreter's own imports do not come this way. What C and C++ code lists is not seen.
"""

from __future__ import annotations

import os
import sys

from . import import_listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from .agent import Agent
    from .directory_order import Listings

# They look through every directory of sys.path for packages, whose order they do not depend on.
_FINDERS = ("importlib", "importlib_metadata", "pkg_resources", "pkgutil", "setuptools")


class Notes:
    """Where the listings of this process are noted; what does that is loaded with the first of them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._listings: Listings | None = None

    def of(self, path: Any, caller: FrameType) -> tuple[str, Listings] | None:
        """Return the name of a directory and where to note its listing; None where it is of no interest."""
        if str(caller.f_globals.get("__name__")).partition(".")[0] in _FINDERS:
            return None
        if self._listings is None:
            from .directory_order import Listings

            self._listings = Listings(self._agent)
        name = self._listings.name(path)
        return None if name is None else (name, self._listings)

    def attempt(self, *call: Any) -> Any:
        return self._agent.attempt(*call)

    def forget(self) -> None:
        """In a forked child: begin anew."""
        self._listings = None


class _StandIn:
    """No Python function, as that would become a method where a class has it for an attribute."""

    def __init__(self, original: Any, notes: Notes) -> None:
        self._original, self._notes = original, notes
        self.__wrapped__ = original
        self.__module__, self.__doc__ = "os", original.__doc__
        self.__name__ = self.__qualname__ = original.__name__

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return str(self.__name__)


class _Listdir(_StandIn):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        path = arguments[0] if arguments else keywords.get("path")
        if type(path) is str and sys._getframe(1).f_globals.get("__name__") in import_listing.FINDERS:
            return import_listing.package_names(path)
        names = self._original(*arguments, **keywords)
        self._notes.attempt(self._note, path, sys._getframe(1), names)
        return names

    def _note(self, path: Any, caller: FrameType, names: list[Any]) -> None:
        where = self._notes.of(path, caller)
        if where is not None:
            where[1].add(where[0], names)


class _Scandir(_StandIn):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        entries = self._original(*arguments, **keywords)
        path = arguments[0] if arguments else keywords.get("path")
        where = self._notes.attempt(self._notes.of, path, sys._getframe(1))
        return entries if where is None else where[1].watched(where[0], entries)


def watch(agent: Agent) -> Notes:
    """Begin to see what this process lists."""
    notes = Notes(agent)
    for name, kind in (("listdir", _Listdir), ("scandir", _Scandir)):
        original = getattr(os, name)
        stand_in = kind(original, notes)
        if original in os.supports_fd:
            os.supports_fd.add(stand_in)
        setattr(os, name, stand_in)
    return notes
