"""Reads metrics.jsonl and numbers in bounded memory: each series of lines becomes a chain of chunk digests.

A long training leaves tens of millions of lines, and two runs interleave the lines of their
processes differently. So neither keeping them in memory nor walking two files side by side is possible:
the file that is ahead would need an unbounded buffer. Instead, one pass over each file computes
digests of chunks for every series, which is what one process reports about one thing: some
kilobytes for a million lines. Equal digests mean equal series. For series that differ, the first
differing chunk is read in a second pass, which keeps the lines of that chunk only. Chunk borders
depend on the preceding lines only, so equal beginnings have equal borders. Records of numbers count as lines: those of
a series come behind its lines in metrics.jsonl, of which it rarely has any.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprokit.core.errors import ReprokitError, RunDamaged
from reprokit.core.printable import printable
from reprokit.model.run import RunFile, signal_name
from reprokit.model.run_warning import RunWarning, distinct
from reprokit.run_files import numbers
from reprokit.run_files.numbers import ProcessNumbers, SeriesPart
from reprokit.run_files.rundir import METRICS, RunDirectory
from reprokit.verify.read import metric_lines
from reprokit.verify.read.normalization import Normalizations

CHUNK_LINES = 1024
CHUNK_BYTES = 64 << 10
MAX_SERIES = 250_000  # a run with more is refused
MAX_SORTED = 100_000  # lines of a series that are sorted if threads wrote them out of order
MAX_VARIABLES = 10_000
MAX_WARNINGS = 100
MAX_VALUES = 1000  # values kept of one variable
MAX_KEPT = 128 << 20  # bytes of lines held in memory at once
LINE_SIZE = 512  # bytes that a line with one number takes there
_ALL = 1 << 62  # more lines than there are
_NOT_COMPARED = (metric_lines.SeedCountLine, metric_lines.PatchedLine, metric_lines.OrderLine, metric_lines.OrdersLine)


class SeriesKey(NamedTuple):
    """The name of a series: what one process reports about one thing."""

    process: str  # identity; "0 (second start)" for a second incarnation
    kind: str
    name: str

    @property
    def order(self) -> tuple[Any, ...]:
        """Return a sort key with natural order of numbers in names."""
        return natural(self.process), self.kind, natural(self.name)


def of_process(name: str, process: str) -> str:
    """Return a name for users; the command's own process is not mentioned."""
    return name if process in ("", "0") else f"{name} of process {process}"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key in which 2 comes before 10."""
    parts = re.split(r"(\d{1,18})", text)
    return tuple((0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts if part)


class ScannedSeries:
    """The lines of one key: their number, their chunk digests, and the first and last line."""

    def __init__(self) -> None:
        self.count = 0
        self.chunks: list[tuple[int, bytes]] = []  # position of the first line, digest
        self.ordered = True  # whether steps and epochs never went backwards
        self.place: tuple[int, int] = (-1, -1)
        self.first: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.last_size = 0
        self.places = self.arguments = 0  # of seeds: hashes of fields that are not compared
        self._hash = hashlib.blake2b(digest_size=16)
        self._pending = 0
        self._pending_bytes = 0

    def add(self, data: bytes, place: tuple[int, int]) -> None:
        """Append a line by its compared content, which holds no line break."""
        self._hash.update(data + b"\n")
        self.count += 1
        self._pending += 1
        self._pending_bytes += len(data)
        self.ordered = self.ordered and place >= self.place
        self.place = place
        if self._pending >= CHUNK_LINES or self._pending_bytes >= CHUNK_BYTES:
            self.close()

    def add_numbers(self, part: SeriesPart) -> None:
        """Append records, each as add() would append the line that it stands for."""
        prefix = part.prefix
        size, done = len(prefix) + len(part.contents[0]), 0
        while done < len(part.contents):
            room = min(CHUNK_LINES - self._pending, -(-(CHUNK_BYTES - self._pending_bytes) // size))
            some = part.contents[done : done + room]
            self._hash.update(prefix + (b"\n" + prefix).join(some) + b"\n")
            done += len(some)
            self.count += len(some)
            self._pending += len(some)
            self._pending_bytes += size * len(some)
            if len(some) == room:
                self.close()
        self.ordered = self.ordered and part.place(0) >= self.place and part.ordered
        self.place = part.place(-1)

    def close(self) -> None:
        """End the chunk."""
        if self._pending:
            self.chunks.append((self.count - self._pending, self._hash.digest()))
            self._hash = hashlib.blake2b(digest_size=16)
            self._pending = self._pending_bytes = 0


@dataclass
class ScannedProcess:
    """One process of a run, as its lines describe it."""

    count: int = 0  # number of its lines
    numbers: int = 0  # of its records of numbers
    lost_numbers: int = 0  # records that it began and did not write
    highest: int = -1
    total: int = 0  # sum of the lines' numbers
    began: bool = False
    ended: bool = False
    was_stopped: bool = False  # ended by a signal of another process of the run
    killed_by: str = ""  # the name of the signal that ended it, as its parent saw
    outcomes: bool = False  # it recorded losses, weights or the like, so it is no helper
    agent: metric_lines.AgentStartLine | None = None

    @property
    def death(self) -> str:
        """Return the signal that ended it, unless another process of the run sent it."""
        return "" if self.was_stopped else self.killed_by

    @property
    def whole(self) -> bool:
        """Return whether its lines are numbered 0, 1, ... without gaps or repetitions."""
        is_numbered = self.count == self.highest + 1 and 2 * self.total == self.count * self.highest
        return is_numbered and not self.lost_numbers

    @property
    def recorded(self) -> int:
        """Return the number of its lines and records."""
        return self.count + self.numbers

    @property
    def lost(self) -> int:
        """Return the number of missing lines."""
        return max(0, self.highest + 1 - self.count) + self.lost_numbers


@dataclass
class ReplacedSeeds:
    """The seeds of a process that a replay replaced by recorded values."""

    count: int
    first: metric_lines.SeedLine


@dataclass
class VariableStates:
    """The values of one environment variable that the processes of a run read."""

    where: str  # the first place
    presence: set[bool] = field(default_factory=set)  # whether it was set; both, if it changed
    digests: set[tuple[str, str]] = field(default_factory=set)  # key and digest
    is_cut: bool = False  # whether there were more values, or one without digest

    @property
    def keys(self) -> set[str]:
        """Return the keys of the digests."""
        return {key for key, _ in self.digests}

    def add(self, line: metric_lines.VariableLine) -> None:
        """Add a line about this variable."""
        self.presence.add(line.set)
        self.is_cut = self.is_cut or line.undigested
        if line.digest is not None:
            if len(self.digests) < MAX_VALUES:
                self.digests.add((line.key, line.digest))
            self.is_cut = self.is_cut or (line.key, line.digest) not in self.digests


@dataclass
class MetricsScan:
    """The content of metrics.jsonl in bounded memory."""

    series: dict[SeriesKey, ScannedSeries] = field(default_factory=dict)
    processes: dict[str, ScannedProcess] = field(default_factory=dict)
    frameworks: dict[str, set[str]] = field(default_factory=dict)
    warnings: list[RunWarning] = field(default_factory=list)  # each thing that is warned of once
    optimizers_made: int = 0  # by the script, also those without a step
    kept: int = 0
    all_seeds: int = 0  # an order-independent sum over the seeds of all processes
    replaced: dict[str, ReplacedSeeds] = field(default_factory=dict)
    trackers: list[metric_lines.TrackerLine] = field(default_factory=list)
    variables: dict[str, VariableStates] = field(default_factory=dict)  # read by the user's code

    def has(self, kinds: frozenset[str]) -> bool:
        """Return whether there is a line of one of these kinds."""
        return any(key.kind in kinds for key in self.series)


class _IncarnationNames:
    """Names further processes with the same identity apart."""

    def __init__(self) -> None:
        self._processes: dict[str, list[ScannedProcess]] = {}

    def assign(self, identity: str, number: int) -> tuple[str, ScannedProcess]:
        incarnations = self._processes.setdefault(identity, [])
        index = self._index(incarnations, number)
        if index == len(incarnations):
            incarnations.append(ScannedProcess())
        process = incarnations[index]
        process.count += 1
        process.total += number
        if number > process.highest:
            process.highest = number
        if number == 0:
            process.began = True
        return (identity if index == 0 else f"{identity} (start {index + 1})"), process

    @staticmethod
    def _index(incarnations: list[ScannedProcess], number: int) -> int:
        if number == 0:
            return len(incarnations) - 1 if incarnations and not incarnations[-1].began else len(incarnations)
        for index in range(len(incarnations) - 1, -1, -1):
            if incarnations[index].highest == number - 1:
                return index
        return max(0, len(incarnations) - 1)


class NamedLine(NamedTuple):
    """A line with the key of its series."""

    key: SeriesKey
    process: ScannedProcess
    raw: dict[str, Any]
    line: metric_lines.MetricLine | None  # None for a kind that this version does not know


class _NumberFiles:
    """Finds the files of numbers that belong to the processes which metrics.jsonl names."""

    def __init__(self, run: RunDirectory) -> None:
        self._files = list(numbers.read(run))
        self._noted: set[str] = set()
        self.of: dict[str, ProcessNumbers] = {}  # by the name of the process

    def note(self, label: str, line: dict[str, Any]) -> None:
        """Look at a line of a process: the process id of its first one tells which file is its own."""
        if not self._files or label in self._noted:
            return
        self._noted.add(label)
        for file in self._files:
            if file.process == line["p"] and file.pid == line.get("pid", file.pid):
                self.of[label] = file
                self._files.remove(file)
                return

    def parts(self) -> Iterator[tuple[str, SeriesPart]]:
        """Yield the records of all processes, each part with the name of its process."""
        for label, file in (*self.of.items(), *self.rest()):
            yield from ((label, part) for part in file.parts())

    def rest(self) -> Iterator[tuple[str, ProcessNumbers]]:
        """Yield name and file of processes that wrote no line."""
        for file in self._files:
            yield file.process + (f" (start {file.incarnation + 1})" if file.incarnation else ""), file


class _NumberLines:
    """The numbers of a process as lines, to be merged with its other lines."""

    def __init__(self, label: str, process: ScannedProcess, file: ProcessNumbers) -> None:
        self._label, self._process, self._lines = label, process, file.lines()
        self._next = next(self._lines, None)

    def until(self, number: int) -> Iterator[NamedLine]:
        """Yield those that were written before the line of this number."""
        while self._next is not None and self._next[0] <= number:
            raw = {"n": self._next[0], "t": 0.0, **self._next[1]}
            yield NamedLine(_key(self._label, raw), self._process, raw, metric_lines.checked(raw))
            self._next = next(self._lines, None)


def read(run: RunDirectory, *, has_numbers: bool = False) -> Iterator[NamedLine]:
    """Yield the lines of a run, validated, with their keys; if asked for, with its numbers as lines, too.

    Those of a process come in the order in which it wrote them.
    """
    incarnations, files = _IncarnationNames(), _NumberFiles(run) if has_numbers else None
    waiting: dict[str, _NumberLines] = {}
    for number, raw in enumerate(run.metrics(), 1):
        try:
            line = metric_lines.checked(raw)
        except ReprokitError as error:
            raise type(error)(f"{run.path / METRICS}, line {number}: {error}") from None
        label, process = incarnations.assign(raw["p"], raw["n"])
        if files is not None:
            files.note(label, raw)
            if label in files.of:
                waiting.setdefault(label, _NumberLines(label, process, files.of[label]))
        if label in waiting:
            yield from waiting[label].until(raw["n"])
        yield NamedLine(_key(label, raw), process, raw, line)
    for label, file in files.rest() if files is not None else ():
        waiting[label] = _NumberLines(label, ScannedProcess(), file)
    for lines in waiting.values():
        yield from lines.until(_ALL)


def _key(label: str, raw: dict[str, Any]) -> SeriesKey:
    kind = raw["k"]
    if kind in ("weights", "optimizer"):
        return SeriesKey(label, metric_lines.END_WEIGHTS if raw.get("at") == "end" else kind, raw["object"])
    return SeriesKey(label, kind, raw.get("thread", "") if kind == "seed" else str(raw.get("name", "")))


def scan(
    run: RunDirectory,
    normalizations: Normalizations,
    check_line: Callable[[metric_lines.MetricLine | None], None] | None = None,
) -> MetricsScan:
    """Read metrics.jsonl once; `check_line` is called with each line, to check what it refers to."""
    result, files = MetricsScan(), _NumberFiles(run)
    for named_line in read(run):
        if check_line is not None:
            check_line(named_line.line)
        result.processes.setdefault(named_line.key.process, named_line.process)
        files.note(named_line.key.process, named_line.raw)
        if not _add_fact(result, named_line):
            _add_to_series(run, result, named_line, normalizations)
    for label, file in (*files.of.items(), *files.rest()):
        _add_numbers(run, result, label, file)
    for series in result.series.values():
        series.close()
    _add_ends(run.run, result)
    return result


def _add_ends(run: RunFile, result: MetricsScan) -> None:
    """Add to each process which signal ended it, and whether another process of the run sent it."""
    targets = {signal.target for signal in run.signals}
    signals = {killed.process: signal_name(killed.number) for killed in run.killed}
    for process in result.processes.values():
        pid = None if process.agent is None else process.agent.pid
        process.killed_by = "" if pid is None else signals.get(pid, "")
        process.was_stopped = pid in targets and (not process.ended or bool(process.killed_by))


def _add_fact(result: MetricsScan, named_line: NamedLine) -> bool:
    """Add a line that belongs to no series; return False if it does."""
    line = named_line.line
    if isinstance(line, metric_lines.LossLine):
        return False
    if isinstance(line, metric_lines.AgentStartLine):
        named_line.process.agent = line
    elif isinstance(line, metric_lines.EndLine):
        named_line.process.ended = True
    elif isinstance(line, metric_lines.FrameworkLine):
        result.frameworks.setdefault(line.name, set()).add(line.version)
    elif isinstance(line, metric_lines.OptimizersLine):
        result.optimizers_made += line.made
    elif isinstance(line, _NOT_COMPARED):
        return True
    elif isinstance(line, metric_lines.SeedLine):
        _add_replaced_seed(result, named_line.key.process, line)
        return False
    elif isinstance(line, metric_lines.TrackerLine):
        if len(result.trackers) < 100:
            result.trackers.append(line)
    elif isinstance(line, metric_lines.VariableLine):
        if line.name in result.variables or len(result.variables) < MAX_VARIABLES:
            result.variables.setdefault(line.name, VariableStates(line.where)).add(line)
    elif isinstance(line, metric_lines.WarningLine):
        if len(result.warnings) < MAX_WARNINGS:
            result.warnings = distinct([*result.warnings, RunWarning(line.text, line.code, line.path)])
    else:
        return False
    return True


def _add_replaced_seed(result: MetricsScan, process: str, line: metric_lines.SeedLine) -> None:
    if line.asked is None:
        return
    if process in result.replaced:
        result.replaced[process].count += 1
    elif len(result.replaced) < MAX_SERIES:
        result.replaced[process] = ReplacedSeeds(1, line)


def _add_to_series(
    run: RunDirectory, result: MetricsScan, named_line: NamedLine, normalizations: Normalizations
) -> None:
    series = _series(run, result, named_line.key, named_line.process)
    data = metric_lines.content(named_line.raw, normalizations)
    series.add(data, order_of(named_line.raw))
    if named_line.key.kind == "seed":
        series.places = hash((series.places, named_line.raw["where"]))
        series.arguments = hash((series.arguments, named_line.raw["argument"]))
        digest = hashlib.blake2b(data, digest_size=16).digest()
        result.all_seeds = (result.all_seeds + int.from_bytes(digest, "big")) % (1 << 128)
    _keep_end(result, series, named_line.raw, len(data), is_first=series.count == 1)


def _series(run: RunDirectory, result: MetricsScan, key: SeriesKey, process: ScannedProcess) -> ScannedSeries:
    """Return the series of a key, which begins with its first line."""
    series = result.series.get(key)
    if series is None:
        if len(result.series) >= MAX_SERIES:
            raise RunDamaged(f"{run.path} holds more than {MAX_SERIES} series, like {printable(key.name, 60)}")
        series = result.series[key] = ScannedSeries()
        process.outcomes = process.outcomes or key.kind in metric_lines.OUTCOMES
    return series


def _add_numbers(run: RunDirectory, result: MetricsScan, label: str, file: ProcessNumbers) -> None:
    """Add the numbers of a process to its series."""
    process = result.processes.setdefault(label, ScannedProcess())
    for part in file.parts():
        series = _series(run, result, SeriesKey(label, part.series.kind, part.series.name), process)
        if not series.count:
            _keep_end(result, series, part.line(0), LINE_SIZE, is_first=True)
        series.add_numbers(part)
        process.numbers += len(part.contents)
        if series.count > 1:
            _keep_end(result, series, part.line(-1), LINE_SIZE, is_first=False)
    process.lost_numbers = file.lost


def _keep_end(result: MetricsScan, series: ScannedSeries, raw: dict[str, Any], size: int, *, is_first: bool) -> None:
    """Keep the first or the last line of a series, within bounds, to show it to users."""
    if not is_first:
        result.kept -= series.last_size
    fits = result.kept + size <= MAX_KEPT
    series.last, series.last_size = (raw, size) if fits else (None, 0)
    if is_first:
        series.first, series.last_size = series.last, 0
    result.kept += size if fits else 0


def order_of(raw: dict[str, Any]) -> tuple[int, int]:
    """Return a line's epoch and step, by which its series is ordered; -1 for each that is missing."""
    epoch, step = raw.get("epoch"), raw.get("step")
    return (epoch if type(epoch) is int else -1, step if type(step) is int else -1)


def collect(run: RunDirectory, positions_by_key: dict[SeriesKey, range]) -> dict[SeriesKey, list[dict[str, Any]]]:
    """Return the lines at these positions of these series, as far as memory allows, in a second pass.

    The first pass has validated every line.
    """
    lines: dict[SeriesKey, list[dict[str, Any]]] = {key: [] for key in positions_by_key}
    positions = dict.fromkeys(positions_by_key, 0)
    incarnations = _IncarnationNames()
    remaining = MAX_KEPT
    files = _NumberFiles(run) if positions_by_key else None
    for raw in run.metrics() if files is not None else ():
        key = _key(incarnations.assign(raw["p"], raw["n"])[0], raw)
        if files is not None:
            files.note(key.process, raw)
        if key not in positions_by_key:
            continue
        position = positions[key]
        positions[key] = position + 1
        if position in positions_by_key[key] and remaining > 0:
            lines[key].append(raw)
            remaining -= LINE_SIZE if key.kind == "loss" else len(str(raw))
    for label, part in files.parts() if files is not None else ():
        key = SeriesKey(label, part.series.kind, part.series.name)
        if key in positions_by_key:
            position, span = positions[key], positions_by_key[key]
            positions[key] = position + len(part.contents)
            low, high = max(span.start - position, 0), min(span.stop - position, len(part.contents))
            lines[key] += [part.line(index) for index in range(low, min(high, low + max(0, remaining) // LINE_SIZE))]
            remaining -= LINE_SIZE * max(0, high - low)
    return lines
