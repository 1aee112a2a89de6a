"""Lets imports, and searches for packages, take no memory for the names of other files in a directory.

A script's directory is listed at its first import, and by importlib.metadata, which PyTorch asks. The names take
memory: with a file more, as the recording left it there, all objects that are made later have other addresses, and sets
of them another order.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INSTALLED = ("/site-packages", "/dist-packages")
_LIBRARY = os.path.dirname(os.__file__)
_PACKAGES = (".dist-info", ".egg-info", ".egg", ".egg-link")
_PATTERNS = (b"/*.[dD][iI][sS][tT]-[iI][nN][fF][oO]", b"/*.[eE][gG][gG]*")  # all of them, and perhaps more
_MAGIC = frozenset("*?[\\")
_SIZE_OF_GLOB, _NO_MATCH = 256, 3  # of glob_t, with room to spare; GLOB_NOMATCH
_scandir = os.scandir  # which directory_proxies replaces
FINDERS = ("importlib.metadata", "importlib_metadata", "pkg_resources")  # look at no other names


class DirectoryNames:
    """Stands in for the set of names of a directory: each is looked for as it is asked about."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __contains__(self, name: str) -> bool:
        try:
            return os.access(f"{self._directory}/{name}", os.F_OK)
        except ValueError:  # no name of a file
            return False


def package_names(directory: str) -> list[str]:
    """Return what os.listdir gives, without what is no package's metadata, and with one name at a time in memory."""
    if _MAGIC.isdisjoint(directory) and os.path.isdir(directory) and _has_no_package(directory):
        return []
    with _scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name.lower().endswith(_PACKAGES)]


def _has_no_package(directory: str) -> bool:
    """Return whether no name looks like a package's metadata. libc reads the names: Python would take memory for them.

    A block that is taken and given back at once can be the last one of its pool: then other pools are next.
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


def watch(finder: Any) -> None:
    """Change how FileFinder learns the names of directories that hold no installed packages."""
    list_names = finder._fill_cache

    def _fill_cache(self: Any) -> None:
        directory = self.path or os.getcwd()
        if directory.startswith(_LIBRARY) or any(part in directory for part in _INSTALLED):
            list_names(self)
        else:
            self._path_cache = DirectoryNames(directory)

    finder._fill_cache = _fill_cache
