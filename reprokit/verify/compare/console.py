"""Compares what the processes of two runs printed: line by line, in each process and stream.

The order of lines of several threads is a race: it may differ if each thread printed the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reprokit import console, redaction
from reprokit.console import STREAMS, ConsoleHead, ProcessConsole
from reprokit.difference import SIDES, Difference, Verdict, different, group, lacking, missing
from reprokit.model.run import timestamp
from reprokit.printable import listed
from reprokit.rundir import RunDirectory
from reprokit.verify.compare.match import RunPair
from reprokit.verify.compare.printed_lines import (
    LOOKED_AT,
    LineContext,
    LinesComparison,
    PrintedLine,
    compare_lines,
    printed_lines,
    tells_results,
)
from reprokit.verify.compare.series_leaves import counted
from reprokit.verify.read.scan import natural, of_process

NAME = "console"
CUT = "only whole lines of the first and the last part are compared, as the rest was not kept"
LONGEST = 160  # characters of a line in a sentence


@dataclass(frozen=True)
class _PrintedStream:
    """What one process printed to one stream."""

    first: list[PrintedLine]
    last: list[PrintedLine]  # behind what was dropped
    bars: int
    threads: dict[str, list[PrintedLine]]  # of all that is there, where several printed
    is_whole: bool

    @property
    def lines(self) -> list[PrintedLine]:
        return self.first + self.last

    def __str__(self) -> str:
        return counted(len(self.lines), "line") if self.lines else ""


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each process and stream."""
    kept = [run.keeps_console for run in runs.directories]
    if not any(kept):
        return group(NAME, ())
    if not all(kept):
        side = "right" if kept[0] else "left"
        why = f"not compared: of the {side} run nothing was kept of what it printed"
        return group(NAME, (Difference("stdout and stderr", Verdict.NOT_RECORDED, detail=why),))
    heads = console.heads(runs.directories[0]), console.heads(runs.directories[1])
    contexts = _context(runs.directories[0], heads[0]), _context(runs.directories[1], heads[1])
    leaves = []
    for process in sorted({*heads[0], *heads[1]}, key=natural):
        left, right = (
            console.read(run, of_run[process]) if process in of_run else ProcessConsole()
            for run, of_run in zip(runs.directories, heads, strict=True)
        )
        for stream in range(len(STREAMS)):
            leaf = _stream(of_process(STREAMS[stream], process), stream, left, right, contexts)
            leaves += [] if leaf is None else [leaf]
    return group(NAME, tuple(leaves))


def _context(run: RunDirectory, heads: dict[str, ConsoleHead]) -> LineContext:
    facts = run.run
    ids = {facts.launcher_pid, *(head.pid for head in heads.values())}
    return LineContext(frozenset(ids), timestamp(facts.started) or 0.0, facts.working_directory)


def _stream(
    title: str, stream: int, left: ProcessConsole, right: ProcessConsole, contexts: tuple[LineContext, LineContext]
) -> Difference | None:
    one, other = _printed(left, stream), _printed(right, stream)
    cut = "" if one.is_whole and other.is_whole else CUT
    if not one.lines and not other.lines:
        detail = "; ".join(filter(None, (_left_out({}, max(one.bars, other.bars)), cut)))
        return Difference(title, Verdict.NOT_RECORDED, detail=detail) if detail else None
    if not one.lines or not other.lines:
        return missing(title, str(one), str(other))
    found = _compared(one, other, contexts)
    is_race = found.first is not None and _same_by_thread(one, other, contexts)
    if found.first is not None and not is_race:
        return _different(title, one, other, found.first)
    details = [_left_out(found.varied, max(one.bars, other.bars)), cut]
    if is_race:
        details.append("the order of lines of several threads, which is a race, is not compared")
    tells = tells_results(one.lines)
    if not tells:
        details.append("nothing but times and the like")
    verdict = Verdict.IDENTICAL if tells else Verdict.NOT_RECORDED
    return Difference(title, verdict, str(one), str(other), "; ".join(filter(None, details)))


def _printed(process: ProcessConsole, stream: int) -> _PrintedStream:
    first, bars = printed_lines(console.text(process.first, stream))
    last, more_bars = printed_lines(console.text(process.last, stream))
    if process.dropped:  # these two lines are not whole
        first, last = first[:-1], last[1:]
    pieces = [piece for piece in process.first + process.last if piece.stream == stream]
    names = sorted({piece.thread for piece in pieces})
    by_thread = {name: [piece for piece in pieces if piece.thread == name] for name in names}
    threads = {name: printed_lines(console.text(own, stream))[0] for name, own in by_thread.items() if len(names) > 1}
    return _PrintedStream(first, last, bars + more_bars, threads, not (pieces and (process.dropped or process.lost)))


def _compared(
    left: _PrintedStream, right: _PrintedStream, contexts: tuple[LineContext, LineContext]
) -> LinesComparison:
    """Compare all lines; of streams that were cut the first and the last that both have."""
    if left.is_whole and right.is_whole:
        return compare_lines(left.lines, right.lines, contexts)
    count = min(len(left.first), len(right.first))
    found = compare_lines(left.first[:count], right.first[:count], contexts)
    count = min(len(left.last), len(right.last))
    if found.first is None and count:
        last = compare_lines(left.last[-count:], right.last[-count:], contexts)
        return LinesComparison(found.varied + last.varied, last.first)
    return found


def _same_by_thread(left: _PrintedStream, right: _PrintedStream, contexts: tuple[LineContext, LineContext]) -> bool:
    if not left.threads or left.threads.keys() != right.threads.keys() or not (left.is_whole and right.is_whole):
        return False
    pairs = ((left.threads[name], right.threads[name]) for name in left.threads)
    return all(compare_lines(one, other, contexts).first is None for one, other in pairs)


def _different(
    title: str, left: _PrintedStream, right: _PrintedStream, first: tuple[PrintedLine | None, PrintedLine | None]
) -> Difference:
    one, other = first
    number = next(line.number for line in first if line is not None)
    texts = [_quoted(line) for line in first]
    meaning = f"{title}: line {number} is {texts[0]} in the left run and {texts[1]} in the right one"
    if one is None or other is None:
        side, text = ("right", texts[1]) if one is None else ("left", texts[0])
        count = abs(len(left.lines) - len(right.lines))
        more = "1 more line" if count == 1 else f"{count} more lines"
        meaning = f"{title}: only the {side} run goes on, with {more}, from line {number} on: {text}"
    return different(title, texts[0], texts[1], meaning, lacking=lacking(one, other))


def _quoted(line: PrintedLine | None) -> str:
    """Return a line cut to what a sentence has room for, secrets taken out before."""
    if line is None:
        return ""
    text = redaction.shown(line.text[:LOOKED_AT].encode("utf-8", "backslashreplace").decode())
    return repr(text if len(text) <= LONGEST else text[: LONGEST - 3] + "...")


def _left_out(varied: Mapping[str, int], bars: int) -> str:
    """Return what of the lines is not compared, in words."""
    parts = [f"{counted(count, 'line')} in {kind}" for kind, count in sorted(varied.items())]
    said = [f"not compared, as they are not the same in two runs: {', '.join(parts)}"] if parts else []
    said += [f"not compared, as they are of progress bars under way: {counted(bars, 'line')}"] if bars else []
    return "; ".join(said)


def comparable(tree: Difference) -> bool:
    """Return whether something that was printed is a result, or differs."""
    return any(leaf.verdict is not Verdict.NOT_RECORDED for leaf in tree.leaves())


def notes(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield what of the printed lines is not compared, and what was printed to stdout without being kept."""
    for leaf in tree.leaves():
        if leaf.detail and not leaf.verdict.differs:
            yield f"{leaf.name}: {leaf.detail}"
    for run, side in zip(runs.directories, SIDES, strict=True):
        if text := unseen(run, range(1)):
            yield f"of the {side} run, {text}"


def unseen(run: RunDirectory, streams: range = range(len(STREAMS))) -> str:
    """Return which processes printed by C's stdio, which is not kept; empty where none did."""
    found = [
        of_process(STREAMS[stream], process)
        for process, head in console.heads(run).items()
        for stream in streams
        if head.unseen >> stream & 1
    ]
    return f"what C's stdio printed is not kept: {listed(found, 3)}" if found else ""
