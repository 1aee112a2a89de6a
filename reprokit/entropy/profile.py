"""The random profile of a run as a whole: its numbers, its seal, its fidelity in a replay."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reprokit.core import native
from reprokit.core.bounds import open_file
from reprokit.core.errors import RunDamaged
from reprokit.entropy.files import CALENDAR_ENDS, REASONS, RUNTIMES, EntropyFile, EntropyHead, entropy_files
from reprokit.entropy.pool import processes
from reprokit.model.run import Fidelity, ProfileFacts

_BLOCK = 1 << 20
ROOT = b"0"  # identity of the command's own process
LATEST = 1 << 62  # nanoseconds since 1970: a start that is later was damaged
MAX_SENTENCES = 10  # about processes that could not be recorded


class ProcessCounts(NamedTuple):
    """What one process was given, in numbers."""

    head: EntropyHead
    keyed: tuple[int, int]
    threads: int
    events: int
    entropy: int

    @property
    def name(self) -> tuple[str, int]:
        return self.head.identity, self.head.incarnation


def _count(file: EntropyFile) -> ProcessCounts:
    threads = events = entropy = 0
    for chunk in file.request_chunks():
        threads += chunk.ordinal == 0
        events += chunk.events
        entropy += chunk.bytes
    return ProcessCounts(file.head, file.keyed, threads, events, entropy)


def count(directory: Path) -> list[ProcessCounts]:
    """Return the numbers of each process, from the heads of its file and of the chunks."""
    return [_count(file) for file in processes(directory)]


def started_at(directory: Path) -> int:
    """Return when the command's own process started, in nanoseconds since 1970; 0 if that is not known."""
    started = next((head.started_ns for head in _heads(directory, None) if not set("/+@") & set(head.identity)), 0)
    return started if started < LATEST else 0


def digest(directory: Path) -> str:
    """SHA-256 over the name, size and content of every entropy file: the seal of a profile."""
    total = hashlib.sha256(b"reprokit-profile-1\0")
    for path in entropy_files(directory):
        with os.fdopen(open_file(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            total.update(path.name.encode() + b"\0" + size.to_bytes(8, "little"))
            while block := file.read(_BLOCK):
                total.update(block)
    return "sha256:" + total.hexdigest()


def _is_alive(head: EntropyHead) -> bool:
    """Return whether the process that writes a file may still run: its seal would not hold."""
    try:
        os.kill(head.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    import psutil  # only now: it takes longer to import than most commands to end

    with suppress(psutil.Error):
        process = psutil.Process(head.pid)
        its_own = process.create_time() <= head.started_ns / 1e9 + 1
        return bool(its_own and process.status() != psutil.STATUS_ZOMBIE)  # which writes no more
    return False


def being_written(directory: Path) -> bool:
    """Return whether a process of the run, which must be one of this machine's, is still there without its launcher."""
    return any(_is_alive(file.head) for file in processes(directory))


def _sizes(directory: Path) -> tuple[int, int]:
    """Return how many entropy files there are, and their bytes."""
    paths = entropy_files(directory)
    return len(paths), sum(os.lstat(path).st_size for path in paths)


def summarize(directory: Path, counts: Sequence[ProcessCounts] | None = None) -> ProfileFacts:
    """Return the numbers of a recording, as ``count`` gives them, and the digest that seals it."""
    counts = count(directory) if counts is None else counts
    files, size = _sizes(directory)
    sealed = not any(_is_alive(each.head) for each in counts)
    events, entropy = _given(counts)
    return ProfileFacts(
        digest=digest(directory), files=files, size=size, sealed=sealed,
        processes=len({each.name for each in counts}),
        threads=sum(each.threads + each.head.streams for each in counts),
        events=events, entropy=entropy,
        withheld=sum(each.head.withheld for each in counts),
    )  # fmt: skip


def _given(counts: Sequence[ProcessCounts]) -> tuple[int, int]:
    """Requests of a recording, and the bytes that they were given."""
    return sum(each.events + each.keyed[0] for each in counts), sum(each.entropy + each.keyed[1] for each in counts)


def check(directory: Path, facts: ProfileFacts | None = None) -> None:
    """Raise RunDamaged if the profile is not what run.json says of it: by its seal and its numbers."""
    check_seal(directory, facts)
    if facts is not None and facts.sealed and _given(count(directory)) != (facts.events, facts.entropy):
        raise RunDamaged(f"{directory}: run.json counts other requests than its random profile holds; record again")


def check_seal(directory: Path, facts: ProfileFacts | None = None) -> None:
    """Raise RunDamaged if the profile is not what was recorded: by its seal, else record by record."""
    if facts is not None and facts.sealed and _has_sizes(directory, facts) and digest(directory) == facts.digest:
        return
    for file in processes(directory):
        for _ in file.records():
            pass
    if facts is not None and facts.sealed:
        raise RunDamaged(
            f"{directory}: the random profile was altered after the run (its digest differs); record again"
        )


def _has_sizes(directory: Path, facts: ProfileFacts) -> bool:
    """Return whether number and sizes of the files are those of the end of the run, before any is read."""
    if _sizes(directory) == (facts.files, facts.size):
        return True
    raise RunDamaged(
        f"{directory}: the random profile was altered after the run: other files, or of another size; record again"
    )


def _as_recorded(
    process: ProcessCounts, keyed: Mapping[tuple[str, int], tuple[int, int]]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the counts of a replaying process; of a keyed run's, what went beyond the recording counts as derived."""
    matches, given = process.head.matches, process.head.bytes
    if not process.head.streams:
        return matches, given
    known = keyed.get(process.name, (0, 0))
    exact, exact_bytes = min(matches[0], known[0]), min(given[0], known[1])
    return (exact, 0, matches[0] - exact, 0), (exact_bytes, 0, given[0] - exact_bytes, 0)


def fidelity(
    directory: Path,
    recorded: Path,
    counts: Sequence[ProcessCounts] | None = None,
    facts: ProfileFacts | None = None,
) -> Fidelity:
    """Return how the replay whose entropy directory this is was answered from the recorded one.

    What a sealed recording's facts say is taken from there: verify counts again.
    """
    matches, given, clock, clock_past = [0] * 4, [0] * 4, 0, 0
    counts = count(directory) if counts is None else counts
    is_told = facts is not None and facts.sealed
    before = [] if is_told and not any(process.head.streams for process in counts) else count(recorded)
    keyed = {process.name: process.keyed for process in before}
    for process in counts:
        answered = _as_recorded(process, keyed)
        matches = [a + b for a, b in zip(matches, answered[0], strict=True)]
        given = [a + b for a, b in zip(given, answered[1], strict=True)]
        clock, clock_past = clock + process.head.clock_reads, clock_past + process.head.clock_past
    events = facts.events if facts is not None and facts.sealed else _given(before)[0]
    return Fidelity(
        exact=matches[0], moved=matches[1], derived=matches[2], live=matches[3],
        exact_bytes=given[0], moved_bytes=given[1], derived_bytes=given[2], live_bytes=given[3],
        unused=max(0, events - matches[0] - matches[1]), clock=clock, clock_past=clock_past,
    )  # fmt: skip


def _heads(directory: Path, counts: Sequence[ProcessCounts] | None) -> Iterator[EntropyHead]:
    if counts is not None:
        return (each.head for each in counts)
    return (file.head for file in processes(directory))


def gave_up(directory: Path, counts: Sequence[ProcessCounts] | None = None) -> list[str]:
    """Return a sentence for each of the first processes that the shim had to leave alone, and why."""
    words = []
    for head in _heads(directory, counts):
        if head.gave_up:
            error = f" ({_meaning(head.gave_up_errno)})" if head.gave_up_errno else ""
            words.append(
                f"process {head.identity}: {REASONS[head.gave_up]}{error}; "
                f"{head.uncounted} later requests were not recorded"
            )
        elif head.uncounted:
            words.append(
                f"process {head.identity}: {head.uncounted} requests were not recorded, as the process had "
                "no descriptor free; raise its limit (ulimit -n)"
            )
        if head.unprinted:
            words.append(
                f"process {head.identity}: {head.unprinted} bytes that it printed are not kept, as no file could be "
                "opened for them; raise its limit of descriptors (ulimit -n)"
            )
    for (reason, error), number in Counter(map(_lost, _names(directory, ".lost"))).items():
        who = "a process" if number == 1 else f"{number} processes"
        words.append(f"{who} could not be recorded at all: {reason} ({error})")
    more = len(words) - MAX_SENTENCES
    return words if more <= 0 else [*words[:MAX_SENTENCES], f"{more} more such processes or reasons"]


def withheld_runtimes(directory: Path, counts: Sequence[ProcessCounts] | None = None) -> list[str]:
    """Return a sentence for each runtime whose requests were withheld, although not all have to have been for keys."""
    programs: dict[int, set[str]] = {}
    for head in _heads(directory, counts):
        for bit in RUNTIMES if head.withheld and head.runtimes else ():
            if head.runtimes & bit:
                programs.setdefault(bit, set()).add(os.path.basename(head.program))
    return [
        f"{', '.join(sorted(names)[:MAX_SENTENCES])}: {RUNTIMES[bit]} is given fresh bytes in every run, as they can "
        "be keys; --include-crypto records them"
        for bit, names in programs.items()
    ]


def full_calendars(directory: Path, counts: Sequence[ProcessCounts] | None = None) -> list[str]:
    """Return a sentence for each of the first processes that read the clock more often than is recorded."""
    full = [head for head in _heads(directory, counts) if head.calendar_full]
    words = [
        f"process {head.identity} of {os.path.basename(head.program)} "
        f"{CALENDAR_ENDS.get(head.calendar_full, CALENDAR_ENDS[2])}: in a replay the time goes on from the last one"
        for head in full[:MAX_SENTENCES]
    ]
    return words if len(full) <= MAX_SENTENCES else [*words, f"{len(full) - MAX_SENTENCES} more such processes"]


def _names(directory: Path, ending: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(ending))
    except OSError:
        return []


def _meaning(errno: int) -> str:
    """Return an errno in words; a file from elsewhere may hold any number."""
    return os.strerror(errno) if errno < 1 << 31 else f"error {errno}"


def _lost(name: str) -> tuple[str, str]:
    """Return the reason in the name HASH-PID-REASON-ERRNO.lost of an empty file (native/recorder/record.c)."""
    parts = name.removesuffix(".lost").split("-")
    with suppress(ValueError, IndexError):
        return REASONS[int(parts[-2])], _meaning(int(parts[-1]))
    return "for an unknown reason", "?"


def programs(directory: Path) -> set[str]:
    """Return the paths of the programs that loaded the shim."""
    return {head.program for head in _heads(directory, None)}


def is_python(program: str) -> bool:
    """Return whether a program is an interpreter of Python, by the name of its file."""
    return os.path.basename(program).startswith(("python", "pypy"))


def root_loaded(directory: Path, counts: Sequence[ProcessCounts] | None = None) -> bool:
    """Return whether the command's own process loaded the shim: it leaves a file even if it asks for nothing.

    One that could not make its file has left an empty one, of a name that says why.
    """
    lost = f"{native.checker()(ROOT, 0):016x}-"
    if any(name.startswith(lost) for name in _names(directory, ".lost")):
        return True
    return any(not set("/+@") & set(head.identity) for head in _heads(directory, counts))


def fresh_requests(directory: Path) -> int:
    """Return how many requests nobody answered while the supervisor was stopped: a byte each (native/supervisor)."""
    try:
        return (directory / "fresh").lstat().st_size
    except OSError:
        return 0
