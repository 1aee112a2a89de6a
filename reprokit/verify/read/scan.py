"""Reads metrics.jsonl in bounded memory: each series of lines becomes a chain of chunk digests.

A long training leaves tens of millions of lines, and two runs interleave the lines of their
processes differently, so neither holding them nor walking two files side by side is an option (the
one that is ahead would have to be buffered without bound). Instead, one pass over each file gives
every series, which is what one process said about one thing, the digests of its chunks: some
kilobytes for a million lines. Equal digests are equal series. For those that differ, the first chunk
that does says where to look, and a second pass keeps the lines of that chunk alone. Chunk borders
depend on nothing but the lines before them, so equal beginnings have equal borders.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprokit.errors import ReprokitError, RunDamaged
from reprokit.printable import printable
from reprokit.rundir import METRICS, RunDirectory
from reprokit.verify.read import metric_lines
from reprokit.verify.read.normalization import Normalizations

CHUNK_LINES = 1024
CHUNK_BYTES = 64 << 10
MAX_SERIES = 250_000  # a run with more is no training
MAX_SORTED = 100_000  # lines of a series that are put in order when threads wrote them out of it
MAX_VARIABLES = 10_000
MAX_VALUES = 1000  # of one of them
MAX_KEPT = 128 << 20  # bytes of lines held in memory at once
_NOT_COMPARED = (metric_lines.SeedCountLine, metric_lines.PatchedLine, metric_lines.OrderLine, metric_lines.OrdersLine)


class SeriesKey(NamedTuple):
    """Names a series: what one process says about one thing."""

    process: str  # identity; "0 (second start)" for a second incarnation
    kind: str
    name: str

    @property
    def order(self) -> tuple[Any, ...]:
        """Sorts processes and names as people count."""
        return natural(self.process), self.kind, natural(self.name)


def of_process(name: str, process: str) -> str:
    """Return a name for people: what belongs to the command's own process needs no process beside it."""
    return name if process in ("", "0") else f"{name} of process {process}"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which 2 comes before 10."""
    parts = re.split(r"(\d{1,18})", text)
    return tuple((0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts if part)


class ScannedSeries:
    """The lines of one key: their number, their chunk digests and the last of them."""

    def __init__(self) -> None:
        self.count = 0
        self.chunks: list[tuple[int, bytes]] = []  # position of the first line, digest
        self.ordered = True  # whether steps and epochs never went backwards
        self.place: tuple[int, int] = (-1, -1)
        self.first: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.last_size = 0
        self.places = self.arguments = 0  # of seeds: hashes of what is not compared
        self._hash = hashlib.blake2b(digest_size=16)
        self._pending = 0
        self._pending_bytes = 0

    def add(self, data: bytes, place: tuple[int, int]) -> None:
        """Append a line by its content, which holds no line break."""
        self._hash.update(data + b"\n")
        self.count += 1
        self._pending += 1
        self._pending_bytes += len(data)
        self.ordered = self.ordered and place >= self.place
        self.place = place
        if self._pending >= CHUNK_LINES or self._pending_bytes >= CHUNK_BYTES:
            self.close()

    def close(self) -> None:
        """End the chunk."""
        if self._pending:
            self.chunks.append((self.count - self._pending, self._hash.digest()))
            self._hash = hashlib.blake2b(digest_size=16)
            self._pending = self._pending_bytes = 0


@dataclass
class ScannedProcess:
    """One process of a run, as far as its lines tell."""

    count: int = 0  # of its lines
    highest: int = -1
    total: int = 0  # of the lines' numbers
    began: bool = False
    ended: bool = False
    was_stopped: bool = False  # by a signal of another process of the run, before it came to its end
    outcomes: bool = False  # it recorded losses, weights or the like: no mere helper
    agent: metric_lines.AgentStartLine | None = None

    @property
    def whole(self) -> bool:
        """Whether its lines are numbered 0, 1, ... without a gap or a repetition."""
        return self.count == self.highest + 1 and 2 * self.total == self.count * self.highest

    @property
    def lost(self) -> int:
        """Lines that were numbered and are not there."""
        return max(0, self.highest + 1 - self.count)


@dataclass
class ReplacedSeeds:
    """The seeds of a process that were given the recorded value in a replay."""

    count: int
    first: metric_lines.SeedLine


@dataclass
class VariableStates:
    """What the processes of a run found when they asked for one environment variable."""

    where: str  # the first place
    presence: set[bool] = field(default_factory=set)  # whether it was set; both, if it changed
    digests: set[tuple[str, str]] = field(default_factory=set)  # with the key of each
    is_cut: bool = False  # there were more, or a value had no digest

    @property
    def keys(self) -> set[str]:
        """The keys of the digests."""
        return {key for key, _ in self.digests}

    def add(self, line: metric_lines.VariableLine) -> None:
        """Take in another line."""
        self.presence.add(line.set)
        self.is_cut = self.is_cut or line.undigested
        if line.digest is not None:
            if len(self.digests) < MAX_VALUES:
                self.digests.add((line.key, line.digest))
            self.is_cut = self.is_cut or (line.key, line.digest) not in self.digests


@dataclass
class MetricsScan:
    """What metrics.jsonl holds, in bounded memory."""

    series: dict[SeriesKey, ScannedSeries] = field(default_factory=dict)
    processes: dict[str, ScannedProcess] = field(default_factory=dict)
    frameworks: dict[str, set[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    kept: int = 0
    all_seeds: int = 0  # a sum over the seeds of all processes that does not depend on their order
    replaced: dict[str, ReplacedSeeds] = field(default_factory=dict)
    trackers: list[metric_lines.TrackerLine] = field(default_factory=list)
    variables: dict[str, VariableStates] = field(default_factory=dict)  # that the user's code asked for

    def has(self, kinds: frozenset[str]) -> bool:
        """Return whether there is a line of one of these kinds."""
        return any(key.kind in kinds for key in self.series)


class _IncarnationNames:
    """Gives the lines of a second process of the same identity a name of their own."""

    def __init__(self) -> None:
        self._known: dict[str, list[ScannedProcess]] = {}

    def assign(self, identity: str, number: int) -> tuple[str, ScannedProcess]:
        known = self._known.setdefault(identity, [])
        index = self._index(known, number)
        if index == len(known):
            known.append(ScannedProcess())
        process = known[index]
        process.count += 1
        process.total += number
        if number > process.highest:
            process.highest = number
        if number == 0:
            process.began = True
        return (identity if index == 0 else f"{identity} (start {index + 1})"), process

    @staticmethod
    def _index(known: list[ScannedProcess], number: int) -> int:
        if number == 0:
            return len(known) - 1 if known and not known[-1].began else len(known)
        for index in range(len(known) - 1, -1, -1):
            if known[index].highest == number - 1:
                return index
        return max(0, len(known) - 1)


class NamedLine(NamedTuple):
    """A line with the names under which it is compared."""

    key: SeriesKey
    process: ScannedProcess
    raw: dict[str, Any]
    line: metric_lines.MetricLine | None  # None for a kind that this version does not know


def read(run: RunDirectory) -> Iterator[NamedLine]:
    """Yield the lines of a run, checked, with their keys."""
    incarnations = _IncarnationNames()
    for number, raw in enumerate(run.metrics(), 1):
        try:
            line = metric_lines.checked(raw)
        except ReprokitError as error:
            raise type(error)(f"{run.path / METRICS}, line {number}: {error}") from None
        label, process = incarnations.assign(raw["p"], raw["n"])
        yield NamedLine(_key(label, raw), process, raw, line)


def _key(label: str, raw: dict[str, Any]) -> SeriesKey:
    kind = raw["k"]
    if kind in ("weights", "optimizer"):
        return SeriesKey(label, metric_lines.END_WEIGHTS if raw.get("at") == "end" else kind, raw["object"])
    return SeriesKey(label, kind, raw.get("thread", "") if kind == "seed" else str(raw.get("name", "")))


def scan(
    run: RunDirectory,
    normalizations: Normalizations,
    check: Callable[[metric_lines.MetricLine | None], None] | None = None,
) -> MetricsScan:
    """One pass over metrics.jsonl; what it refers to can be checked with each line."""
    result = MetricsScan()
    for place in read(run):
        if check is not None:
            check(place.line)
        result.processes.setdefault(place.key.process, place.process)
        if not _note(result, place):
            _append(run, result, place, normalizations)
    for series in result.series.values():
        series.close()
    targets = {signal.target for signal in run.run.signals}
    for process in result.processes.values():
        process.was_stopped = not process.ended and process.agent is not None and process.agent.pid in targets
    return result


def _note(result: MetricsScan, place: NamedLine) -> bool:
    """Take in a line that is no member of a series."""
    line = place.line
    if isinstance(line, metric_lines.LossLine):
        return False
    if isinstance(line, metric_lines.AgentStartLine):
        place.process.agent = line
    elif isinstance(line, metric_lines.EndLine):
        place.process.ended = True
    elif isinstance(line, metric_lines.FrameworkLine):
        result.frameworks.setdefault(line.name, set()).add(line.version)
    elif isinstance(line, _NOT_COMPARED):
        return True
    elif isinstance(line, metric_lines.SeedLine):
        _note_replaced(result, place.key.process, line)
        return False
    elif isinstance(line, metric_lines.TrackerLine):
        if len(result.trackers) < 100:
            result.trackers.append(line)
    elif isinstance(line, metric_lines.VariableLine):
        if line.name in result.variables or len(result.variables) < MAX_VARIABLES:
            result.variables.setdefault(line.name, VariableStates(line.where)).add(line)
    elif isinstance(line, metric_lines.WarningLine):
        if len(result.warnings) < 100:
            result.warnings.append(line.text)
    else:
        return False
    return True


def _note_replaced(result: MetricsScan, process: str, line: metric_lines.SeedLine) -> None:
    if line.asked is None:
        return
    if process in result.replaced:
        result.replaced[process].count += 1
    elif len(result.replaced) < MAX_SERIES:
        result.replaced[process] = ReplacedSeeds(1, line)


def _append(run: RunDirectory, result: MetricsScan, place: NamedLine, normalizations: Normalizations) -> None:
    series = result.series.get(place.key)
    if series is None:
        if len(result.series) >= MAX_SERIES:
            name = printable(place.key.name, 60)
            raise RunDamaged(f"{run.path / METRICS} holds more than {MAX_SERIES} series, like {name}")
        series = result.series[place.key] = ScannedSeries()
        place.process.outcomes = place.process.outcomes or place.key.kind in metric_lines.OUTCOMES
    data = metric_lines.content(place.raw, normalizations)
    series.add(data, order_of(place.raw))
    if place.key.kind == "seed":
        series.places = hash((series.places, place.raw["where"]))
        series.arguments = hash((series.arguments, place.raw["argument"]))
        digest = hashlib.blake2b(data, digest_size=16).digest()
        result.all_seeds = (result.all_seeds + int.from_bytes(digest, "big")) % (1 << 128)
    _keep(result, series, place.raw, len(data))


def _keep(result: MetricsScan, series: ScannedSeries, raw: dict[str, Any], size: int) -> None:
    """Hold the first and the last line of a series, within bounds, for people to look at."""
    is_first = series.count == 1
    if not is_first:
        result.kept -= series.last_size
    fits = result.kept + size <= MAX_KEPT
    series.last, series.last_size = (raw, size) if fits else (None, 0)
    if is_first:
        series.first, series.last_size = series.last, 0
    result.kept += size if fits else 0


def order_of(raw: dict[str, Any]) -> tuple[int, int]:
    """Return where a line stands in its series by its own account."""
    epoch, step = raw.get("epoch"), raw.get("step")
    return (epoch if type(epoch) is int else -1, step if type(step) is int else -1)


def collect(run: RunDirectory, wanted: dict[SeriesKey, range]) -> dict[SeriesKey, list[dict[str, Any]]]:
    """Return the lines at these positions of these series, as many as fit into memory; a second pass.

    The first pass has checked every line, so this one need not.
    """
    found: dict[SeriesKey, list[dict[str, Any]]] = {key: [] for key in wanted}
    positions = dict.fromkeys(wanted, 0)
    incarnations = _IncarnationNames()
    room = MAX_KEPT
    for raw in run.metrics() if wanted else ():
        key = _key(incarnations.assign(raw["p"], raw["n"])[0], raw)
        if key not in wanted:
            continue
        position = positions[key]
        positions[key] = position + 1
        if position in wanted[key] and room > 0:
            found[key].append(raw)
            room -= 512 if key.kind == "loss" else len(str(raw))
    return found
