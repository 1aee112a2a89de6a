"""Flips each bit of a small profile, and cuts it at each byte: the replay in C never gives wrong bytes."""

from __future__ import annotations

import ctypes
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.profiles import seeds
from tests.fuzz.targets import load

PROFILE = seeds()["small"]
FILLER = b"\x5a"  # reader.c: what the real source gives


def damaged(data: bytes) -> Iterator[bytes]:
    """Every profile that differs from this one in one bit, or by its end."""
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)
    for length in range(len(data)):
        yield data[:length]


def answers(library: ctypes.CDLL, data: bytes) -> list[bytes]:
    """What each request of reader.c was given."""
    room = ctypes.create_string_buffer(1 << 16)
    length = library.fuzz_answers(data, ctypes.c_size_t(len(data)), room)
    left = room.raw[:length]
    found = []
    while left:
        [size] = struct.unpack_from("<I", left)
        found.append(left[4 : 4 + size])
        left = left[4 + size :]
    return found


def main() -> None:
    """Print how many damaged profiles were tried; end with a line that says what was wrong."""
    with tempfile.TemporaryDirectory(prefix="flips-") as directory:
        library = load(Path(directory), coverage=False)
        known = {answer for answer in answers(library, PROFILE) if answer.strip(FILLER)}
        assert len(known) == 4, "the requests do not get at the profile"
        tried = 0
        for tried, profile in enumerate(damaged(PROFILE), 1):
            for answer in answers(library, profile):
                assert answer in known or not answer.strip(FILLER), f"damage {tried} gave {answer.hex()}"
    print(f"{tried} damaged profiles tried")


if __name__ == "__main__":
    main()
