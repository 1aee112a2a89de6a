"""Records predictions and true values: rows in files, scores and digests in lines of metrics.jsonl."""

from __future__ import annotations

import hashlib
import os
import sys
from _thread import RLock

from ..core.agent import Log
from ..core.buffered_lines import make_directory
from ..core.thread_names import on_thread
from .samples import FLOAT, Rows, rows_of
from .scores import REGRESSION, TASKS, VALUES, AbsoluteError, Accuracy, TaskJudgment, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NamedTuple

    from ..core.journal import Journal
    from .samples import Bytes, Rows

    class RowPlace(NamedTuple):
        """Where rows are stored: the file, and the number of their first row."""

        file: str
        row: int


MAX_LINES = 1000  # of one name; further predictions share one line at the end
MAX_TYPES = 100  # of predictions beyond that limit, or of one evaluation
MAX_REMEMBERED = 64  # columns that are not written a second time
MAX_LABELS = 10_000
NOT_KEPT, LEFT_OUT = "predictions-not-kept", "predictions-left-out"  # codes of warnings
MAX_WAITING = 256  # batches of an evaluation that are buffered
MAX_WAITING_BYTES = 4 << 20
BY_SCRIPT = "log_predictions"  # the name of predictions that a script logs itself
DIRECTORY = "evaluation"
MAX_BYTES = 256 << 20  # of all files of a run
MAX_FILES = 1000  # of one process
HEAD = 192  # bytes of a header, unless its shape has many dimensions
_DIGITS = 20  # width of the number of rows in the header
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CLOEXEC
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class RowBuffer:
    """A column of rows of one type, predicted or true, which arrive in any number of pieces."""

    def __init__(self, rows: Rows, append: Callable[[Rows], RowPlace | None]) -> None:
        self.type = (rows.dtype, rows.shape[1:])
        self.place: RowPlace | None = None
        self._append = append
        self._count = 0
        shape = ",".join([str(size) for size in rows.shape[1:]])
        self._state = hashlib.sha256(f"reprokit-rows-1\0{rows.dtype}\0{shape}\0".encode())

    @property
    def digest(self) -> str:
        """The digest of the type and all rows."""
        return "sha256:" + self._state.hexdigest()

    def add(self, rows: Rows, places: dict[str, RowPlace]) -> None:
        """Digest and write rows; if any piece cannot be written, the column has no place in a file."""
        self._state.update(rows.data)
        is_first = not self._count
        self._count += rows.count
        if is_first:
            self.place = places.get(self.digest) or self._append(rows)
        elif self.place is not None and self._append(rows) is None:
            self.place = None

    def facts(self) -> dict[str, object]:
        """Return the column's fields for a line."""
        dtype, row = self.type
        facts: dict[str, object] = {"dtype": dtype, "shape": [self._count, *row], "digest": self.digest}
        if self.place is not None:
            facts["file"], facts["row"] = self.place
        return facts


class EvaluationTally:
    """The contents of one line: predictions of one type, their true values, and the score."""

    def __init__(self, task: str | None, hint: str | None, classes: Any, append: Callable[[str, Rows], Any]) -> None:
        self._requested_task = task
        self._hint = hint
        self._classes = None if classes is None else rows_of(classes).flat()[:MAX_LABELS]
        self._append = append
        self._columns: dict[str, RowBuffer] = {}
        self._judgment: TaskJudgment | None = None
        self._score: Accuracy | AbsoluteError | None = None
        self._problem = ""
        self.calls = 0

    @property
    def digests(self) -> list[str]:
        return [column.digest for column in self._columns.values()]

    @property
    def places(self) -> dict[str, RowPlace]:
        """The places of the columns in files, by digest."""
        return {column.digest: column.place for column in self._columns.values() if column.place is not None}

    def fits(self, *sides: Rows | None) -> bool:
        """Return whether these rows have the types of the earlier ones."""
        types = [column.type for column in self._columns.values()]
        return not types or types == [(rows.dtype, rows.shape[1:]) for rows in sides if rows is not None]

    def add(self, pred: Rows, truth: Rows | None, places: dict[str, RowPlace]) -> None:
        """Add predictions, and true values if there are any."""
        self.calls += 1
        for side, rows in (("predictions", pred), ("truth", truth)):
            if rows is not None:
                if side not in self._columns:
                    self._columns[side] = RowBuffer(rows, lambda rows, side=side: self._append(side, rows))  # type: ignore[misc]
                self._columns[side].add(rows, places)
        if self._judgment is None:
            self._judgment = judge(pred, truth, self._requested_task, self._hint)
            if self._judgment.task == REGRESSION:
                self._score = AbsoluteError()
            elif self._judgment.form != VALUES:
                self._score = Accuracy(self._judgment.form, self._classes)
        if truth is not None and self._score is not None:
            try:
                self._score.add(pred, truth)
            except (ValueError, IndexError) as error:
                self._score, self._problem = None, str(error)

    def facts(self) -> dict[str, object]:
        """Return the fields of the line."""
        facts: dict[str, object] = {"calls": self.calls}
        if self._judgment is not None:
            facts.update({"task": self._judgment.task, "form": self._judgment.form, "why": self._judgment.why})
        facts.update({side: self._columns[side].facts() for side in self._columns})
        if self._classes is not None:
            facts["labels"] = [str(label) for label in self._classes]
        facts.update(self._score.facts() if self._score is not None else {})
        if self._problem:
            facts["problem"] = self._problem
        return facts


class PredictionLog(Log):
    """Records the predictions of one process."""

    finish_order = -1

    def __init__(self, run: str, journal: Journal, warn: Callable[[str, str], None]) -> None:
        self._files = PredictionFiles(run, lambda: journal.identity)
        self._journal = journal
        self._warn = warn
        self.forget()

    def forget(self) -> None:
        """Drop the parent's state, in a forked child."""
        self._files.forget()
        self._lock: Any = RLock()
        self._lines: dict[str, int] = {}
        self._overflow: dict[tuple[object, ...], EvaluationTally] = {}
        self._places: dict[str, RowPlace] = {}
        self._last_digests: dict[str, list[str]] = {}
        self._open: dict[str, int] = {}
        self._shares: dict[str, list[int]] = {}

    def note(
        self,
        name: str,
        pred: Any,
        truth: Any = None,
        *,
        task: str | None = None,
        hint: str | None = None,
        classes: Any = None,
        once: bool = False,
    ) -> None:
        """Write a line for the predictions of one call; with ``once``, not if they equal the last ones."""
        name, sides = on_thread(name), aligned(pred, truth)
        if task is not None and task not in TASKS:
            self._warn(f"{name}: task {task!r} is none of {', '.join(TASKS)}; it was inferred", "task-inferred")
            task = None
        if self._is_reentrant(name):
            return
        with self._lock:  # threads may share a name
            self._record(name, sides, task, hint, classes, once)

    def _is_reentrant(self, name: str) -> bool:
        """Return whether this thread is already recording predictions, with a warning."""
        is_reentrant: bool = self._lock._is_owned()
        if is_reentrant:
            self._warn(f"{name}: predicted in a signal handler amidst other predictions, and left out", LEFT_OUT)
        return is_reentrant

    def _record(
        self, name: str, sides: tuple[Rows, Rows | None], task: str | None, hint: str | None, classes: Any, once: bool
    ) -> None:
        if self._lines.get(name, 0) >= MAX_LINES:
            self._add_to_overflow(name, sides, task, hint)
            return
        tally = self.tally(name, task, hint, classes)
        tally.add(*sides, self._places)
        self._remember(tally)
        if not (once and self._last_digests.get(name) == tally.digests):
            self._lines[name] = self._lines.get(name, 0) + 1
            self._last_digests[name] = tally.digests
            self.write(name, tally)

    def _remember(self, tally: EvaluationTally) -> None:
        """Remember where the rows are stored, so that equal ones are not written again."""
        for digest, place in tally.places.items():
            if len(self._places) >= MAX_REMEMBERED:
                self._places.pop(next(iter(self._places)), None)
            self._places[digest] = place

    def pieces(self, name: str, hint: str | None = None, *, share: int = MAX_BYTES) -> BatchedEvaluation:
        """Return a recorder for an evaluation in batches; ``share``: bytes for all evaluations of this name."""
        name = on_thread(name)
        bytes_left = self._shares.setdefault(name, [share])
        others = self._open.get(name, 0)
        self._open[name] = others + 1
        stream = f"{name}, {others} others" if others else name  # their rows must not be mixed with this one's
        return BatchedEvaluation(self, name, stream, hint, bytes_left)

    def add_pieces(self, pieces: BatchedEvaluation, pred: Any, truth: Any, *, whole: bool) -> None:
        """Add batches that were joined; ``whole``: the evaluation has no others."""
        sides = aligned(pred, truth)
        if self._is_reentrant(pieces.name):
            return
        with self._lock:
            if self._lines.get(pieces.name, 0) >= MAX_LINES:
                self._add_to_overflow(pieces.name, sides, None, pieces.hint)
                return
            tally = pieces.tally_of(sides)
            if tally is None:
                self._warn(f"{pieces.name}: predictions of more than {MAX_TYPES} types; some were left out", LEFT_OUT)
            else:
                tally.add(*sides, self._places if whole else {})

    def end_pieces(self, pieces: BatchedEvaluation, tallies: Iterable[EvaluationTally]) -> None:
        """Write the lines of an evaluation that has ended; no tallies if it failed."""
        with self._lock:
            self._open[pieces.name] -= 1
            for tally in tallies:
                self._remember(tally)
                self._lines[pieces.name] = self._lines.get(pieces.name, 0) + 1
                self.write(pieces.name, tally)

    def tally(
        self,
        name: str,
        task: str | None = None,
        hint: str | None = None,
        classes: Any = None,
        bytes_left: list[int] | None = None,
    ) -> EvaluationTally:
        """Return a new tally, whose rows are written under this name as long as ``bytes_left[0]`` allows."""
        return EvaluationTally(task, hint, classes, lambda side, rows: self._append(f"{name}/{side}", rows, bytes_left))

    def write(self, name: str, tally: EvaluationTally) -> None:
        """Write the line of a tally."""
        facts = tally.facts()
        if "problem" in facts and name.partition("@")[0] == BY_SCRIPT:
            self._warn(f"{name}: neither accuracy nor error: {facts['problem']}", "predictions-not-scored")
        self._journal.write("evaluation", {"name": name, **facts})

    def _append(self, stream: str, rows: Rows, bytes_left: list[int] | None) -> RowPlace | None:
        if bytes_left is not None:
            bytes_left[0] -= len(rows.data)
            if bytes_left[0] < 0:
                self._warn(
                    f"{stream}: digested and not kept any more, as rows of this name have taken their share", NOT_KEPT
                )
                return None
        try:
            place = self._files.append(stream, rows)
        except OSError as error:
            self._warn(f"predictions were digested and not kept: {error.strerror}", NOT_KEPT)
            return None
        if place is None and rows.count:
            self._warn(
                f"predictions were digested and not kept beyond {MAX_BYTES >> 20} MiB or {MAX_FILES} files", NOT_KEPT
            )
        return place

    def _add_to_overflow(self, name: str, sides: tuple[Rows, Rows | None], task: str | None, hint: str | None) -> None:
        """Add predictions beyond MAX_LINES to the one line for all of their type, written at the end."""
        key = (name, *((rows.dtype, *rows.shape[1:]) for rows in sides if rows is not None))
        if key not in self._overflow:
            if len(self._overflow) >= MAX_TYPES:
                self._warn(f"{name}: predictions of more than {MAX_TYPES} types; some were left out", LEFT_OUT)
                return
            self._overflow[key] = self.tally(f"{name}, the rest", task, hint)
        self._overflow[key].add(*sides, {})

    def finish(self) -> None:
        """Write the lines for predictions beyond MAX_LINES."""
        overflow, self._overflow = self._overflow, {}
        for key in overflow:
            self.write(str(key[0]), overflow[key])


def aligned(pred: Any, truth: Any) -> tuple[Rows, Rows | None]:
    """Return predictions and true values as rows; in PyTorch's scores (N, classes, ...), move the classes last."""
    rows, true = rows_of(pred), None if truth is None else rows_of(truth)
    shape = rows.shape
    if true is not None and rows.kind == FLOAT and len(shape) > 2 and true.shape == [shape[0], *shape[2:]]:
        if true.shape != shape[:-1]:
            rows = rows.with_last(1)
    return rows, true


class BatchedEvaluation:
    """Records one evaluation, whose batches arrive one by one and are joined before they are written."""

    def __init__(
        self, evaluation: PredictionLog, name: str, stream: str, hint: str | None, bytes_left: list[int]
    ) -> None:
        self.name = name
        self.hint = hint
        self._evaluation = evaluation
        self._stream = stream
        self._bytes_left = bytes_left  # a list of one number, shared by all evaluations of this name
        self._buffer: list[tuple[Any, Any]] = []
        self._bytes = 0
        self._tallies: dict[tuple[object, ...], EvaluationTally] = {}

    def add(self, pred: Any, truth: Any) -> None:
        """Add a batch, whose values must not change afterwards."""
        self._buffer.append((pred, truth))
        self._bytes += _size(pred) + _size(truth)
        if len(self._buffer) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            self._flush(whole=False)

    def finish(self) -> None:
        """Write the evaluation's lines."""
        try:
            self._flush(whole=not self._tallies)
        finally:
            self._evaluation.end_pieces(self, self._tallies.values())

    def drop(self) -> None:
        """Drop a failed evaluation."""
        self._evaluation.end_pieces(self, ())

    def tally_of(self, sides: tuple[Rows, Rows | None]) -> EvaluationTally | None:
        """Return the tally for rows of these types; None if there are too many types."""
        kind = tuple((rows.dtype, *rows.shape[1:]) for rows in sides if rows is not None)
        if kind not in self._tallies and len(self._tallies) < MAX_TYPES:
            self._tallies[kind] = self._evaluation.tally(self._stream, hint=self.hint, bytes_left=self._bytes_left)
        return self._tallies.get(kind)

    def _flush(self, *, whole: bool) -> None:
        batches, self._buffer, self._bytes = self._buffer, [], 0
        for pred, truth in _joined_batches(batches):
            self._evaluation.add_pieces(self, pred, truth, whole=whole)


def _joined_batches(batches: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Join the batches of each type, to save work for each batch; return them in order."""
    groups: dict[tuple[object, ...], list[tuple[Any, Any]]] = {}
    for batch in batches:
        pair = _array(batch[0]), None if batch[1] is None else _array(batch[1])
        kind = tuple(None if side is None else (str(side.dtype), *side.shape[1:]) for side in pair)
        groups.setdefault(kind, []).append(pair)
    return [tuple(map(_concatenated, zip(*group))) for group in groups.values()]


def _concatenated(sides: tuple[Any, ...]) -> Any:
    if sides[0] is None or len(sides) == 1:
        return sides[0]
    if hasattr(sides[0], "detach"):
        return sys.modules["torch"].cat(sides)
    return sys.modules["numpy"].concatenate(sides)


def _array(value: Any) -> Any:
    """Return a NumPy array; PyTorch's tensors are only moved to the CPU, as NumPy lacks some of their dtypes."""
    return value.cpu() if hasattr(value, "detach") else sys.modules["numpy"].asarray(value)


def _size(value: Any) -> int:
    """Return the size in bytes of an array or of a tensor on any device."""
    if value is None:
        return 0
    width: Any = getattr(value.dtype, "itemsize", None) or getattr(value.dtype, "size", 8)
    number = int(width)
    for size in value.shape:
        number *= int(size)
    return number


class RowFile:
    """One .npy file: the type of its rows, and their count."""

    def __init__(self, name: str, rows: Rows) -> None:
        self.name = name
        self.count = 0
        self._descr, self._row = rows.descr, rows.shape[1:]
        self.width = len(rows.data) // rows.count if rows.count else 0
        self.head = len(self.header())

    def header(self) -> bytes:
        """Return the header of the .npy format, version 1; its length does not depend on the number of rows."""
        shape = ", ".join([str(self.count).rjust(_DIGITS), *map(str, self._row)])
        text = f"{{'descr': '{self._descr}', 'fortran_order': False, 'shape': ({shape},), }}"
        size = max(HEAD, -(-(len(text) + 11) // 64) * 64)
        return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + text.encode().ljust(size - 11) + b"\n"


class PredictionFiles:
    """The files with predictions and true values of one process."""

    def __init__(self, run: str, identity: Callable[[], str]) -> None:
        self._directory = f"{run}/{DIRECTORY}"
        self._identity = identity
        self.forget()

    def forget(self) -> None:
        """Start new files, in a forked child."""
        self._files: dict[tuple[object, ...], RowFile] = {}
        self._file_count = 0
        self._bytes_left = -1  # -1: not known yet

    def append(self, stream: str, rows: Rows) -> RowPlace | None:
        """Append rows to those of the same stream and type; return their place, None if a limit is reached."""
        key = (stream, rows.descr, *rows.shape[1:])
        if not rows.count or not self._reserve(len(rows.data)):
            return None
        file = self._files.get(key)
        if file is None:
            file = self._create(rows)
            if file is None:
                return None
            self._files[key] = file
        first = file.count
        self._write(file, rows.data, rows.count)
        return (file.name, first)  # type: ignore[return-value]

    def _reserve(self, size: int) -> bool:
        if self._bytes_left < 0:
            self._bytes_left = MAX_BYTES - _size_of_file(self._directory)
        self._bytes_left -= size
        if self._bytes_left < 0:
            self._bytes_left = 0  # later rows may be small enough, but would leave a gap in the stream
            return False
        return True

    def _create(self, rows: Rows) -> RowFile | None:
        """Create a file named by the process and a number; a process of the same name gets other numbers."""
        make_directory(self._directory)
        prefix = hashlib.sha256(self._identity().encode("utf-8", "backslashreplace")).hexdigest()[:16]
        while self._file_count < MAX_FILES:
            name = f"{prefix}-{self._file_count}.npy"
            self._file_count += 1
            try:
                os.close(os.open(f"{self._directory}/{name}", _CREATE | _SAFE, 0o600))
            except FileExistsError:
                continue
            return RowFile(name, rows)
        return None

    def _write(self, file: RowFile, data: Bytes, count: int) -> None:
        """Append rows; if writing fails, the header still counts only the earlier rows."""
        descriptor = os.open(f"{self._directory}/{file.name}", _APPEND | _SAFE)
        try:
            _write_all(descriptor, data, file.head + file.count * file.width)
            file.count += count
            _write_all(descriptor, file.header(), 0)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: Bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _size_of_file(directory: str) -> int:
    """Return the number of bytes that the processes of this run have written so far."""
    scandir = getattr(os.scandir, "__wrapped__", os.scandir)  # past the agent's own, which notes what scripts list
    try:
        with scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0
