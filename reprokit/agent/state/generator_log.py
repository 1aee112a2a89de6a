"""Logs the states of the random generators after each update, so that a replay which leaves updates out draws alike.

A record of an update has a tag for each generator: absent, as before, changed at its ends, or whole. Most draws change
the position in a block of random words alone, which lies at an end. A tag before them says that a gradient scaler
skipped the update.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMES = ("torch", "python", "numpy", "torch.cuda")
FRONT, BACK = 24, 64  # bytes at the ends of a state in which a position may be
ABSENT, SAME, ENDS, WHOLE, SKIPPED = range(5)
MAX_STATE = 1 << 16  # bytes


class GeneratorLog:
    """Encodes the states after one update after the other."""

    def __init__(self) -> None:
        self._last: dict[str, bytes] = {}

    def record(self, states: Mapping[str, bytes], *, is_skipped: bool = False) -> bytes:
        """Return the record of the next update, or of one that a gradient scaler skipped."""
        last, tags, contents = self._last, bytearray([SKIPPED] if is_skipped else []), []
        for name in NAMES:
            before, now = last.get(name), states.get(name)
            if now is None:
                tags.append(ABSENT)
                last.pop(name, None)
            elif now == before:
                tags.append(SAME)
            elif before is not None and len(now) == len(before) and now[FRONT:-BACK] == before[FRONT:-BACK]:
                tags.append(ENDS)
                contents += [now[:FRONT], now[-BACK:]]
                last[name] = now
            else:
                tags.append(WHOLE)
                contents += [len(now).to_bytes(4, "little"), now]
                last[name] = now
        return bytes(tags) + b"".join(contents)


def states_in(data: bytes) -> Iterator[tuple[dict[str, bytes], bool]]:
    """Yield the states after one update after the other, and whether it was skipped; raises ValueError if damaged."""
    last: dict[str, bytes] = {}
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        part = data[at : at + size]
        if len(part) != size or size > MAX_STATE:
            raise ValueError("the log of the generators is cut short")
        at += size
        return part

    while at < len(data):
        is_skipped = data[at] == SKIPPED
        at += is_skipped
        for name, tag in zip(NAMES, take(len(NAMES))):
            if tag == ABSENT:
                last.pop(name, None)
            elif tag == ENDS and name in last:
                last[name] = take(FRONT) + last[name][FRONT:-BACK] + take(BACK)
            elif tag == WHOLE:
                last[name] = take(int.from_bytes(take(4), "little"))
            elif tag != SAME or name not in last:
                raise ValueError("the log of the generators is damaged")
        yield dict(last), is_skipped
