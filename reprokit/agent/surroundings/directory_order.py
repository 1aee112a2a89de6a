"""Records the order in which directories were listed, which depends on the file system."""

from __future__ import annotations

import os
from _blake2 import blake2b  # not hashlib, which would load OpenSSL
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent

MAX_LISTINGS = 1000  # lines of one process; later listings are ignored
MAX_NAMES = 10_000_000  # names digested in one process
_CHUNK = 1024  # names of an open scandir that are buffered
_LEFT_OUT = ("/proc", "/sys", "/dev", os.path.dirname(os.__file__))
_SHARED_MEMORY = "/dev/shm/"  # not left out, as data sets are staged there
_PACKAGES = ("site-packages", "dist-packages", "__pycache__")


class DirectoryListings:
    """Records the listings of this process; of a directory again only if its listing has changed."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._last: dict[str, str] = {}  # by directory
        self._lines = self._names = 0

    def name(self, path: Any) -> str | None:
        """Return the name under which a directory is recorded; None if it is ignored."""
        if self._lines >= MAX_LISTINGS or self._names >= MAX_NAMES or isinstance(path, int):
            return None
        if isinstance(path, (bytearray, memoryview)):  # deprecated, but still accepted
            path = bytes(path)
        name = os.path.normpath(os.fsdecode("." if path is None else path))
        left_out = any(name == directory or name.startswith(directory + "/") for directory in _LEFT_OUT)
        left_out = left_out and not name.startswith(_SHARED_MEMORY)
        return None if left_out or any(part in name for part in _PACKAGES) else name

    def add(self, directory: str, names: list[Any]) -> None:
        """Record a complete listing."""
        digest = ListingDigest()
        digest.update(names)
        self.end(directory, digest, True)

    def wrap_scandir(self, directory: str, entries: Any) -> ScandirIterator:
        """Wrap the iterator of a scandir, to record its names."""
        return ScandirIterator(entries, self._agent, lambda digest, complete: self.end(directory, digest, complete))

    def end(self, directory: str, digest: ListingDigest, complete: bool) -> None:
        """Write a listing, unless it equals the last one of this directory."""
        self._names += digest.count
        order = digest.order() + str(complete)
        if self._last.get(directory) != order and self._lines < MAX_LISTINGS:
            self._last[directory] = order
            self._lines += 1
            facts = {"count": digest.count, "order": digest.order(), "names": f"{digest.names:016x}", "whole": complete}
            self._agent.journal.write("listing", {"name": directory, **facts})


class ListingDigest:
    """Digests names in their order, and the set of names in any order."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=16)
        self.count = self.names = 0

    def update(self, names: list[Any]) -> None:
        """Add names, either all texts or all bytes."""
        if names:
            joined = b"\0".join(names) if isinstance(names[0], bytes) else os.fsencode("\0".join(names))
            self._hash.update(joined + b"\0")
            self.count += len(names)
            self.names = (self.names + sum(map(crc32, joined.split(b"\0")))) % 2**64

    def order(self) -> str:
        """Return the digest of the names so far in their order."""
        return str(self._hash.hexdigest())


class ScandirIterator:
    """Wraps the iterator of os.scandir, and records the names that it yields."""

    def __init__(self, entries: Any, agent: Agent, end: Any) -> None:
        self._next, self._entries = entries.__next__, entries
        self._agent, self._end = agent, end
        self._names: list[Any] = []
        self._digest: ListingDigest | None = ListingDigest()

    def __iter__(self) -> ScandirIterator:
        return self

    def __next__(self) -> Any:
        try:
            entry = self._next()
        except StopIteration:
            self._agent.attempt(self._note, True)
            raise
        names = self._names
        names.append(entry.name)
        if len(names) >= _CHUNK:
            self._agent.attempt(self._flush)
        return entry

    def close(self) -> None:
        self._entries.close()
        self._agent.attempt(self._note, False)

    def __enter__(self) -> ScandirIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        names = self._names[:]
        del self._names[: len(names)]
        if self._digest is not None:
            self._digest.update(names)

    def _note(self, complete: bool) -> None:
        """Record the listing, once; one that was opened and not read has no order."""
        self._flush()
        digest, self._digest = self._digest, None
        if digest is not None and (complete or digest.count):
            self._end(digest, complete)
