"""Tracks as text: the turns of a line, and the look-up of what the recording holds of this process."""

from __future__ import annotations

import os
import sys
from array import array

from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_SIZE = 64 << 20  # bytes of orders.jsonl
MAX_TURNS = 1 << 24  # of a process
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def packed(turns: array[int], names: Sequence[str] | Mapping[int, str]) -> tuple[list[str], str, int]:
    """Return the actors of these turns, the turns as text (numbers of actors, deflated, base64), and their number."""
    from binascii import b2a_base64
    from zlib import compress

    codes = sorted(set(turns))
    numbers = {code: number for number, code in enumerate(codes)}
    kind = "B" if len(codes) <= 256 else "H"
    content = array(kind, [numbers[code] for code in turns])
    if sys.byteorder == "big":
        content.byteswap()
    text = b2a_base64(compress(content.tobytes()), newline=False).decode()
    return [names[code] for code in codes], text, len(turns)


def unpacked(actors: Sequence[str], text: str, count: int) -> list[str]:
    """Return the actor of each turn; raises an error where that is not what the text holds."""
    from binascii import a2b_base64
    from zlib import decompressobj

    content = array("B" if len(actors) <= 256 else "H")
    size = content.itemsize * count
    data = decompressobj().decompress(a2b_base64(text), size + 1)
    if len(data) != size:
        raise ValueError("turns of another number")
    content.frombytes(data)
    if sys.byteorder == "big":
        content.byteswap()
    return [actors[number] for number in content]


class RecordedTracks:
    """orders.jsonl of this run, which only a replay has."""

    def __init__(self, run: str) -> None:
        self._path = run + "/orders.jsonl"
        self._tracks: dict[str, list[str]] | None = None

    @property
    def are_there(self) -> bool:
        """Whether the recording holds any, be they of other processes."""
        return os.access(self._path, os.F_OK)

    def take(self, identity: str, track: str) -> list[str] | None:
        """Return who had the turns of a track, in their order; once."""
        return self._of_process(identity).pop(track, None)

    def unused(self, identity: str) -> int:
        """Return how many turns the tracks have that were not taken."""
        return sum(map(len, self._of_process(identity).values()))

    def _of_process(self, identity: str) -> dict[str, list[str]]:
        tracks = self._tracks
        if tracks is None:
            tracks = self._tracks = {}
            for line in self._lines(f"[{to_json(identity)},".encode()):
                _add(tracks, line)
        return tracks

    def _lines(self, start: bytes) -> list[bytes]:
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:
            return []
        with os.fdopen(descriptor, "rb") as file:
            return [line for line in file.read(MAX_SIZE).split(b"\n") if line.startswith(start)]

    def forget(self) -> None:
        """In a forked child: it is another process."""
        self._tracks = None


def _add(tracks: dict[str, list[str]], line: bytes) -> None:
    import json

    _, track, actors, text, count = json.loads(line)
    known = tracks.setdefault(track, [])
    if count + len(known) <= MAX_TURNS:
        known.extend(unpacked(actors, text, count))
