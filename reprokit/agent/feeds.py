"""Which thread a seeding call counts for where joblib takes its tasks from a generator.

The first tasks are taken by the script's thread, the others by a thread of joblib's as workers become free, where
no frame leads back to the script; how many by which is a race. Their order is not: joblib takes one after another. So
what the generator seeds counts for the thread, and where a library seeds for the script's line, that took the first.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    Place = tuple[str, str, int]  # thread ("" is the main one), file, line

MAX_FRAMES = 60
MAX_FEEDS = 1000
_GENERATOR = 0x20  # inspect.CO_GENERATOR
_TAKES, _TAKES_NEXT = "dispatch_one_batch", "dispatch_next"  # of joblib.parallel.Parallel; the latter when one is done


class Feeds:
    """The generators of tasks of this process, by the identity of their frame, which lives as long as they do."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def forget(self) -> None:
        self._places.clear()

    def place(self, caller: FrameType, origin: FrameType, thread: str) -> Place:
        """Thread, file and line to count for, of who seeds and for whom; the call's own unless a feed makes it."""
        own = (thread, origin.f_code.co_filename, origin.f_lineno or 0)
        if "joblib.parallel" not in sys.modules:
            return own
        feed, is_next, is_inside = _feed(caller, origin)
        if feed is None:
            return own
        if not is_next:
            if len(self._places) >= MAX_FEEDS:
                self._places.clear()
            self._places[id(feed)] = own
            return own
        first = self._places.get(id(feed), own)
        return (first[0], *own[1:]) if is_inside else first


def _feed(caller: FrameType, origin: FrameType) -> tuple[FrameType | None, bool, bool]:
    """The generator that joblib is taking tasks from, whether by its own thread, and whether the origin is in it."""
    frame: FrameType | None = caller
    feed, is_inside = None, False
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        if code.co_name == _TAKES and frame.f_globals.get("__name__") == "joblib.parallel":
            taker = frame.f_back
            return feed, taker is not None and taker.f_code.co_name == _TAKES_NEXT, is_inside
        if code.co_flags & _GENERATOR:
            feed = frame
        is_inside = is_inside or frame is origin
        frame = frame.f_back
    return None, False, False
