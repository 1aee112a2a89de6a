"""Compares what a resumed training left with what the whole one did: files, printed lines, values and evaluations.

A resumed training does not repeat what came before. So of each series of lines the last ones are compared: as many as
the resumed training has, and at least all that the interrupted training had not come to.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile, zip_longest
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from reprokit.core import redaction
from reprokit.core.difference import Difference, IgnoredCount, IgnoredThing, Verdict, group
from reprokit.core.errors import CannotResume
from reprokit.core.printable import cut
from reprokit.core.tolerance import Tolerances
from reprokit.diff.tracker_files import kind_of
from reprokit.model.outputs import OutputFile
from reprokit.model.resumption import OtherFact
from reprokit.run_files import console
from reprokit.run_files.console import STREAMS
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts
from reprokit.verify.categories import outputs, tracker_metrics
from reprokit.verify.categories.declared_outputs import DeclaredIgnores, DeclaredLines
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.printed_lines import LineComparer, PrintedLine, ignored_by, printed_lines
from reprokit.verify.categories.series_leaves import counted
from reprokit.verify.ignores import NO_IGNORES, Ignores, IgnoreUse, uses
from reprokit.verify.read import metric_lines
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import MetricsScan, SeriesKey, natural, of_process, read

MAX_NAMED = 1000
MAX_LINES = 2_000_000  # of metrics.jsonl, without losses
LONGEST = 160  # characters of a quoted line
NOT_KEPT, CUT = "what was printed", "a part of it was not kept"
MAX_TEXT = 16 << 20  # bytes of a file that is compared by its last lines
# Losses and updates are compared step by step; generators at the end may differ without effect.
KINDS = frozenset({"epoch", "history", "evaluate", "predict", "evaluation", "weights", metric_lines.END_WEIGHTS, "log"})
_COUNTED_FROM_START = ("step", "epoch", "steps", "calls")  # by the agent; a step of reprokit.log is the script's
_NUMBER = re.compile(r"[-+]?\d[\w.:+-]*|\b(?:nan|inf|true|false|none)\b", re.IGNORECASE)
_NUMBERS = re.compile(r"0(?:[\s,;()\[\]'\"]+0)+")
_BAR = "%|"  # of tqdm: a bar of a resumed training begins elsewhere

Line = tuple[str, Any]  # what decides whether two lines tell of the same thing, and what is compared
Lines = dict[SeriesKey, list[Line]]


@dataclass(frozen=True)
class Continuation:
    """The three runs, and what was on disk when the interrupted and the resumed one had ended."""

    whole: RunDirectory
    interrupted: RunDirectory
    resumed: RunDirectory
    left: Path  # a copy of the working directory as the interrupted training had left it
    kept: Collection[str]  # files of the interrupted training that were there when the resumed one had ended
    ignores: Ignores = NO_IGNORES  # what the user declared that it may differ
    ignored: list[IgnoredCount] = field(default_factory=list)  # series and printed lines that rules cover

    @cached_property
    def pair(self) -> RunPair:
        """Return the runs with all files that were there at the end of the resumed training."""
        own, earlier = self.resumed.outputs(), self.interrupted.outputs()
        right = own
        if own is not None and earlier is not None:
            new = {file.path for file in own.files}
            left_over = [replace(file, kept=None) for file in earlier.files if file.path in self.kept]
            all_files = [*own.files, *(file for file in left_over if file.path not in new)]
            links = {link.path: link for link in (*earlier.links, *own.links)}
            right = replace(own, files=all_files, links=list(links.values()))
        scans, at_end = (MetricsScan(), MetricsScan()), (self.whole.outputs(), right)
        runs, declared = (self.whole, self.resumed), DeclaredIgnores(self.ignores)
        return RunPair(runs, *scans, (), Normalizations(), Tolerances(), declared, files_at_end=at_end)

    @cached_property
    def outputs(self) -> Difference:
        """Return the comparison of the files at the end."""
        return outputs.compare(self.pair)

    @property
    def ignore_uses(self) -> tuple[IgnoreUse, ...]:
        """Return how often each of the user's rules applied; raises IgnoreRefused for one that covers a result."""
        self.pair.declared.require_obeyed()
        has_files = None not in self.pair.outputs
        others = Difference("console and series", Verdict.IGNORED, ignored=tuple(self.ignored))
        trees = (self.outputs, others) if has_files else (others,)
        return uses(self.ignores, group("", trees))

    @cached_property
    def lines(self) -> tuple[Lines, Lines, Lines]:
        """Return the compared lines of metrics.jsonl of the three runs."""
        return _lines_of(self.whole), _lines_of(self.interrupted), _lines_of(self.resumed, is_resumed=True)


def files(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the files that differ at the end; of those to which lines were added, as to logs, the last lines count."""
    if None in runs.pair.outputs:
        yield OtherFact(fact="outputs", name="all files", detail="a run has no list of them", compared=False)
        return
    for leaf in runs.outputs.children:
        if leaf.verdict is Verdict.NOT_COMPARED:
            yield OtherFact(fact="outputs", name=leaf.name, detail=leaf.detail, compared=False)
        elif leaf.verdict.differs and not kind_of(leaf.name) and not _is_continued(runs, leaf.name):
            yield OtherFact(fact="outputs", name=leaf.name, detail=_words(leaf))
    yield from _empty_directories(runs)


def _empty_directories(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the empty directories that only one training left: their names may be results."""
    whole, resumed = (
        {paths.common(runs.pair.normalizations.path(path)) for path in side.empty} if side is not None else set()
        for side, paths in zip(runs.pair.outputs, runs.pair.paths, strict=True)
    )
    earlier = runs.interrupted.outputs()
    left = set(earlier.empty) if earlier is not None else set()  # the resumed training may have filled them
    for path in sorted(whole ^ resumed, key=natural):
        if path in resumed or path not in left:
            detail = f"only the {'resumed' if path in resumed else 'whole'} training made this empty directory"
            yield OtherFact(fact="outputs", name=path, detail=detail)


def _is_continued(runs: Continuation, path: str) -> bool:
    """Return whether the resumed training only added lines to a file, and they end as in the whole one."""
    earlier = _text_of(runs.left / path)
    here, there = (
        _recorded_text(run, next((file for file in side.files if file.path == path), None) if side else None)
        for run, side in zip(runs.pair.directories, runs.pair.outputs, strict=True)
    )
    if earlier is None or here is None or there is None or not there.startswith(earlier):
        return False
    whole, interrupted, resumed = map(_printed, (here, earlier, there[len(earlier) :]))
    return _first_difference(whole, interrupted, resumed, _equal_lines(runs.pair.contexts)) is None


def logged(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the series of trackers' files in which the last value of some step is another one.

    A resumed training may log into a directory of its own.
    """
    whole, resumed = map(tracker_metrics.read, runs.pair.directories, runs.pair.outputs, runs.pair.paths)
    for place, why in {**whole.unread, **resumed.unread, **whole.problems, **resumed.problems}.items():
        yield OtherFact(fact=tracker_metrics.CATEGORY, name=place, detail=why, compared=False)
    for name, points in sorted(whole.series.items(), key=lambda item: item[0].order):
        places = [own for own in resumed.series if own.series == name.series]
        own = {point.step: point for place in places for point in resumed.series[place]}
        for step, point in {point.step: point for point in points}.items():
            value = own.get(step)
            if value is not None and tracker_metrics.bookkeeping_kind(name, point, value, runs.pair.contexts):
                continue
            if value != point:
                if ignored := tracker_metrics.declared(runs.pair, name, whole, resumed):
                    runs.ignored.append(ignored)
                    break
                detail = f"step {step} is {point} in the whole training, {value or 'missing'} in the resumed one"
                yield OtherFact(fact=tracker_metrics.CATEGORY, name=str(name), detail=detail)
                break


def printed(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the streams of the training's processes whose last lines differ; others have other names when resumed."""
    is_equal = _equal_lines(runs.pair.contexts)
    sides = runs.whole, runs.interrupted, runs.resumed
    heads = [console.heads(run) for run in sides]
    training = {"0", *(key.process for key in runs.lines[2])}
    for process in sorted(training.intersection(heads[0].keys() | heads[2].keys()), key=natural):
        consoles = [
            console.read(run, heads_of_run[process]) if process in heads_of_run else console.NEVER_BEGUN
            for run, heads_of_run in zip(sides, heads, strict=True)
        ]
        if not all(of_run.is_whole for of_run in (consoles[0], consoles[2]) if of_run.begun):
            yield OtherFact(fact="console", name=of_process(NOT_KEPT, process), detail=CUT, compared=False)
            continue
        for stream, name in enumerate(STREAMS):
            texts = (console.text([*of_run.first, *of_run.last], stream) for of_run in consoles)
            whole, interrupted, resumed = map(_printed, texts)
            found = _first_difference(whole, interrupted, resumed, is_equal)
            if found is not None and runs.ignores.console:
                found = _beside_declared(runs, (whole, interrupted, resumed))
            if found is not None:
                yield OtherFact(fact="console", name=of_process(name, process), detail=found)


def _beside_declared(runs: Continuation, streams: Sequence[list[Line]]) -> str | None:
    """Return how printed lines differ beside what the user declared; count the lines where they do not."""
    printed_of = [[line for _, line in stream] for stream in streams]
    declared = DeclaredLines(runs.pair.declared, (line for lines in printed_of for line in lines))
    shorter = [[(_shape(line.text), line) for line in declared.of(lines)] for lines in printed_of]
    found = _first_difference(shorter[0], shorter[1], shorter[2], _equal_lines(runs.pair.contexts))
    if found is None:
        for pair in zip_longest(*(reversed(lines) for lines in (printed_of[0], printed_of[2]))):
            left, right = (_as_declared(declared, line) for line in pair)
            rules = ignored_by(left, right, runs.pair.contexts) if left and right else ()
            runs.ignored.extend(IgnoredCount(rule, IgnoredThing.LINE) for rule in rules)
    return found


def _as_declared(declared: DeclaredLines, line: PrintedLine | None) -> PrintedLine | None:
    """Return a line with the rules that leave out some of it, or all."""
    return None if line is None else next(chain(declared.of([line]), declared.left_out([line])))


def values(runs: Continuation, *kinds: str, fact: str = "process metrics") -> Iterator[OtherFact]:
    """Yield the series of these kinds of lines whose last ones differ."""
    whole, interrupted, resumed = runs.lines
    for key in sorted({*whole, *resumed}, key=lambda key: key.order):
        if key.kind in kinds:
            of_key = whole.get(key, []), interrupted.get(key, []), resumed.get(key, [])
            found = _first_difference(*of_key, _equal_values, is_series=True)
            if found is not None:
                yield OtherFact(fact=fact, name=_title(key), detail=found)


def evaluations(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the evaluations and predictions of which the last ones differ."""
    return values(runs, "evaluate", "predict", "evaluation", fact="evaluation metrics")


def weights(runs: Continuation) -> Iterator[OtherFact]:
    """Yield the models and optimizers whose weights differ at the ends of epochs, or at the end."""
    return values(runs, "weights", metric_lines.END_WEIGHTS, fact="weights")


def _words(leaf: Difference) -> str:
    if not leaf.left or not leaf.right:
        return f"only the {'resumed' if not leaf.left else 'whole'} training left it"
    return leaf.detail


def _text_of(path: Path) -> bytes | None:
    """Return the text in a file; None for what is no text, too large or gone."""
    with suppress(OSError):
        is_small = path.is_file() and path.stat().st_size <= MAX_TEXT
        return _if_text(path.read_bytes()) if is_small else None
    return None


def _recorded_text(run: RunDirectory, file: OutputFile | None) -> bytes | None:
    source = outputs.found(run, file) if file is not None else None
    if source is None:
        return None
    data = source.read(0, source.size) if source.size <= MAX_TEXT else b"\0"
    source.close()
    return _if_text(bytes(data))


def _if_text(data: bytes) -> bytes | None:
    return None if b"\0" in data else data


def _lines_of(run: RunDirectory, *, is_resumed: bool = False) -> Lines:
    """Return the compared lines; of a resumed run those behind its first loss, where it has losses."""
    series: Lines = defaultdict(list)
    began: set[str] = set()
    before: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    count = 0
    for named_line in read(run, has_numbers=True):
        key = named_line.key
        if key.kind == "loss":
            began.add(key.process)
        elif key.kind in KINDS:
            count += 1
            if count > MAX_LINES:
                raise CannotResume(
                    f"{run.path} holds more than {MAX_LINES:,} values: log fewer, or name shorter trainings"
                )
            target = series if key.process in began or not is_resumed else before[key.process]
            target[key].append((key.kind, _value(named_line.raw)))
    for process, lines in before.items():
        for key, early in lines.items() if process not in began else ():
            series[key] = early
    return series


def _value(raw: dict[str, Any]) -> Any:
    if raw["k"] == "history":
        return {name: tuple(map(repr, map(metric_lines.exact, values))) for name, values in raw["values"].items()}
    kept = raw if raw["k"] == "log" else {key: raw[key] for key in raw if key not in _COUNTED_FROM_START}
    data = metric_lines.content(kept, Normalizations())
    return (raw["steps"], data) if raw["k"] == "epoch" else data


def _equal_values(left: Any, right: Any) -> bool:
    """Return whether two values are equal; of histories the last ones, as a resumed fit has fewer epochs.

    The epoch in which a training resumes has fewer steps, and so another mean.
    """
    if isinstance(left, tuple) and isinstance(right, tuple) and left[0] != right[0]:
        return True
    if not isinstance(left, dict) or not isinstance(right, dict):
        return bool(left == right)
    return left.keys() == right.keys() and all(left[name][-len(right[name]) :] == right[name] for name in left)


def _title(key: SeriesKey) -> str:
    words = {"evaluation": "predictions of", metric_lines.END_WEIGHTS: "weights at the end:", "log": "logged"}
    return of_process(f"{words.get(key.kind, key.kind)} {key.name}", key.process)


def _printed(data: bytes) -> list[Line]:
    lines, _ = printed_lines(data)
    return [(_shape(line.text), line) for line in lines if _BAR not in line.text]


def _shape(text: str) -> str:
    """Return a line with one mark for all numbers that follow each other."""
    return _NUMBERS.sub("0", _NUMBER.sub("0", text))


def _equal_lines(contexts: Contexts) -> Callable[[PrintedLine, PrintedLine], bool]:
    comparer = LineComparer(contexts)
    return lambda left, right: comparer.compare(left.text, right.text) is not None


def _first_difference(
    whole: Sequence[Line],
    interrupted: Sequence[Line],
    resumed: Sequence[Line],
    is_equal: Callable[[Any, Any], bool],
    *,
    is_series: bool = False,
) -> str | None:
    """Return how the last lines differ; None if they are equal.

    What a resumed training prints before it goes on has other shapes than what the whole one printed last before it.
    """
    pairs = zip(whole, interrupted, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: is_equal(pair[0][1], pair[1][1]), pairs))
    due = len(whole) - same
    number = 0
    for left, right in zip(reversed(whole), reversed(resumed), strict=False):
        if left[0] != right[0]:
            break
        if not is_equal(left[1], right[1]):
            return _quoted(left, right, number)
        number += 1
    if number < due:
        return _quoted(whole[-number - 1], resumed[-number - 1] if number < len(resumed) else None, number)
    if is_series and len(resumed) > number:
        return f"the resumed training has {counted(len(resumed) - number, 'value')} more"
    return None


def _quoted(left: Line | None, right: Line | None, number: int) -> str:
    place = "the last one" if number == 0 else f"number {number + 1} from the end"
    if left is None or right is None:
        return f"{place} is only in the {'resumed' if left is None else 'whole'} training"
    texts = [_shown(side[1]) for side in (left, right)]
    if not any(texts):
        return f"{place} is another one"
    return f"{place} is {texts[0]} in the whole training, {texts[1]} in the resumed one"


def _shown(value: Any) -> str:
    """Return a printed line, quoted; an empty text for what has no words."""
    return repr(cut(redaction.shown(value.text), LONGEST)) if isinstance(value, PrintedLine) else ""
