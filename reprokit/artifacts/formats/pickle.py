"""Reads pickles, also several in one file, and those of joblib: never unpickled, only looked at."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source
from reprokit.artifacts.formats.detection import is_pickle
from reprokit.artifacts.formats.joblib_arrays import after_build, recognize_joblib
from reprokit.artifacts.formats.pickle_numpy import recognize_numpy
from reprokit.artifacts.formats.pickle_unpickler import InertUnpickler
from reprokit.artifacts.formats.pickle_walk import PickleWalk
from reprokit.artifacts.sources import piece

MOST = 10_000  # pickles in one file


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The parts of each pickle in the file."""
    at = 0
    walk = PickleWalk(limits, source.size, (recognize_joblib, recognize_numpy))
    for number in range(1, MOST + 1):
        unpickler = InertUnpickler(source, at, limits)
        unpickler.after_build = after_build
        root = unpickler.load()
        yield from walk.pickle(unpickler, root, f"({number})" if number > 1 else "")
        at = unpickler.stop
        if not is_pickle("", source.read(at, 4)):
            break
    if at < source.size:
        yield walk.blob("(after the end)", piece(source, at, source.size - at))
