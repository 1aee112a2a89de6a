"""Gives pools of threads the sizes that they had in the recording, where no variable can: they have functions for it.

Only in a replay with fewer processors than the recording, which the launcher has found out.
"""

from __future__ import annotations

import sys

from .compute_settings import openblas_libraries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def sizes(run: str) -> dict[str, int]:
    """What the launcher asks for: the plan holds pools only where there is something to do."""
    with open(run + "/plan.json", "rb") as file:
        text = file.read()
    if b'"pools"' not in text:
        return {}
    import json

    wanted: dict[str, int] = json.loads(text)["pools"]
    return wanted


def resize(name: str, module: ModuleType, wanted: dict[str, int]) -> None:
    """Resize what this module, just loaded, has brought."""
    if name == "torch" and "torch_interop" in wanted:
        _resize_interop(module, wanted["torch_interop"])
    ctypes: Any = sys.modules.get("ctypes")
    if ctypes is not None and "openblas" in wanted:
        for count, set_count in openblas_libraries(ctypes):
            if count != wanted["openblas"]:
                set_count(wanted["openblas"])


def _resize_interop(torch: Any, size: int) -> None:
    if torch.get_num_interop_threads() != size:
        torch.set_num_interop_threads(size)
