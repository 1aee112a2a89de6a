"""Lists what a process has imported by its end: installed packages, and files that belong to none."""

from __future__ import annotations

import os
import sys
from types import CodeType, FunctionType, ModuleType

from .signal_errors import pass_on
from .user_frames import OWN, STANDARD, installed_package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any

MAX_FILES = 2000
MAX_NAMES = 20_000  # of the script's that are looked at
_IMPORTED_AT_START = ("_distutils_hack", "sitecustomize")  # a file of site-packages imports them into every Python


def modules() -> dict[str, object]:
    """Return top-level names of packages, and absolute paths of the script and of modules outside of all packages."""
    packages: set[str] = set()
    files: set[str] = set()
    users: dict[str, Any] = {"__main__": sys.modules.get("__main__")}
    for path, name in module_files():
        package = installed_package(path)
        if package:
            packages.add(package)
        elif not path.startswith((STANDARD, OWN)) and len(files) < MAX_FILES:
            files.add(path)
            users[name] = sys.modules.get(name)
    named = sorted(name for name in packages if name not in _IMPORTED_AT_START and name[:2] != "__")
    used = packages.intersection(_used_by(users))
    return {"packages": named, "files": sorted(files), "used": sorted(used)}


def _used_by(modules: dict[str, Any]) -> set[str]:
    """Return the top-level names of what the script's own modules refer to: modules, classes, functions, values."""
    used: set[str] = set()
    for module in modules.values():
        if issubclass(type(module), ModuleType):
            values = list(ModuleType.__getattribute__(module, "__dict__").values())
            for value in values[:MAX_NAMES]:
                used.update(_names_of(value, modules))
    return {name.partition(".")[0] for name in used}


def _names_of(value: Any, own: Container[str]) -> Iterator[str]:
    """Yield the module that a value comes from, and of the script's own functions the names in their code.

    Nothing of the value's is executed.
    """
    kind, functions = type(value), []
    if issubclass(kind, ModuleType):
        origin = ModuleType.__getattribute__(value, "__dict__").get("__name__")
    elif issubclass(kind, type):
        attributes = type.__dict__["__dict__"].__get__(value)
        origin = attributes.get("__module__")
        functions = [attribute for attribute in list(attributes.values()) if type(attribute) is FunctionType]
    elif kind is FunctionType:
        origin, functions = value.__module__, [value]
    else:
        origin = kind.__dict__.get("__module__")
    if type(origin) is str:
        yield origin
        for function in functions if origin in own else ():
            yield from _names_in(function.__code__)


def _names_in(code: CodeType, depth: int = 0) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts if depth < 8 else ():
        if type(constant) is CodeType:
            yield from _names_in(constant, depth + 1)


def module_files() -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each module that has a file."""
    for name, module in list(sys.modules.items()):
        try:  # past the __getattribute__ of modules that are loaded when they are first used
            names = ModuleType.__getattribute__(module, "__dict__")
            # The script has no __file__ any more, built-in modules have none at all.
            path = names.get("__file__") or getattr(names.get("__loader__"), "path", "")
        except Exception as error:  # any object may be in sys.modules
            pass_on(error)
            continue
        if type(path) is str and path:
            yield path if path[0] == "/" else os.path.abspath(path), name
