"""Finds a function of the caller's, so that another process can call it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path

from reprokit.core.errors import UsageError

MAIN = "__main__"


def place_of(function: Callable[[], object]) -> tuple[str, str, str]:
    """Return the folder where imports begin, the module or script, and the name; UsageError if there is no way."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    advice = "put it at the top level of a module or script, and give it no parameters"
    if not module or not name or "<" in name or inspect.ismethod(function):
        raise UsageError(f"{function!r} cannot be found by another process: {advice}")
    if any(parameter.default is parameter.empty for parameter in _parameters(function)):
        raise UsageError(f"{module}.{name} needs arguments, and is called without any: {advice}")
    owner = sys.modules.get(module)
    found: object = owner
    for attribute in name.split("."):
        found = getattr(found, attribute, None)
    if found is not function:
        raise UsageError(f"{module}.{name} is another object than this function: {advice}")
    file, spec = getattr(owner, "__file__", None), getattr(owner, "__spec__", None)
    if file is None or not os.path.isfile(file):
        raise UsageError(f"{module}.{name} stands in no file: {advice}, or use the cell magic %%reprokit")
    path = Path(file).absolute()
    if module == MAIN and spec is None:
        return str(path.parent), str(path), name
    dotted = spec.name if module == MAIN and spec is not None else module
    above = len(dotted.split(".")) - (path.name != "__init__.py")
    return str(path.parents[above]), dotted, name


def _parameters(function: Callable[[], object]) -> list[inspect.Parameter]:
    """Return the parameters that a call must give, or may."""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind not in optional
    ]
