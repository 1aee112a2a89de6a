"""Reads pickles, also several in one file, and those of joblib: never unpickled, only looked at."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.formats.joblib_arrays import after_build
from reprokit.artifacts.formats.pickle_machine import HIGHEST_PROTOCOL, Cursor, Machine, Pickle
from reprokit.artifacts.formats.pickle_numpy import joblib_array, recognise
from reprokit.artifacts.formats.pickle_others import recognise_others
from reprokit.artifacts.formats.pickle_walk import Walk, under
from reprokit.artifacts.parts import Limits, Noise, Part, Source
from reprokit.artifacts.sources import piece

PROTOCOL = b"\x80"
MOST = 10_000  # pickles in one file


def matches(name: str, head: bytes) -> bool:
    """By its first opcode and protocol; those before protocol 2 by their name."""
    if head[:1] == PROTOCOL:
        return len(head) > 2 and 2 <= head[1] <= HIGHEST_PROTOCOL
    return name.lower().endswith((".pkl", ".pickle", ".p", ".pck", ".joblib", ".sav")) and head[:1] in b"(]}c)lNIFSVL"


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """The parts of each pickle in the file."""
    at = 0
    walk = Walk(limits, source.size, (recognise, recognise_others), joblib_array)
    for number in range(1, MOST + 1):
        found = Machine(Cursor(source, at), limits, after_build).run()
        path = f"({number})" if number > 1 else ""
        yield from walk.pickle(found, source, path)
        yield protocol(walk, found, path)
        at = found.stop
        if at >= source.size or not matches("", source.read(at, 4)):
            break
    if at < source.size:
        yield walk.blob("(after the end)", piece(source, at, source.size - at))


def protocol(walk: Walk, found: Pickle, path: str) -> Noise:
    """How a pickle was written, which is not what it means."""
    frames = f", {found.frames} frames" if found.frames else ""
    return Noise(walk.named(under(path, "(protocol)")), f"{found.protocol}{frames}")
