"""Writes entropy files by hand: small ones for the corpus, and any bytes with their checks put right."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from reprokit.core import native
from reprokit.entropy.files import CHUNK_HEAD, FORMAT, HEAD

CORPUS = Path(__file__).parent / "corpus"
HEAD_CHECK = 544
GETRANDOM, DEVICE, STREAM, RANDOM_DEVICE, CLOCK = 1, 7, 8, 10, 16


@dataclass
class Thread:
    """The records of one thread, their checks still zero."""

    name: str
    records: bytes = b""
    events: int = 0
    given: int = 0
    sites: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._add(1, bytes([len(self.name)]) + self.name.encode())

    def _add(self, tag: int, body: bytes) -> None:
        self.records += bytes([tag]) + body + bytes(4)

    def moment(self, place: int, time: int, since: int | None = None) -> Thread:
        """A read of the clock: the time itself, or what passed since the one before."""
        body = struct.pack("<HQ", place, time) if since is None else struct.pack("<HI", place, since)
        self._add(7 if since is None else 6, body)
        self.events += 1
        return self

    def counts(self, mode: int) -> tuple[int, int]:
        """Of events and bytes for a chunk's head: a replay counts elsewhere."""
        return (self.events, self.given) if mode == 1 else (0, 0)

    def _given(self, data: bytes) -> Thread:
        self.events += 1
        self.given += len(data)
        return self

    def event(self, source: int, site: int, data: bytes, asked: int | None = None, withheld: bool = False) -> Thread:
        """A request at a place of the program itself, and what it was given."""
        if site not in self.sites:
            self.sites[site] = len(self.sites) + 1
            self._add(2, struct.pack("<HQB", self.sites[site], site, 0))
        asked = len(data) if asked is None else asked
        body = struct.pack("<BHBQQ", source, self.sites[site], withheld, asked, len(data))
        self._add(3, body + (b"" if withheld else data))
        return self if withheld else self._given(data)

    def repeat(self, data: bytes) -> Thread:
        """The same request again."""
        self._add(4, data)
        return self._given(data)

    def mismatch(self, source: int, site: int, match: int, asked: int) -> Thread:
        """A replay's note of a request that it did not answer exactly."""
        self._add(5, struct.pack("<BHBQ", source, self.sites.get(site, 0), match, asked))
        return self


def profile(*threads: Thread, chunk: int = 512, mode: int = 1) -> bytes:
    """An entropy file of process 0, its checks put right; threads of one name are chunks of one stream."""
    check = native.checker()
    head = struct.pack("<8sIIQII256s256sQ", b"RKENTROP", FORMAT, mode, 0, 1, 0, b"0", b"/bin/true", 0)
    body = b""
    ordinals: Counter[str] = Counter()
    for thread in threads:
        size = -(-max(chunk, CHUNK_HEAD + len(thread.records)) // 64)
        stream = check(thread.name.encode(), 0)
        body += struct.pack("<IIQQQQQ", 0x4B4E4843, size, stream, ordinals[thread.name], 0, *thread.counts(mode))
        ordinals[thread.name] += 1
        body += thread.records.ljust(size * 64 - CHUNK_HEAD, b"\0")
    used = struct.pack("<Q", HEAD + len(body))
    return seal((head + used).ljust(HEAD, b"\0") + body)


def seal(data: bytes) -> bytes:
    """The bytes with every check put right that can be reached: without it a fuzzer sees the first one only."""
    check = native.checker()
    file = bytearray(data)
    if len(file) >= HEAD:
        file[HEAD_CHECK : HEAD_CHECK + 8] = check(bytes(file[:HEAD_CHECK]), 0).to_bytes(8, "little")
    streams: dict[bytes, _State] = {}
    offset = HEAD
    while offset + CHUNK_HEAD <= len(file):
        file[offset + 24 : offset + 32] = check(bytes(file[offset : offset + 24]), 0).to_bytes(8, "little")
        size = 64 * int.from_bytes(file[offset + 4 : offset + 8], "little")
        end = min(offset + size, len(file))
        state = streams.setdefault(bytes(file[offset + 8 : offset + 16]), _State())
        _seal_records(file, offset + CHUNK_HEAD, end, state)
        if size == 0:
            break
        offset += size
    return bytes(file)


@dataclass
class _State:
    """What a stream's records refer back to: the last check, and the payload of the last event."""

    previous: int = 0
    payload: int = 0


def _seal_records(file: bytearray, at: int, end: int, state: _State) -> None:
    check = native.checker()
    while at < end and file[at]:
        length = _length(file, at, state)
        stop = at + 1 + length
        if length < 0 or stop + 4 > end:
            return
        state.previous = check(bytes(file[at + 1 : stop]), state.previous << 8 | file[at]) & 0xFFFFFFFF
        file[stop : stop + 4] = state.previous.to_bytes(4, "little")
        at = stop + 4


def _length(file: bytearray, at: int, state: _State) -> int:
    """Of the record between its tag and its check; -1 for what is no record."""
    try:
        if file[at] == 1:
            return 1 + file[at + 1]
        if file[at] == 2:
            return 11 + file[at + 11]
        if file[at] == 3:
            _, _, flags, _, given = struct.unpack_from("<BHBQQ", file, at + 1)
            state.payload = 0 if flags & 1 else given
            return 20 + state.payload
        return {4: state.payload, 5: 12, 6: 6, 7: 10}.get(file[at], -1)
    except (IndexError, struct.error):
        return -1


def seeds() -> dict[str, bytes]:
    """One small profile for each thing that a profile may hold."""
    pattern = bytes(range(256)) * 20
    several = Thread("m").event(GETRANDOM, 0x10, pattern[:16]).repeat(pattern[16:32]).event(STREAM, 0x20, b"\x01")
    several_chunks = (
        Thread("m").event(GETRANDOM, 0x10, pattern[:16]).repeat(pattern[16:32]),
        Thread("m").event(STREAM, 0x20, b"\x01").repeat(b"\x02"),
    )
    return {
        "empty": profile(),
        "one": profile(Thread("m").event(GETRANDOM, 0x10, pattern[:16])),
        "repeats": profile(several.repeat(b"\x02").repeat(b"\x03").event(DEVICE, 0x30, pattern[:200])),
        "threads": profile(
            *(Thread(name).event(GETRANDOM, 0x10, pattern[:16]).repeat(pattern[:16]) for name in ("m", "m.1", "m.2"))
        ),
        "withheld": profile(
            Thread("m").event(GETRANDOM, 0x50, b"", 16, withheld=True).event(RANDOM_DEVICE, 0x40, pattern[:4])
        ),
        "short": profile(Thread("m").event(DEVICE, 0x30, pattern[:50], 200).event(GETRANDOM, 0x20, pattern[:8])),
        "small": profile(*several_chunks, chunk=64),
        "large": profile(Thread("m").event(GETRANDOM, 0x10, pattern[:5000])),
        "chunks": profile(
            *(Thread("m.1").event(GETRANDOM, site, pattern[:8]) for site in (0x10, 0x20, 0x30)), chunk=64
        ),
        "clock": profile(
            Thread("m").event(GETRANDOM, 0x10, pattern[:16]),
            Thread("m#clock").moment(0x101, 10**18).moment(0x102, 0, since=7).moment(0x101, 0, since=10**9),
            Thread("m.1#clock").event(CLOCK, 0x20, pattern[8:16]).repeat(pattern[:8]).moment(0x101, 2**63),
        ),
        "mismatches": profile(Thread("m").event(GETRANDOM, 0x10, b"").mismatch(GETRANDOM, 0x10, 2, 16), mode=2),
    }


def write_seeds() -> None:
    """Write them into the corpus."""
    CORPUS.mkdir(exist_ok=True)
    for name, data in seeds().items():
        (CORPUS / f"{name}.entropy").write_bytes(data)


if __name__ == "__main__":
    write_seeds()
