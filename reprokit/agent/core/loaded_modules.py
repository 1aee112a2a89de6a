"""Lists what a process has imported by its end: installed packages, and files that belong to none."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from .signal_errors import pass_on
from .user_frames import OWN, STANDARD, installed_package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILES = 2000
_IMPORTED_AT_START = ("_distutils_hack", "sitecustomize")  # a file of site-packages imports them into every Python


def modules() -> dict[str, object]:
    """Return top-level names of packages, and absolute paths of the script and of modules outside of all packages."""
    packages: set[str] = set()
    files: set[str] = set()
    for path, _ in module_files():
        package = installed_package(path)
        if package:
            packages.add(package)
        elif not path.startswith((STANDARD, OWN)) and len(files) < MAX_FILES:
            files.add(path)
    named = sorted(name for name in packages if name not in _IMPORTED_AT_START and name[:2] != "__")
    return {"packages": named, "files": sorted(files)}


def module_files() -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each module that has a file."""
    for name, module in list(sys.modules.items()):
        try:  # past the __getattribute__ of modules that are loaded when they are first used
            names = ModuleType.__getattribute__(module, "__dict__")
            path = names.get("__file__") or names["__loader__"].path  # the script has no __file__ any more
        except Exception as error:  # any object may be in sys.modules
            pass_on(error)
            continue
        if type(path) is str and path:
            yield path if path[0] == "/" else os.path.abspath(path), name
