"""Reads which keyframes a run has: steps at which all of its training state was kept. Their state stays unread."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import msgspec

from reprokit.core.bounds import bounded_names, open_file
from reprokit.core.errors import CannotWriteRun, RunDamaged, reason, refused_as
from reprokit.model.run import SealedFile
from reprokit.run_files import rundir

INDEX, SHARD = ".jsonl", ".safetensors"
MAX_INDEX = 4 << 30
MAX_LINE = 256 << 20
FORMAT = 1
SEAL, MAX_SEAL = "seal.json", 1000
_KEY = re.compile("[0-9a-f]{16}-[0-9]+")


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53) - 1)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # nanoseconds since 1970


class WrittenUntil(msgspec.Struct, frozen=True, array_like=True):
    """What a process had written until a moment."""

    lines: Count = 0  # of metrics.jsonl
    numbers: Count = 0  # bytes of its file
    printed: dict[str, Count] = {}  # bytes of records in each file of console/, also of other processes


class KeyframeLine(msgspec.Struct, frozen=True):
    """A line of an index, as far as it says which keyframes there are."""

    format: int | None = None
    process: str = ""
    keyframe: Count | None = None  # the step that begins with it
    updates: Count = 0
    series: dict[str, Count] = {}
    lacks: list[str] = []
    hindrance: str = ""
    ranks: Count = 1
    moment: Moment = 0
    written: WrittenUntil = WrittenUntil()
    step: Count | None = None
    shard: Count = 0


class Keyframe(msgspec.Struct, frozen=True):
    """A keyframe of a process, all of whose files are there."""

    process: str
    key: str  # of the process, as in the names of its files
    step: int  # that begins with it
    updates: int  # of all optimizers until then
    series: dict[str, int]  # steps of each series of the trail until then
    lacks: tuple[str, ...]
    hindrance: str  # why no fast-forward leads to it; empty if one may
    ranks: int = 1  # of a distributed training
    moment: int = 0  # when its state was read, as files are stamped; 0: an earlier reprokit did not say
    written: WrittenUntil = WrittenUntil()
    shards: tuple[str, ...] = ()  # names of files
    others: tuple[Keyframe, ...] = ()  # of the same step, of the other ranks

    @property
    def all_ranks(self) -> tuple[Keyframe, ...]:
        """The keyframe of each process that is fast-forwarded."""
        return self, *self.others


def seal(run: Path) -> SealedFile | None:
    """Return size and digest of the indexes, which have the digests of all else; None if there are none."""
    directory = run / rundir.KEYFRAMES
    return rundir.seal_files(directory, _names(directory), "reprokit-keyframes-1")


def write_seal(run: Path) -> None:
    """Seal the indexes in a file beside them: of keyframes that a question leaves, run.json has no seal."""
    with refused_as(CannotWriteRun, run):
        rundir.write_whole(run / rundir.KEYFRAMES / SEAL, msgspec.json.encode(seal(run)), synced=True)


def _seal_beside(directory: Path) -> SealedFile | None:
    """Return the seal in the file beside the indexes; raises RunDamaged for another file."""
    path = directory / SEAL
    if not os.path.lexists(path):
        return None
    try:
        with open(open_file(path), "rb") as file:
            return msgspec.json.decode(file.read(MAX_SEAL), type=SealedFile)
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise RunDamaged(f"{path}: {reason(error)}") from None


def _names(directory: Path) -> list[str]:
    return bounded_names(directory, INDEX) if directory.is_dir() else []


def read(run: Path, sealed: SealedFile | None = None) -> list[Keyframe]:
    """Return the keyframes whose shards are there, those of a process in order; raises RunDamaged for altered ones."""
    directory = run / rundir.KEYFRAMES
    names = _names(directory)
    sealed = sealed or (_seal_beside(directory) if names else None)
    if sealed is not None and seal(run) != sealed:
        raise RunDamaged(f"{directory} was altered since the run ended")
    shards = set(bounded_names(directory, SHARD)) if names else set()
    return [
        keyframe
        for name in names
        if _KEY.fullmatch(name.removesuffix(INDEX))
        for keyframe in _of_process(directory / name, shards)
    ]


def _of_process(path: Path, shards: set[str]) -> list[Keyframe]:
    keyframes, process, key, used = [], "", path.name.removesuffix(INDEX), dict[int, set[int]]()
    with os.fdopen(open_file(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_INDEX:
            raise RunDamaged(f"{path} is larger than {MAX_INDEX} bytes")
        for number, text in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
            if not text.endswith(b"\n"):
                break
            try:
                line = msgspec.json.decode(text, type=KeyframeLine)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise RunDamaged(f"{path}, line {number + 1}: {reason(error)}") from None
            if not number:
                if line.format != FORMAT:
                    raise RunDamaged(f"{path} has format {line.format}, not {FORMAT}")
                process = line.process
            elif line.keyframe is not None:
                own = tuple(f"{key}-{shard:06d}{SHARD}" for shard in sorted(used.get(line.keyframe, ())))
                if shards.issuperset(own):
                    reached, lacks = (line.keyframe, line.updates, line.series), tuple(line.lacks)
                    rest = {"ranks": line.ranks, "moment": line.moment, "written": line.written, "shards": own}
                    keyframes.append(Keyframe(process, key, *reached, lacks, line.hindrance, **rest))  # type: ignore[arg-type]
            elif line.step is not None:
                used.setdefault(line.step, set()).add(line.shard)
    return keyframes
