"""Writes what models predicted, and what was true: rows into files, counts and digests into lines."""

from __future__ import annotations

import hashlib
import sys
from _thread import RLock

from ..core.thread_names import on_thread
from .files import MAX_BYTES, MAX_FILES, Files
from .samples import FLOAT, Rows, rows_of
from .scores import REGRESSION, TASKS, VALUES, Accuracy, Error, TaskJudgment, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.journal import Journal
    from .files import RowPlace

MAX_LINES = 1000  # of one name; what is predicted beyond goes into one line at the end
MAX_TYPES = 100  # of such predictions beyond
MAX_REMEMBERED = 64  # arrays that are not written a second time
MAX_LABELS = 10_000
MAX_WAITING = 256  # batches of an evaluation that are put together
MAX_WAITING_BYTES = 4 << 20
BY_SCRIPT = "log_predictions"  # the name of what a script logs by itself


class RowBuffer:
    """Rows of one type, predicted or true, however many pieces they come in."""

    def __init__(self, rows: Rows, append: Callable[[Rows], RowPlace | None]) -> None:
        self.type = (rows.dtype, rows.shape[1:])
        self.place: RowPlace | None = None
        self._append = append
        self._count = 0
        shape = ",".join([str(size) for size in rows.shape[1:]])
        self._state = hashlib.sha256(f"reprokit-rows-1\0{rows.dtype}\0{shape}\0".encode())

    @property
    def digest(self) -> str:
        """Of the type and all the rows."""
        return "sha256:" + self._state.hexdigest()

    def add(self, rows: Rows, known: dict[str, RowPlace]) -> None:
        """Digest rows and write them; where one piece could not be written, the column has no place."""
        self._state.update(rows.data)
        is_first = not self._count
        self._count += rows.count
        if is_first:
            self.place = known.get(self.digest) or self._append(rows)
        elif self.place is not None and self._append(rows) is None:
            self.place = None

    def facts(self) -> dict[str, object]:
        """Return what a line holds of it."""
        dtype, row = self.type
        facts: dict[str, object] = {"dtype": dtype, "shape": [self._count, *row], "digest": self.digest}
        if self.place is not None:
            facts["file"], facts["row"] = self.place
        return facts


class Tally:
    """What one line tells of: predictions of one type and what is true of them."""

    def __init__(self, task: str | None, hint: str | None, classes: Any, append: Callable[[str, Rows], Any]) -> None:
        self._asked = task
        self._hint = hint
        self._classes = None if classes is None else rows_of(classes).flat()[:MAX_LABELS]
        self._append = append
        self._columns: dict[str, RowBuffer] = {}
        self._judgment: TaskJudgment | None = None
        self._score: Accuracy | Error | None = None
        self._problem = ""
        self.calls = 0

    @property
    def digests(self) -> list[str]:
        return [column.digest for column in self._columns.values()]

    @property
    def places(self) -> dict[str, RowPlace]:
        """Where the columns stand, by their digests."""
        return {column.digest: column.place for column in self._columns.values() if column.place is not None}

    def fits(self, *sides: Rows | None) -> bool:
        """Return whether these are of the types of the others."""
        types = [column.type for column in self._columns.values()]
        return not types or types == [(rows.dtype, rows.shape[1:]) for rows in sides if rows is not None]

    def add(self, pred: Rows, truth: Rows | None, known: dict[str, RowPlace]) -> None:
        """Take in predictions."""
        self.calls += 1
        for side, rows in (("predictions", pred), ("truth", truth)):
            if rows is not None:
                if side not in self._columns:
                    self._columns[side] = RowBuffer(rows, lambda rows, side=side: self._append(side, rows))  # type: ignore[misc]
                self._columns[side].add(rows, known)
        if self._judgment is None:
            self._judgment = judge(pred, truth, self._asked, self._hint)
            if self._judgment.task == REGRESSION:
                self._score = Error()
            elif self._judgment.form != VALUES:
                self._score = Accuracy(self._judgment.form, self._classes)
        if truth is not None and self._score is not None:
            try:
                self._score.add(pred, truth)
            except (ValueError, IndexError) as error:
                self._score, self._problem = None, str(error)

    def facts(self) -> dict[str, object]:
        """Return what its line holds."""
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


class PredictionLog:
    """The predictions of one process."""

    def __init__(self, run: str, journal: Journal, warn: Callable[[str], None]) -> None:
        self._files = Files(run, lambda: journal.identity)
        self._journal = journal
        self._warn = warn
        self.forget()

    def forget(self) -> None:
        """In a forked child: what the parent predicted is the parent's."""
        self._files.forget()
        self._lock: Any = RLock()
        self._lines: dict[str, int] = {}
        self._rest: dict[tuple[object, ...], Tally] = {}
        self._known: dict[str, RowPlace] = {}
        self._last: dict[str, list[str]] = {}
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
        """Write a line of what one call predicted; unless the one before told the same, if once is enough."""
        name, sides = on_thread(name), aligned(pred, truth)
        if task is not None and task not in TASKS:
            self._warn(f"{name}: task {task!r} is none of {', '.join(TASKS)}; it was inferred")
            task = None
        if self._is_amidst(name):
            return
        with self._lock:  # threads may share a name
            self._note(name, sides, task, hint, classes, once)

    def _is_amidst(self, name: str) -> bool:
        """Return whether this thread is noting others, and say so."""
        is_amidst: bool = self._lock._is_owned()
        if is_amidst:
            self._warn(f"{name}: predicted in a signal handler amidst other predictions, and left out")
        return is_amidst

    def _note(
        self, name: str, sides: tuple[Rows, Rows | None], task: str | None, hint: str | None, classes: Any, once: bool
    ) -> None:
        if self._lines.get(name, 0) >= MAX_LINES:
            self._add_to_rest(name, sides, task, hint)
            return
        tally = self.tally(name, task, hint, classes)
        tally.add(*sides, self._known)
        self._remember(tally)
        if not (once and self._last.get(name) == tally.digests):
            self._lines[name] = self._lines.get(name, 0) + 1
            self._last[name] = tally.digests
            self.write(name, tally)

    def _remember(self, tally: Tally) -> None:
        """Where its rows stand, so that the same are not written again."""
        for digest, place in tally.places.items():
            if len(self._known) >= MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)), None)
            self._known[digest] = place

    def pieces(self, name: str, hint: str | None = None, *, share: int = MAX_BYTES) -> Pieces:
        """Lines to be, of one evaluation whose batches come one by one; share: bytes for all of this name."""
        name = on_thread(name)
        room = self._shares.setdefault(name, [share])
        others = self._open.get(name, 0)
        self._open[name] = others + 1
        stream = f"{name}, {others} others" if others else name  # whose rows must not come between these
        return Pieces(self, name, stream, hint, room)

    def add_pieces(self, pieces: Pieces, pred: Any, truth: Any, *, whole: bool) -> None:
        """Take in batches that were put together; whole: there are no others of this evaluation."""
        sides = aligned(pred, truth)
        if self._is_amidst(pieces.name):
            return
        with self._lock:
            if self._lines.get(pieces.name, 0) >= MAX_LINES:
                self._add_to_rest(pieces.name, sides, None, pieces.hint)
                return
            tally = pieces.tally_of(sides)
            if tally is None:
                self._warn(f"{pieces.name}: predictions of more than {MAX_TYPES} types; some were left out")
            else:
                tally.add(*sides, self._known if whole else {})

    def end_pieces(self, pieces: Pieces, tallies: Iterable[Tally]) -> None:
        """Write the lines of an evaluation that has ended; none of one that failed."""
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
        room: list[int] | None = None,
    ) -> Tally:
        """Return a line to be, whose rows go into files of this name, as far as the room is enough that it shares."""
        return Tally(task, hint, classes, lambda side, rows: self._append(f"{name}/{side}", rows, room))

    def write(self, name: str, tally: Tally) -> None:
        """Write the line of a tally."""
        facts = tally.facts()
        if "problem" in facts and name.partition("@")[0] == BY_SCRIPT:
            self._warn(f"{name}: neither accuracy nor error: {facts['problem']}")
        self._journal.write("evaluation", {"name": name, **facts})

    def _append(self, stream: str, rows: Rows, room: list[int] | None) -> RowPlace | None:
        if room is not None:
            room[0] -= len(rows.data)
            if room[0] < 0:
                self._warn(f"{stream}: digested and not kept any more, as rows of this name have taken their share")
                return None
        try:
            place = self._files.append(stream, rows)
        except OSError as error:
            self._warn(f"predictions were digested and not kept: {error.strerror}")
            return None
        if place is None and rows.count:
            self._warn(f"predictions were digested and not kept beyond {MAX_BYTES >> 20} MiB or {MAX_FILES} files")
        return place

    def _add_to_rest(self, name: str, sides: tuple[Rows, Rows | None], task: str | None, hint: str | None) -> None:
        """Beyond the bound of lines: one at the end for all predictions of a type."""
        key = (name, *((rows.dtype, *rows.shape[1:]) for rows in sides if rows is not None))
        if key not in self._rest:
            if len(self._rest) >= MAX_TYPES:
                self._warn(f"{name}: predictions of more than {MAX_TYPES} types; some were left out")
                return
            self._rest[key] = self.tally(f"{name}, the rest", task, hint)
        self._rest[key].add(*sides, {})

    def finish(self) -> None:
        """Write the lines of what came in many pieces."""
        rest, self._rest = self._rest, {}
        for key in rest:
            self.write(str(key[0]), rest[key])


def aligned(pred: Any, truth: Any) -> tuple[Rows, Rows | None]:
    """Predictions and true values as rows; of PyTorch's scores (N, classes, ...) the classes last."""
    rows, true = rows_of(pred), None if truth is None else rows_of(truth)
    shape = rows.shape
    if true is not None and rows.kind == FLOAT and len(shape) > 2 and true.shape == [shape[0], *shape[2:]]:
        if true.shape != shape[:-1]:
            rows = rows.with_last(1)
    return rows, true


class Pieces:
    """What the batches of one evaluation predicted, and what was true of them."""

    def __init__(self, evaluation: PredictionLog, name: str, stream: str, hint: str | None, room: list[int]) -> None:
        self.name = name
        self.hint = hint
        self._evaluation = evaluation
        self._stream = stream
        self._room = room  # bytes left, which all of this name share
        self._waiting: list[tuple[Any, Any]] = []
        self._bytes = 0
        self._tallies: dict[tuple[object, ...], Tally] = {}

    def add(self, pred: Any, truth: Any) -> None:
        """Take in a batch, whose values stay as they are."""
        self._waiting.append((pred, truth))
        self._bytes += _size(pred) + _size(truth)
        if len(self._waiting) >= MAX_WAITING or self._bytes >= MAX_WAITING_BYTES:
            self._flush(whole=False)

    def finish(self) -> None:
        """Write the lines."""
        try:
            self._flush(whole=not self._tallies)
        finally:
            self._evaluation.end_pieces(self, self._tallies.values())

    def drop(self) -> None:
        """The evaluation failed."""
        self._evaluation.end_pieces(self, ())

    def tally_of(self, sides: tuple[Rows, Rows | None]) -> Tally | None:
        """Return the line that rows of such types belong to; None where there are too many."""
        kind = tuple((rows.dtype, *rows.shape[1:]) for rows in sides if rows is not None)
        if kind not in self._tallies and len(self._tallies) < MAX_TYPES:
            self._tallies[kind] = self._evaluation.tally(self._stream, hint=self.hint, room=self._room)
        return self._tallies.get(kind)

    def _flush(self, *, whole: bool) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for pred, truth in _joined(waiting):
            self._evaluation.add_pieces(self, pred, truth, whole=whole)


def _joined(batches: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the batches in their order, those of one type as one, so that the work is not done for each."""
    groups: dict[tuple[object, ...], list[tuple[Any, Any]]] = {}
    for batch in batches:
        pair = _array(batch[0]), None if batch[1] is None else _array(batch[1])
        kind = tuple(None if side is None else (str(side.dtype), *side.shape[1:]) for side in pair)
        groups.setdefault(kind, []).append(pair)
    return [tuple(map(_whole, zip(*group))) for group in groups.values()]


def _whole(sides: tuple[Any, ...]) -> Any:
    if sides[0] is None or len(sides) == 1:
        return sides[0]
    if hasattr(sides[0], "detach"):
        return sys.modules["torch"].cat(sides)
    return sys.modules["numpy"].concatenate(sides)


def _array(value: Any) -> Any:
    """An array of NumPy; tensors of PyTorch, some of whose types NumPy does not know, are only taken from the GPU."""
    return value.cpu() if hasattr(value, "detach") else sys.modules["numpy"].asarray(value)


def _size(value: Any) -> int:
    """Bytes, of a tensor on any device."""
    if value is None:
        return 0
    width: Any = getattr(value.dtype, "itemsize", None) or getattr(value.dtype, "size", 8)
    number = int(width)
    for size in value.shape:
        number *= int(size)
    return number
