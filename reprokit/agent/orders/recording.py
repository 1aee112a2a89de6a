"""Packs the turns of a line as text, and reads this process' tracks from a recording."""

from __future__ import annotations

import os
import sys
from array import array

from ..core.json_text import to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

IMPORT = "import "  # prefix of tracks of modules; the first import of one may not come again, which harms nothing
MAX_SIZE = 64 << 20  # bytes of orders.jsonl
MAX_TURNS = 1 << 24  # read for a process
MAX_DIGITS = 16  # bytes of the first line, which is a time in seconds
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
    """Return the actor of each turn; raises ValueError and other errors if the text does not hold count turns."""
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
    """Reads orders.jsonl of this run, which exists only in a replay."""

    def __init__(self, run: str) -> None:
        self._path = run + "/orders.jsonl"
        self._tracks: dict[str, list[str]] | None = None
        self._seconds: float | None = None

    @property
    def seconds(self) -> float:
        """The time that the recording took until its last order; 0 if it is not known."""
        if self._seconds is None:
            self._seconds = _number(self._read(MAX_DIGITS))
        return self._seconds

    @property
    def exist(self) -> bool:
        """Whether the recording holds tracks, even if only of other processes."""
        return os.access(self._path, os.F_OK)

    def take(self, identity: str, track: str) -> list[str] | None:
        """Return the actors of a track's turns in their order, and remove the track."""
        return self._tracks_of(identity).pop(track, None)

    def unused(self, identity: str) -> int:
        """Return the number of turns in the tracks that were not taken, except of modules that were not imported."""
        tracks = self._tracks_of(identity).items()
        return sum(len(turns) for name, turns in tracks if not name.startswith(IMPORT))

    def _tracks_of(self, identity: str) -> dict[str, list[str]]:
        tracks = self._tracks
        if tracks is None:
            tracks = self._tracks = {}
            for line in self._lines(f"[{to_json(identity)},".encode()):
                _add(tracks, line)
        return tracks

    def _lines(self, start: bytes) -> list[bytes]:
        return [line for line in self._read(MAX_SIZE).split(b"\n") if line.startswith(start)]

    def _read(self, size: int) -> bytes:
        try:
            descriptor = os.open(self._path, _FLAGS)
        except OSError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return file.read(size)

    def forget(self) -> None:
        """In a forked child: drop the tracks, which are of the parent."""
        self._tracks = None


def _number(beginning: bytes) -> float:
    """Return the number of seconds in the first line of a file that begins so; 0 if there is none."""
    line, end, _ = beginning.partition(b"\n")
    return float(line) if end and line.replace(b".", b"", 1).isdigit() else 0.0


def _add(tracks: dict[str, list[str]], line: bytes) -> None:
    import json

    _, track, actors, text, count = json.loads(line)
    actors_so_far = tracks.setdefault(track, [])
    if count + len(actors_so_far) <= MAX_TURNS:
        actors_so_far.extend(unpacked(actors, text, count))
