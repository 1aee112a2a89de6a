"""The names of parts of variables in checkpoints, which are written so that they sort by their numbers.

See tensorflow/core/lib/strings/ordered_code.h.
"""

from __future__ import annotations

from reprokit.errors import ArtifactDamaged

MOST_DIMENSIONS = 254


def decoded(key: bytes) -> str:
    """A key as NAME[START:STOP, ...]; one that is none of these as it stands."""
    try:
        zero, at = _increasing(key, 0)
        name, at = _text(key, at)
        rank, at = _increasing(key, at)
        if zero or rank > MOST_DIMENSIONS:
            return repr(key)
        texts = []
        for _ in range(rank):
            start, at = _signed(key, at)
            length, at = _signed(key, at)
            texts.append(":" if (start, length) == (0, -1) else f"{start}:{start + length}")
        return f"{name}[{', '.join(texts)}]" if at == len(key) else repr(key)
    except (ArtifactDamaged, IndexError):
        return repr(key)


def _increasing(key: bytes, at: int) -> tuple[int, int]:
    """A number behind the count of its bytes."""
    end = at + 1 + key[at]
    if end > len(key) or key[at] > 8:
        raise ArtifactDamaged("a number of a key is cut short")
    return int.from_bytes(key[at + 1 : end], "big"), end


def _text(key: bytes, at: int) -> tuple[str, int]:
    """A text up to its end, which is 0 1; 0 and 255 in it are followed by the other one."""
    found = bytearray()
    while True:
        byte, after = key[at], key[at + 1] if key[at] in (0, 255) else 0
        if byte not in (0, 255):
            found.append(byte)
            at += 1
        elif (byte, after) == (0, 1):
            return found.decode("utf-8", "backslashreplace"), at + 2
        elif byte + after == 255:
            found.append(byte)
            at += 2
        else:
            raise ArtifactDamaged("a text of a key is damaged")


def _signed(key: bytes, at: int) -> tuple[int, int]:
    """A number whose first bits say how many bytes it has; all are inverted where it is negative."""
    mask = 0 if key[at] & 0x80 else 0xFF
    first = int.from_bytes(bytes(byte ^ mask for byte in key[at : at + 2]), "big") << (8 if at + 1 == len(key) else 0)
    length = 1
    while length < 10 and first >> (15 - length) & 1:
        length += 1
    data = bytes(byte ^ mask for byte in key[at : at + length])
    if len(data) < length:
        raise ArtifactDamaged("a number of a key is cut short")
    value = int.from_bytes(data, "big") & ((1 << (7 * length - 1)) - 1)
    return (~value if mask else value), at + length
