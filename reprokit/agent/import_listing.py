"""Lets imports look for a file by its name where they would list the directory.

A script's directory is listed at its first import, and the names take memory: with a file more, as the recording left
it there, all objects that are made later have other addresses, and sets of them another order.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INSTALLED = ("/site-packages", "/dist-packages")
_LIBRARY = os.path.dirname(os.__file__)


class DirectoryNames:
    """Stands in for the set of names of a directory: each is looked for as it is asked about."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __contains__(self, name: str) -> bool:
        try:
            return os.access(f"{self._directory}/{name}", os.F_OK)
        except ValueError:  # no name of a file
            return False


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
