"""Finds who calls: the first frame outside of some packages, and its line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from types import FrameType

# Packages whose own locks, pipes and loops depend on time, or are ordered by other modules.
LIBRARIES = frozenset(
    ("concurrent", "dask", "distributed", "joblib", "loky", "multiprocessing", "ray", "torch", "tqdm", "wandb")
)
_AGENT = __name__.partition(".")[0]


def caller_outside(names: Container[str]) -> FrameType | None:
    """Return the frame of the first caller outside these modules, these packages and the agent."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None:
        name = str(caller.f_globals.get("__name__"))
        package = name.partition(".")[0]
        if name not in names and package not in names and package != _AGENT:
            break
        caller = caller.f_back
    return caller


def place(caller: FrameType) -> str:
    """Return the base name of the file and the line of a frame, as "train.py:12"."""
    return f"{caller.f_code.co_filename.rpartition('/')[2]}:{caller.f_lineno}"


def creates_referent(caller: FrameType) -> bool:
    """Return whether a multiprocessing manager creates a shared object in this frame."""
    return caller.f_code.co_name == "create" and caller.f_globals.get("__name__") == "multiprocessing.managers"


def package_of(caller: FrameType) -> str:
    """Return the package to which a frame's code belongs; "" if its module has no name."""
    return str(caller.f_globals.get("__name__", "")).partition(".")[0]
