"""Which thread and line a seeding call counts for where joblib takes its tasks from a generator.

The first tasks are taken by the script's thread. The others are taken as workers become free, by a thread of joblib's,
from which no frame leads back to the script. How many are taken by which thread is a race; in which order is not, as
joblib takes one after another. So all that the generator seeds counts for the thread that took its first task, and
where a library seeds in it, for the line of the script that called joblib or the library.
"""

from __future__ import annotations

import sys
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    Place = tuple[str, str, int]  # thread ("" is the main one), file, line

MAX_FRAMES = 60
_TAKES, _TAKES_NEXT = "dispatch_one_batch", "dispatch_next"  # methods of Parallel; joblib's threads call the latter


class Tasks:
    """The tasks of this process' joblib.Parallel objects."""

    def __init__(self) -> None:
        self._places: Any = weakref.WeakKeyDictionary()  # by Parallel

    def forget(self) -> None:
        """In a forked child: these are the parent's."""
        self._places.clear()

    def place(self, caller: FrameType, origin: FrameType, thread: str) -> Place:
        """Thread, file and line that a call counts for, of who seeds and for whom: its own, unless joblib took it."""
        own = (thread, origin.f_code.co_filename, origin.f_lineno or 0)
        if "joblib.parallel" not in sys.modules:
            return own
        frame, is_inside = _taking(caller, origin)
        if frame is None:
            return own
        parallel, taker = frame.f_locals["self"], frame.f_back
        if taker is None or taker.f_code.co_name != _TAKES_NEXT:
            self._places[parallel] = own
            return own
        first: Place = self._places.get(parallel, own)
        return (first[0], *own[1:]) if is_inside else first


def _taking(caller: FrameType, origin: FrameType) -> tuple[FrameType | None, bool]:
    """Where a Parallel is taking a task, if the caller makes one, and whether the origin is within that."""
    frame: FrameType | None = caller
    is_inside = False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name == _TAKES and frame.f_globals.get("__name__") == "joblib.parallel":
            return frame, is_inside
        is_inside = is_inside or frame is origin
        frame = frame.f_back
    return None, False
