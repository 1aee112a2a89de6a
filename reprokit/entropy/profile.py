"""The random profile of a run as a whole: its numbers, its seal, its fidelity in a replay."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from reprokit.entropy.files import REASONS, EntropyFile, entropy_files, open_regular
from reprokit.errors import RunDamaged
from reprokit.rundir import Fidelity, ProfileFacts

_BLOCK = 1 << 20


def _files(directory: Path) -> Iterator[EntropyFile]:
    for path in entropy_files(directory):
        with closing(EntropyFile(path)) as file:
            yield file


def digest(directory: Path) -> str:
    """SHA-256 over the name, size and content of every entropy file: the seal of a profile."""
    total = hashlib.sha256(b"reprokit-profile-1\0")
    for path in entropy_files(directory):
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            total.update(path.name.encode() + b"\0" + size.to_bytes(8, "little"))
            while block := file.read(_BLOCK):
                total.update(block)
    return "sha256:" + total.hexdigest()


def _is_alive(file: EntropyFile) -> bool:
    """Whether the process that writes this file may still run: its seal would not hold."""
    try:
        os.kill(file.head.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    import psutil  # only now: it takes longer to import than most commands to end

    with suppress(psutil.Error):
        process = psutil.Process(file.head.pid)
        its_own = process.create_time() <= file.head.started_ns / 1e9 + 1
        return bool(its_own and process.status() != psutil.STATUS_ZOMBIE)  # which writes no more
    return False


def being_written(directory: Path) -> bool:
    """Whether a process of the run, which must be one of this machine's, is still there without its launcher."""
    return any(_is_alive(file) for file in _files(directory))


def summarise(directory: Path) -> ProfileFacts:
    """The numbers of a recording, read from the files' heads, and the digest that seals it."""
    files = size = threads = events = entropy = withheld = 0
    identities, sealed = set(), True
    for file in _files(directory):
        files += 1
        size += file.size
        identities.add((file.head.identity, file.head.incarnation))
        for chunk in file.chunks():
            threads += chunk.ordinal == 0
            events += chunk.events
            entropy += chunk.bytes
        withheld += file.head.withheld
        sealed = sealed and not _is_alive(file)
    return ProfileFacts(
        digest=digest(directory), files=files, size=size, processes=len(identities), threads=threads,
        events=events, entropy=entropy, withheld=withheld, sealed=sealed,
    )  # fmt: skip


def check(directory: Path, facts: ProfileFacts | None = None) -> None:
    """Raise RunDamaged if the profile is not what was recorded: by its seal, else record by record."""
    if facts is not None and facts.sealed and digest(directory) == facts.digest:
        return
    for file in _files(directory):
        for _ in file.records():
            pass
    if facts is not None and facts.sealed:
        raise RunDamaged(
            f"{directory}: the random profile was altered after the run (its digest differs); record again"
        )


def fidelity(directory: Path, recorded: Path) -> Fidelity:
    """How the replay whose entropy directory this is was answered from the recorded one."""
    matches, given = [0] * 4, [0] * 4
    for file in _files(directory):
        matches = [a + b for a, b in zip(matches, file.head.matches, strict=True)]
        given = [a + b for a, b in zip(given, file.head.bytes, strict=True)]
    events = sum(chunk.events for file in _files(recorded) for chunk in file.chunks())
    return Fidelity(
        exact=matches[0], moved=matches[1], derived=matches[2], live=matches[3],
        exact_bytes=given[0], moved_bytes=given[1], derived_bytes=given[2], live_bytes=given[3],
        unused=max(0, events - matches[0] - matches[1]),
    )  # fmt: skip


def gave_up(directory: Path) -> list[str]:
    """One sentence for each process that the shim had to leave alone, and why."""
    words = []
    for file in _files(directory):
        if file.head.gave_up:
            error = f" ({os.strerror(file.head.gave_up_errno)})" if file.head.gave_up_errno else ""
            words.append(
                f"process {file.head.identity}: {REASONS[file.head.gave_up]}{error}; "
                f"{file.head.uncounted} later requests were not recorded"
            )
        elif file.head.uncounted:
            words.append(
                f"process {file.head.identity}: {file.head.uncounted} requests were not recorded, as the process had "
                "no descriptor free; raise its limit (ulimit -n)"
            )
    for name in _names(directory, ".lost"):
        reason, error_number = _lost(name)
        words.append(f"a process could not be recorded at all: {reason} ({error_number})")
    return words


def _names(directory: Path, ending: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(ending))
    except OSError:
        return []


def _lost(name: str) -> tuple[str, str]:
    """The reason in the name HASH-PID-REASON-ERRNO.lost of an empty file (native/record.c)."""
    parts = name.removesuffix(".lost").split("-")
    with suppress(ValueError, IndexError):
        return REASONS[int(parts[-2])], os.strerror(int(parts[-1]))
    return "for an unknown reason", "?"


def root_loaded(directory: Path) -> bool:
    """Whether the command's own process loaded the shim: it leaves a file even if it asks for nothing."""
    return any("/" not in file.head.identity and "+" not in file.head.identity for file in _files(directory))
