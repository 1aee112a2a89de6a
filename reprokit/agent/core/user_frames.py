"""Where in the user's own code something happens: frames that belong to no library, the innermost first."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    Place = tuple[str, int, str]  # file, line, function

MAX_PLACES = 3
MAX_DEPTH = 200  # frames that are looked at
INSTALLED = ("/site-packages/", "/dist-packages/")
STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + "/"
OWN = os.path.abspath(__file__).rpartition("/agent/core/")[0] + "/"
_OPTIMIZED = 1  # flag of a function's code, whose variables are in no dictionary
_HELD_HERE = 3  # references: the frame's, a variable's and an argument's
_TYPED_IN = ("<stdin>", "<ipython-input-")  # code without a file that is the user's
_known: dict[str, bool] = {}


def is_users(file: str) -> bool:
    """Return whether code of this file is the user's own: neither installed, nor of Python, nor ours."""
    known = _known.get(file)
    if known is None:
        known = _known[file] = _is_users(file)
    return known


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost of the user's frames from this one on."""
    for _ in range(MAX_DEPTH):
        if frame is None or is_users(frame.f_code.co_filename):
            return frame
        frame = frame.f_back
    return None


def _is_users(file: str) -> bool:
    if file == "<string>":  # of python -c; else made by a library, as the methods of dataclasses are
        return getattr(sys, "argv", [])[:1] == ["-c"]
    if file[:1] == "<":
        return file.startswith(_TYPED_IN)
    path = os.path.normpath(file)
    return not (installed_package(path) or os.path.abspath(path).startswith((STANDARD, OWN)))


def installed_package(file: str) -> str:
    """Return the installed package, or module, that a file belongs to; empty where it is in none."""
    for place in INSTALLED:
        _, found, rest = file.partition(place)
        if found:
            return rest.partition("/")[0].partition(".")[0]
    return ""


def is_own(file: str) -> bool:
    """Return whether code of this file is the agent's."""
    return file.startswith(OWN)


def running_code(frame: FrameType | None) -> list[CodeType]:
    """Return the user's functions that run in this frame and those that called it, the innermost first."""
    found = []
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        if is_users(frame.f_code.co_filename):
            found.append(frame.f_code)
        frame = frame.f_back
    return found


def where(depth: int = 1) -> list[Place]:
    """The user's frames that led to the caller, as file, line and function, the innermost first; at most three."""
    found: list[Place] = []
    known = _known
    frame: FrameType | None = sys._getframe(depth)
    for _ in range(MAX_DEPTH):
        if frame is None:
            break
        code = frame.f_code
        file = code.co_filename
        if known[file] if file in known else is_users(file):
            found.append((file, frame.f_lineno, code.co_name))
            if len(found) == MAX_PLACES:
                break
        frame = frame.f_back
    return found


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's variables.

    Before Python 3.13 the frame of a function keeps what it was asked for as long as it runs: that goes again, unless
    the script has asked for it too.
    """
    known = frame.f_locals
    found = dict(known)  # of a module, too, which other threads may add to
    if frame.f_code.co_flags & _OPTIMIZED and type(known) is dict and sys.getrefcount(known) == _HELD_HERE:
        known.clear()
    return found
