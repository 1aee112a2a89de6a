"""Loads the compiled part of the agent: native/python, built for the stable ABI of CPython."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "reprokit_step"


def load(library: str | None) -> Any:
    """Return the module beside the trail's library; None if it was not built, or not for this interpreter."""
    path = os.path.join(os.path.dirname(library or ""), _NAME + ".abi3.so")
    if not _fits() or library is None or not os.path.exists(path):
        return None
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location(_NAME, path, loader=ExtensionFileLoader(_NAME, path))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fits() -> bool:
    """Return whether this is a CPython with the GIL: free-threaded builds have another object layout."""
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags
