"""Reads all processes of a run's entropy directory: those with a file, and those with a slot in the pool."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from reprokit.core import native
from reprokit.core.errors import RunDamaged, RunTooNew
from reprokit.entropy.files import FORMAT, ByteData, BytesInMemory, EntropyFile, damaged, entropy_files, mapped

NAME = "pool.entropy"
CHILDREN = "children.entropy"  # how each child was started; read by the shim only
REST = "-rest.entropy"
SLOT = 4096
LEVELS, FIRST = 4, 128  # RK_POOL_LEVELS and RK_POOL_SLOTS of native/urandom_hook.h
_CLAIM = struct.Struct("<QQ")
_HEAD = struct.Struct("<8sI532sQ")
_NAMED, _NAMED_AT = struct.Struct("<I256s"), 28  # incarnation and identity in the head of a process


class _SlotWithRest:
    """A pool slot and the file that continues it."""

    def __init__(self, slot: bytes, rest: ByteData):
        self._slot, self._rest = slot, rest

    def __len__(self) -> int:
        return SLOT + len(self._rest)

    def __getitem__(self, key: slice, /) -> bytes:
        start, stop, _ = key.indices(len(self))
        return self._slot[start:stop] + self._rest[max(0, start - SLOT) : max(0, stop - SLOT)]

    def close(self) -> None:
        self._rest.close()


class EntropyPool:
    """The mapped file that forked processes share."""

    def __init__(self, path: Path):
        self.path, self._data = path, mapped(path)
        if len(self._data) < SLOT + _CLAIM.size:
            raise damaged(path, len(self._data), "the head is cut short")
        magic, version, _, check = _HEAD.unpack(self._data[: _HEAD.size])
        if magic != b"RKENTROP" or check != native.checker()(self._data[: _HEAD.size - 8], 0):
            raise damaged(path, 0, "the head does not match its check")
        if version > FORMAT:
            raise RunTooNew(f"{path} has format {version}, this reprokit reads up to {FORMAT}; upgrade reprokit")

    def close(self) -> None:
        self._data.close()

    def slots(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, claiming hash and bytes of each slot in use."""
        table, slots = SLOT, FIRST
        for _ in range(LEVELS):
            start = table + 2 * slots * _CLAIM.size
            for number, name in self._claims(table, start, slots):
                offset = start + number * SLOT
                slot = self._data[offset : offset + SLOT]
                if len(slot) < SLOT:
                    raise damaged(self.path, offset, "a slot is cut short")
                if slot[:8] != bytes(8):  # otherwise the process was killed before it got entropy
                    yield offset, name, slot
            table, slots = start + slots * SLOT, slots * 16

    def _claims(self, table: int, end: int, slots: int) -> Iterator[tuple[int, int]]:
        """Return the claimed slots of a level in order, each with the hash of the process that claimed it."""
        entries = self._data[table + _CLAIM.size : end]
        if any(self._data[table : table + _CLAIM.size]) and len(entries) < end - table - _CLAIM.size:
            raise damaged(self.path, len(self._data), "a table is cut short")
        names_by_slot: dict[int, int] = {}
        for name, slot in _CLAIM.iter_unpack(entries[: len(entries) // _CLAIM.size * _CLAIM.size]):
            if not slot:
                continue
            if not 0 < slot <= slots or slot - 1 in names_by_slot:
                raise damaged(self.path, table, "a slot that is none, or that two processes have,")
            names_by_slot[slot - 1] = name
        return iter(sorted(names_by_slot.items()))


def processes(directory: Path) -> Iterator[EntropyFile]:
    """Yield each process's entropy, those with a file first; each is open until the next one is requested."""
    paths = entropy_files(directory)
    rests = {path.name for path in paths if path.name.endswith(REST)}
    for path in paths:
        if path.name not in rests | {NAME, CHILDREN}:
            with closing(EntropyFile(path)) as file:
                yield file
    for path in paths:
        if path.name == NAME:
            with closing(EntropyPool(path)) as pool:
                yield from _pool_files(pool, rests)
    if rests:
        raise RunDamaged(f"{directory / min(rests)} goes on where no process began; record again")


def _pool_files(pool: EntropyPool, rests: set[str]) -> Iterator[EntropyFile]:
    check = native.checker()
    for offset, name, slot in pool.slots():
        incarnation, identity = _NAMED.unpack_from(slot, _NAMED_AT)
        if check(identity.split(b"\0", 1)[0], 0) != name:
            raise damaged(pool.path, offset, "a slot that another process was given")
        data: ByteData = BytesInMemory(slot)
        rest = f"{name:016x}-{incarnation}{REST}"
        if rest in rests:
            rests.remove(rest)
            data = _SlotWithRest(slot, mapped(pool.path.with_name(rest)))
        with closing(data):
            yield EntropyFile(pool.path, data, f"slot at {offset}: ")
