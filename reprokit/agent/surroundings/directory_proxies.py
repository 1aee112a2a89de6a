"""Replaces os.listdir and os.scandir by proxies that behave alike and record the listed names.

The interpreter's own imports do not use these functions. Listings by C and C++ code are not recorded.
"""

from __future__ import annotations

import os
import sys

from . import import_listing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..core.agent import Agent
    from .directory_order import DirectoryListings

# These search every directory of sys.path for packages, but do not depend on the order of names.
_FINDERS = ("importlib", "importlib_metadata", "pkg_resources", "pkgutil", "setuptools")


class ListingRecorder:
    """Gives access to the DirectoryListings of this process, imported with the first listing."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._listings: DirectoryListings | None = None

    def directory_of(self, path: Any, caller: FrameType) -> tuple[str, DirectoryListings] | None:
        """Return the name of a directory, and where to record its listing; None if it is ignored."""
        if str(caller.f_globals.get("__name__")).partition(".")[0] in _FINDERS:
            return None
        if self._listings is None:
            from .directory_order import DirectoryListings

            self._listings = DirectoryListings(self._agent)
        name = self._listings.name(path)
        return None if name is None else (name, self._listings)

    def attempt(self, *call: Any) -> Any:
        return self._agent.attempt(*call)

    def forget(self) -> None:
        """In a forked child: start afresh."""
        self._listings = None


class OsFunctionProxy:
    """Proxy of a built-in function; not a Python function, as that would become a method as a class attribute."""

    def __init__(self, original: Any, recorder: Any) -> None:
        self._original, self._recorder = original, recorder
        self.__wrapped__ = original
        self.__module__, self.__doc__ = "os", original.__doc__
        self.__name__ = self.__qualname__ = original.__name__

    def __repr__(self) -> str:
        return repr(self._original)

    def __reduce__(self) -> str:
        return str(self.__name__)


class ListdirProxy(OsFunctionProxy):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        path = arguments[0] if arguments else keywords.get("path")
        if type(path) is str and sys._getframe(1).f_globals.get("__name__") in import_listing.FINDERS:
            return import_listing.package_names(path)
        names = self._original(*arguments, **keywords)
        self._recorder.attempt(self._note, path, sys._getframe(1), names)
        return names

    def _note(self, path: Any, caller: FrameType, names: list[Any]) -> None:
        where = self._recorder.directory_of(path, caller)
        if where is not None:
            where[1].add(where[0], names)


class ScandirProxy(OsFunctionProxy):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        entries = self._original(*arguments, **keywords)
        path = arguments[0] if arguments else keywords.get("path")
        where = self._recorder.attempt(self._recorder.directory_of, path, sys._getframe(1))
        return entries if where is None else where[1].wrap_scandir(where[0], entries)


def start(agent: Agent) -> None:
    """Begin to record the listings of this process."""
    recorder = ListingRecorder(agent)
    for name, proxy_class in (("listdir", ListdirProxy), ("scandir", ScandirProxy)):
        original = getattr(os, name)
        proxy = proxy_class(original, recorder)
        if original in os.supports_fd:
            os.supports_fd.add(proxy)
        setattr(os, name, proxy)
    os.register_at_fork(after_in_child=recorder.forget)
