"""The random profile of a run as a whole: its numbers, its seal, its fidelity in a replay."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from reprokit import native
from reprokit.entropy.files import REASONS, RUNTIMES, EntropyFile, entropy_files, open_regular
from reprokit.errors import RunDamaged
from reprokit.model.run import Fidelity, ProfileFacts

_BLOCK = 1 << 20
ROOT = b"0"  # identity of the command's own process
MAX_SENTENCES = 10  # about processes that could not be recorded


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
        identities.add(_process(file))
        for chunk in file.chunks():
            threads += chunk.ordinal == 0 and not file.is_of_the_clock(chunk)
            events += chunk.events
            entropy += chunk.bytes
        events, entropy = events + file.keyed[0], entropy + file.keyed[1]
        threads += file.head.streams
        withheld += file.head.withheld
        sealed = sealed and not _is_alive(file)
    return ProfileFacts(
        digest=digest(directory), files=files, size=size, processes=len(identities), threads=threads,
        events=events, entropy=entropy, withheld=withheld, sealed=sealed,
    )  # fmt: skip


def check(directory: Path, facts: ProfileFacts | None = None) -> None:
    """Raise RunDamaged if the profile is not what was recorded: by its seal, else record by record."""
    if facts is not None and facts.sealed and _has_sizes(directory, facts) and digest(directory) == facts.digest:
        return
    for file in _files(directory):
        for _ in file.records():
            pass
    if facts is not None and facts.sealed:
        raise RunDamaged(
            f"{directory}: the random profile was altered after the run (its digest differs); record again"
        )


def _has_sizes(directory: Path, facts: ProfileFacts) -> bool:
    """Whether number and sizes of the files are those of the end of the run, before any is read."""
    paths = entropy_files(directory)
    if (len(paths), sum(os.lstat(path).st_size for path in paths)) == (facts.files, facts.size):
        return True
    raise RunDamaged(
        f"{directory}: the random profile was altered after the run: other files, or of another size; record again"
    )


def _process(file: EntropyFile) -> tuple[str, int]:
    return file.head.identity, file.head.incarnation


def _as_recorded(
    file: EntropyFile, keyed: Mapping[tuple[str, int], tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The counts of a replaying process; of a keyed run's, what went beyond the recording counts as derived."""
    matches, given = file.head.matches, file.head.bytes
    if not file.head.streams:
        return matches, given
    known = keyed.get(_process(file), (0, 0))
    exact, exact_bytes = min(matches[0], known[0]), min(given[0], known[1])
    return (exact, 0, matches[0] - exact, 0), (exact_bytes, 0, given[0] - exact_bytes, 0)


def fidelity(directory: Path, recorded: Path) -> Fidelity:
    """How the replay whose entropy directory this is was answered from the recorded one."""
    matches, given, clock, clock_past = [0] * 4, [0] * 4, 0, 0
    keyed = {_process(file): file.keyed for file in _files(recorded)}
    for file in _files(directory):
        answered = _as_recorded(file, keyed)
        matches = [a + b for a, b in zip(matches, answered[0], strict=True)]
        given = [a + b for a, b in zip(given, answered[1], strict=True)]
        clock, clock_past = clock + file.head.clock_reads, clock_past + file.head.clock_past
    events = sum(chunk.events for file in _files(recorded) for chunk in file.chunks())
    events += sum(requests for requests, _ in keyed.values())
    return Fidelity(
        exact=matches[0], moved=matches[1], derived=matches[2], live=matches[3],
        exact_bytes=given[0], moved_bytes=given[1], derived_bytes=given[2], live_bytes=given[3],
        unused=max(0, events - matches[0] - matches[1]), clock=clock, clock_past=clock_past,
    )  # fmt: skip


def gave_up(directory: Path) -> list[str]:
    """A sentence for each of the first processes that the shim had to leave alone, and why."""
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
    for (reason, error), number in Counter(map(_lost, _names(directory, ".lost"))).items():
        who = "a process" if number == 1 else f"{number} processes"
        words.append(f"{who} could not be recorded at all: {reason} ({error})")
    more = len(words) - MAX_SENTENCES
    return words if more <= 0 else [*words[:MAX_SENTENCES], f"{more} more such processes or reasons"]


def withheld_runtimes(directory: Path) -> list[str]:
    """A sentence for each runtime whose requests were withheld, although not all have to have been for keys."""
    programs: dict[int, set[str]] = {}
    for file in _files(directory):
        for bit in RUNTIMES:
            if file.head.withheld and file.head.runtimes & bit:
                programs.setdefault(bit, set()).add(os.path.basename(file.head.program))
    return [
        f"{', '.join(sorted(names)[:MAX_SENTENCES])}: {RUNTIMES[bit]} is given fresh bytes in every run, as they can "
        "be keys; --include-crypto records them"
        for bit, names in programs.items()
    ]


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
    """Whether the command's own process loaded the shim: it leaves a file even if it asks for nothing.

    One that could not make its file has left an empty one, of a name that says why.
    """
    lost = f"{native.checker()(ROOT, 0):016x}-"
    if any(name.startswith(lost) for name in _names(directory, ".lost")):
        return True
    return any(not set("/+@") & set(file.head.identity) for file in _files(directory))
