"""Keeps imports and searches for packages from allocating memory for names of other files in a directory.

A script's directory is listed at its first import, and by importlib.metadata, which PyTorch uses. The names take
memory: with one more file, as a recording leaves it there, all later objects have other addresses, and sets of them
another order.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

_INSTALLED = ("/site-packages", "/dist-packages")
_LIBRARY = os.path.dirname(os.__file__)
_PACKAGES = (".dist-info", ".egg-info", ".egg", ".egg-link")
_PATTERNS = (b"/*.[dD][iI][sS][tT]-[iI][nN][fF][oO]", b"/*.[eE][gG][gG]*")  # match all of _PACKAGES, and perhaps more
_MAGIC = frozenset("*?[\\")
_SIZE_OF_GLOB, _NO_MATCH = 256, 3  # more than the bytes of glob_t; GLOB_NOMATCH
_scandir = os.scandir  # which directory_proxies replaces
FINDERS = ("importlib.metadata", "importlib_metadata", "pkg_resources")  # modules that need names of packages only


class DirectoryNames:
    """Replaces the set of names of a directory: looks up each name when it is asked for."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __contains__(self, name: str) -> bool:
        try:
            return os.access(f"{self._directory}/{name}", os.F_OK)
        except ValueError:  # not a possible file name
            return False


def package_names(directory: str) -> list[str]:
    """Return the names of packages' metadata in a directory, with one name at a time in memory."""
    if _MAGIC.isdisjoint(directory) and os.path.isdir(directory) and _has_no_package(directory):
        return []
    with _scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name.lower().endswith(_PACKAGES)]


def _has_no_package(directory: str) -> bool:
    """Return whether no name looks like a package's metadata. libc reads the names, as Python would allocate memory.

    Even memory that is freed immediately matters: it can fill a pool of the allocator, which then uses other pools.
    """
    import ctypes

    glob, free, room = ctypes.CDLL(None).glob, ctypes.CDLL(None).globfree, ctypes.create_string_buffer(_SIZE_OF_GLOB)
    start = os.fsencode(directory)
    for pattern in _PATTERNS:
        result = glob(start + pattern, 0, None, room)
        free(room)
        if result != _NO_MATCH:
            return False
    return True


def start(_agent: Agent) -> None:
    """Patch the interpreter's own imports."""
    watch(sys.modules["_frozen_importlib_external"].FileFinder)


def watch(finder: Any) -> None:
    """Patch FileFinder to look up names one by one, except in directories of installed packages."""
    list_names = finder._fill_cache

    def _fill_cache(self: Any) -> None:
        directory = self.path or os.getcwd()
        if directory.startswith(_LIBRARY) or any(part in directory for part in _INSTALLED):
            list_names(self)
        else:
            self._path_cache = DirectoryNames(directory)

    finder._fill_cache = _fill_cache
