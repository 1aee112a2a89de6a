"""Compares what the processes of two runs printed: line by line, in each process and stream.

The order of lines of several threads is a race: it may differ if each thread printed the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import zip_longest

from reprokit.core import redaction
from reprokit.core.difference import (
    SIDES,
    Difference,
    IgnoredCount,
    IgnoredThing,
    Verdict,
    bookkeeping,
    different,
    group,
    lacking,
    missing,
    more_bookkeeping,
)
from reprokit.core.printable import cut, listed
from reprokit.run_files import console
from reprokit.run_files.console import STREAMS, ConsoleHead, ProcessConsole
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.recognition import Contexts
from reprokit.verify.categories.declared_outputs import DeclaredIgnores, DeclaredLines
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.printed_lines import (
    LINE_ENDS,
    LOOKED_AT,
    ExactComparer,
    LineComparer,
    LinesComparison,
    PrintedLine,
    compare_lines,
    exact_lines,
    ignored_by,
    printed_lines,
    tells_results,
)
from reprokit.verify.categories.ranks import rank_of
from reprokit.verify.categories.series_leaves import counted
from reprokit.verify.comparison import PRINTED_MORE
from reprokit.verify.read.scan import natural, of_process

NAME = "console"
CUT = "only whole lines of the first and the last part are compared, as the rest was not kept"
UNCOUNTED = "an unknown number of lines is not compared"
SHORTAGE = "as memory, disk or descriptors were short"
THREADS_RACE = "the order of lines of several threads, which is a race, is not compared"
MERGED = "it is what the ranks printed, merged by their launcher: each rank's own text is compared"
RANKS_RACE = "the order in which the launcher merged the lines of its ranks, which is a race, is not compared"
UNKNOWN = "not compared: of one run nothing could be kept of it"
LONGEST = 160  # characters of a quoted line
NOTHING_DECLARED = DeclaredIgnores()
MOST_NAMED = 50  # values of one stream that are bookkeeping and named one by one
_DIGITS = re.compile(r"\d+")
MOST_ADDED_TO = 100_000  # lines among which those of the other run are looked for in their order
MOST_ALIGNED = 1_000  # lines of each run, where both have lines of their own: that takes their square


@dataclass(frozen=True)
class _PrintedStream:
    """The lines that one process printed to one stream."""

    first: list[PrintedLine]
    last: list[PrintedLine]  # after the dropped part
    bars: int
    threads: dict[str, list[PrintedLine]]  # lines of each thread, if several printed
    is_whole: bool
    has_all: bool  # whether all that the process printed is kept, to any stream
    gap: int | None = 0  # lines between the two parts; None if that is not known
    left_out: tuple[PrintedLine, ...] = ()  # of which the user's rules leave nothing
    is_merged: bool = False  # of several ranks, by their launcher

    @property
    def lines(self) -> list[PrintedLine]:
        return self.first + self.last

    def __str__(self) -> str:
        return counted(len(self.lines), "line") if self.lines else ""


def compare(runs: RunPair) -> Difference:
    """Return a leaf for each process and stream."""
    keeps_console = [run.keeps_console for run in runs.directories]
    if not any(keeps_console):
        return group(NAME, ())
    if not all(keeps_console):
        side = "right" if keeps_console[0] else "left"
        reason = f"not compared: of the {side} run nothing was kept of what it printed"
        return group(NAME, (Difference("stdout and stderr", Verdict.NOT_RECORDED, detail=reason),))
    contexts = None if runs.strict_console else runs.contexts
    heads = console.heads(runs.directories[0]), console.heads(runs.directories[1])
    leaves = []
    processes = {*runs.left.processes, *runs.right.processes, *heads[0], *heads[1]}
    for process in sorted({*heads[0], *heads[1]}, key=natural):
        file = next(of_run[process] for of_run in heads if process in of_run).file
        left, right = (
            _process_console(run, heads_of_run.get(process), file)
            for run, heads_of_run in zip(runs.directories, heads, strict=True)
        )
        ranks = ranks_below(process, processes)
        for stream, name in enumerate(STREAMS):
            exactly = runs.strict_console
            printed = _printed_stream(left, stream, exactly), _printed_stream(right, stream, exactly)
            if all(is_merged(ranks, of_run, stream) for of_run in heads):
                texts = [
                    texts_of(run, ranks, of_run, stream) for run, of_run in zip(runs.directories, heads, strict=True)
                ]
                printed = _merged(printed[0], left, stream, texts[0]), _merged(printed[1], right, stream, texts[1])
                printed = _of_training(printed[0], runs.directories[0]), _of_training(printed[1], runs.directories[1])
            leaf = _stream_leaf(of_process(name, process), printed, contexts, runs.declared)
            leaves += [] if leaf is None else [leaf]
    return group(NAME, tuple(leaves))


def _process_console(run: RunDirectory, head: ConsoleHead | None, file: str) -> ProcessConsole:
    """Return what a process printed; without a head, whether its file, which has the other run's name, is unused."""
    if head is not None:
        return console.read(run, head)
    return console.NEVER_BEGUN if file in console.never_begun(run) else ProcessConsole()


def _stream_leaf(
    title: str,
    streams: tuple[_PrintedStream, _PrintedStream],
    contexts: Contexts | None,
    declared: DeclaredIgnores = NOTHING_DECLARED,
) -> Difference | None:
    if not declared.rules.console:
        return _leaf_of(title, *streams, contexts)
    filtered = DeclaredLines(declared, (line for side in streams for line in side.lines))
    streams = _filtered(streams[0], filtered), _filtered(streams[1], filtered)
    return _with_ignored(title, _leaf_of(title, *streams, contexts), _ignored_lines(*streams, contexts))


def _filtered(stream: _PrintedStream, filtered: DeclaredLines) -> _PrintedStream:
    """Return a stream without what the user declared that it may differ."""
    return replace(
        stream,
        first=filtered.of(stream.first),
        last=filtered.of(stream.last),
        threads={name: filtered.of(lines) for name, lines in stream.threads.items()},
        left_out=tuple(filtered.left_out(stream.lines)),
    )


def _ignored_lines(left: _PrintedStream, right: _PrintedStream, contexts: Contexts | None) -> Counter[str]:
    """Return how many lines differ only in what each of the user's rules leaves out, up to the first difference."""
    whole, _ = _compare_in_any_order(left, right, contexts)
    comparisons = [whole]
    if whole.first is not None and _same_by_thread(left, right, contexts):
        comparisons = [compare_lines(left.threads[name], right.threads[name], contexts) for name in left.threads]
    counts = sum((comparison.ignored for comparison in comparisons), Counter[str]())
    for pair in zip_longest(left.left_out, right.left_out):
        counts.update(ignored_by(*pair, contexts))
    return counts


def _with_ignored(title: str, leaf: Difference | None, counts: Counter[str]) -> Difference | None:
    if not counts:
        return leaf
    ignored = tuple(IgnoredCount(rule, IgnoredThing.LINE, count) for rule, count in counts.items())
    if leaf is None:
        return Difference(title, Verdict.NOT_RECORDED, detail="nothing beside what was declared", ignored=ignored)
    return replace(leaf, judged=Verdict.IGNORED if leaf.verdict is Verdict.IDENTICAL else leaf.judged, ignored=ignored)


def _leaf_of(
    title: str, left_stream: _PrintedStream, right_stream: _PrintedStream, contexts: Contexts | None
) -> Difference | None:
    cut_note = _cut_words(left_stream, right_stream)
    if not left_stream.lines and not right_stream.lines:
        merged = MERGED if left_stream.is_merged else ""
        bars = _ignored_words(0, max(left_stream.bars, right_stream.bars))
        detail = "; ".join(filter(None, (bars, cut_note, merged)))
        return Difference(title, Verdict.NOT_RECORDED, detail=detail) if detail else None
    if not left_stream.lines or not right_stream.lines:
        without_lines = right_stream if left_stream.lines else left_stream
        if not without_lines.has_all:
            return Difference(title, Verdict.NOT_RECORDED, str(left_stream), str(right_stream), UNKNOWN)
        return missing(title, str(left_stream), str(right_stream))
    comparison, race = _compare_in_any_order(left_stream, right_stream, contexts)
    if comparison.first is not None and not race:
        return _different(title, left_stream, right_stream, comparison, contexts)
    details = [_ignored_words(comparison.line_ends, max(left_stream.bars, right_stream.bars)), cut_note, race]
    has_results = contexts is None or tells_results(left_stream.lines, contexts[0])
    if not has_results:
        details.append("nothing but times and the like")
    verdict = Verdict.IDENTICAL if has_results else Verdict.NOT_RECORDED
    leaf = Difference(title, verdict, str(left_stream), str(right_stream), "; ".join(filter(None, details)))
    if not comparison.values:
        return leaf
    return replace(leaf, judged=None, detail="", children=(leaf, *_bookkeeping(title, comparison)))


def _bookkeeping(title: str, comparison: LinesComparison) -> Iterator[Difference]:
    """Yield the bookkeeping that differs in the lines; beyond the first values only numbers of them."""
    lines = {id(line): line for line, _ in comparison.values}
    figures: dict[str, int | str] = {
        "printed_lines": len(lines),
        "first_line": _quoted(next(iter(lines.values()))),
    }
    for line, value in comparison.values[:MOST_NAMED]:
        leaf = bookkeeping(f"{title}: {_place(line)}", value.left, value.right, value.kind)
        yield replace(leaf, figures=figures)
        figures = {}
    yield from more_bookkeeping(title, Counter(value.kind for _, value in comparison.values[MOST_NAMED:]))


def _merged(printed: _PrintedStream, process: ProcessConsole, stream: int, texts: list[bytes]) -> _PrintedStream:
    """Return what a launcher printed beside the texts of its ranks; all of it if those are not known."""
    if not (texts and printed.is_whole):
        return replace(printed, is_merged=True)
    lines = without_ranks(printed.lines, console.text([*process.first, *process.last], stream), texts)
    return replace(printed, first=lines, last=[], threads={}, bars=0, is_merged=True)


def _of_training(merged: _PrintedStream, run: RunDirectory) -> _PrintedStream:
    """Return nothing for a run continued from a keyframe: its ranks gave their launcher what is not the training's."""
    continued = run.run.continues
    if continued is None or not continued.step:
        return merged
    return replace(merged, first=[], last=[], threads={}, bars=0, has_all=False)


def _printed_stream(process: ProcessConsole, stream: int, exactly: bool = False) -> _PrintedStream:
    """Return the lines of a stream; without exactness, blank ones and progress bars under way are left out."""

    def lines_of(data: bytes) -> tuple[list[PrintedLine], int]:
        return (exact_lines(data), 0) if exactly else printed_lines(data)

    first_text = console.text(process.first, stream)
    first, bars = lines_of(first_text)
    last_text = console.text(process.last, stream)
    last, more_bars = lines_of(last_text)
    if process.dropped:  # the lines next to the dropped part are incomplete
        end = last_text.count(b"\n") + (not last_text.endswith(b"\n")) + 1
        first, last = first[:-1], [replace(line, number=line.number - end) for line in last[1:]]
    pieces = [piece for piece in process.first + process.last if piece.stream == stream]
    names = sorted({piece.thread for piece in pieces})
    by_thread = {name: [piece for piece in pieces if piece.thread == name] for name in names}
    threads = {
        name: lines_of(console.text(thread_pieces, stream))[0]
        for name, thread_pieces in by_thread.items()
        if len(names) > 1
    }
    gap = _gap(process, stream, first_text.endswith(b"\n"))
    is_whole = process.is_whole or not pieces
    return _PrintedStream(first, last, bars + more_bars, threads, is_whole, process.is_whole, gap)


def _gap(process: ProcessConsole, stream: int, ends_with_line: bool) -> int | None:
    """Return how many lines are not compared between the two parts, with those beside it, which may be cut."""
    if process.dropped_lines is None or process.lost or not process.begun:
        return None
    at_ends = int(ends_with_line) + any(piece.stream == stream for piece in process.last)
    return process.dropped_lines[stream] + at_ends if process.dropped else 0


def _cut_words(left: _PrintedStream, right: _PrintedStream) -> str:
    """Return how many lines are not compared, as they were not kept; empty if all are."""
    if left.is_whole and right.is_whole:
        return ""
    compared = sum(_compared_counts(left, right))
    counts = [None if side.gap is None else side.gap + len(side.lines) - compared for side in (left, right)]
    if None in counts:
        return f"{UNCOUNTED}: {CUT}"
    texts = [counted(count or 0, "line") for count in counts]
    sides = f"{texts[0]} of the left run and {texts[1]} of the right one" if texts[0] != texts[1] else texts[0]
    return f"not compared are {sides}: {CUT}"


def _compared_counts(left: _PrintedStream, right: _PrintedStream) -> tuple[int, int]:
    """Return how many lines of streams that were cut both have at the start, and at the end."""
    return min(len(left.first), len(right.first)), min(len(left.last), len(right.last))


def _compare_streams(left: _PrintedStream, right: _PrintedStream, contexts: Contexts | None) -> LinesComparison:
    """Compare all lines; of streams that were cut, the first and the last lines that both have."""
    if left.is_whole and right.is_whole:
        return compare_lines(left.lines, right.lines, contexts)
    count, last_count = _compared_counts(left, right)
    comparison = compare_lines(left.first[:count], right.first[:count], contexts)
    if comparison.first is None and last_count:
        last_comparison = compare_lines(left.last[-last_count:], right.last[-last_count:], contexts)
        return comparison + last_comparison
    return comparison


def _compare_in_any_order(
    left: _PrintedStream, right: _PrintedStream, contexts: Contexts | None
) -> tuple[LinesComparison, str]:
    """Compare two streams; return also which race explains that their order differs, in words, or nothing."""
    comparison = _compare_streams(left, right, contexts)
    if comparison.first is None:
        return comparison, ""
    if _same_by_thread(left, right, contexts):
        return comparison, THREADS_RACE
    if left.is_merged and left.is_whole and right.is_whole:
        as_set = compare_as_set(left.lines, right.lines, contexts)
        return (as_set, RANKS_RACE) if as_set.first is None else (as_set, "")
    return comparison, ""


def _same_by_thread(left: _PrintedStream, right: _PrintedStream, contexts: Contexts | None) -> bool:
    if not left.threads or left.threads.keys() != right.threads.keys() or not (left.is_whole and right.is_whole):
        return False
    pairs = ((left.threads[name], right.threads[name]) for name in left.threads)
    return all(compare_lines(left_lines, right_lines, contexts).first is None for left_lines, right_lines in pairs)


def _place(line: PrintedLine) -> str:
    return f"line {line.number}" if line.number > 0 else f"line {-line.number} from the end of what was kept"


def _different(
    title: str, left: _PrintedStream, right: _PrintedStream, comparison: LinesComparison, contexts: Contexts | None
) -> Difference:
    assert comparison.first is not None
    left_line, right_line = comparison.first
    place = _place(next(line for line in comparison.first if line is not None))
    texts = [_quoted(line) for line in comparison.first]
    if left_line is None or right_line is None:
        side, text = ("right", texts[1]) if left_line is None else ("left", texts[0])
        more = len(right.lines) - len(left.lines)
        meaning = f"{title}: only the {side} run goes on, with {_more(abs(more))}, from {place} on: {text}"
        figures, side_lacking = {PRINTED_MORE: more}, lacking(left_line, right_line)
        return different(title, texts[0], texts[1], meaning, figures=figures, lacking=side_lacking)
    can_be_aligned = left.is_whole and right.is_whole and not left.is_merged
    places = gaps(left.lines, right.lines, contexts) if can_be_aligned else []
    if places and not (places[0].left and places[0].right):
        return _added(title, places)
    meaning = f"{title}: {place} is {texts[0]} in the left run and {texts[1]} in the right one{_further(places)}"
    if comparison.look_alike is not None:
        alike = comparison.look_alike
        meaning += (
            f"; {alike.left} and {alike.right} may be a {alike.kind.value}, but nothing names them so:"
            " if they are no result, --ignore-console REGEX leaves them out"
        )
    return different(title, texts[0], texts[1], meaning)


def _added(title: str, places: Sequence[LineGap]) -> Difference:
    """Return the leaf for lines that only one run printed, at the first place that differs, and what differs behind."""
    first = places[0].left or places[0].right
    side, text = "left" if places[0].left else "right", _quoted(first[0])
    texts = (text, "") if places[0].left else ("", text)
    of_sides = sum(len(place.left) for place in places), sum(len(place.right) for place in places)
    if 0 not in of_sides:
        count, further = len(first), _further(places)
    else:
        count, further = sum(of_sides), ""
    meaning = f"{title}: only the {side} run printed {_place(first[0])}, {text}"
    meaning += f", and {_more(count - 1)}" if count > 1 else ""
    figures = {} if further else {PRINTED_MORE: of_sides[1] - of_sides[0]}
    return different(title, *texts, meaning + further, figures=figures)


def _further(places: Sequence[LineGap]) -> str:
    """Return how many places differ behind the first, in words."""
    count = len(places) - 1
    return f"; {counted(count, 'further place')} differ{'s' if count == 1 else ''}" if count > 0 else ""


def _more(count: int) -> str:
    return "1 more line" if count == 1 else f"{count} more lines"


def _quoted(line: PrintedLine | None) -> str:
    """Return a line quoted for a sentence: without secrets, and cut to a maximum length."""
    if line is None:
        return ""
    text = redaction.shown(line.printed[:LOOKED_AT].encode("utf-8", "backslashreplace").decode())
    return repr(cut(text, LONGEST))


def _ignored_words(line_ends: int, bars: int) -> str:
    """Return which lines are not compared, in words."""
    sentences = [f"not compared: {counted(line_ends, 'line')} in {LINE_ENDS}"] if line_ends else []
    sentences += [f"not compared, as they are of progress bars under way: {counted(bars, 'line')}"] if bars else []
    return "; ".join(sentences)


def comparable(tree: Difference) -> bool:
    """Return whether something printed is a result, or differs."""
    neither = (Verdict.NOT_RECORDED, Verdict.BOOKKEEPING)
    return any(leaf.verdict not in neither for leaf in tree.leaves())


def why_absent(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield why nothing that was printed is compared."""
    yield from notes(runs, tree)
    yield from (text for run in runs.directories for text in unseen(run))
    yield "neither printed anything that is kept"


def notes(runs: RunPair, tree: Difference) -> Iterator[str]:
    """Yield which printed lines are not compared, and what was printed to stdout but not kept."""
    for leaf in tree.leaves():
        if leaf.detail and not leaf.verdict.differs and leaf.verdict is not Verdict.BOOKKEEPING:
            yield f"{leaf.name}: {leaf.detail}"
    for run, side in zip(runs.directories, SIDES, strict=True):
        for text in unseen(run, range(1)):
            yield f"of the {side} run, {text}"


def unseen(run: RunDirectory, streams: range = range(len(STREAMS))) -> Iterator[str]:
    """Yield what was printed and is not recorded: by C's stdio, and before processes could begin their files."""
    heads = console.heads(run)
    streams_unseen = [
        of_process(STREAMS[stream], process)
        for process, head in heads.items()
        for stream in streams
        if head.unseen >> stream & 1
    ]
    if streams_unseen:
        yield f"what C's stdio printed is not kept: {listed(streams_unseen, 3)}"
    if begun_late := [process for process, head in heads.items() if head.missed]:
        yield f"the first text is not kept, {SHORTAGE}: {listed([f'process {process}' for process in begun_late], 3)}"
    if count := len(console.never_begun(run)):
        yield f"the text of {count} {'process' if count == 1 else 'processes'} is not kept, {SHORTAGE}"


def ranks_below(process: str, others: Iterable[str]) -> list[str]:
    """Return the ranks that a process may have launched, by their names."""
    own = rank_of(process)[0]
    prefix = f"{own}." if own else "rank"
    return [name for name in others if rank_of(name)[0].startswith(prefix)]


def is_merged(ranks: Sequence[str], heads: Mapping[str, ConsoleHead], stream: int) -> bool:
    """Return whether the launcher of these ranks prints for them: none of them printed to the command's own stream."""
    printing = [heads[rank] for rank in ranks if rank in heads]
    return bool(ranks) and (not printing or any(head.forwards(stream) for head in printing))


def texts_of(run: RunDirectory, ranks: Sequence[str], heads: Mapping[str, ConsoleHead], stream: int) -> list[bytes]:
    """Return what each rank gave to its launcher, as far as it was kept."""
    giving = [heads[rank] for rank in ranks if rank in heads and heads[rank].forwards(stream)]
    consoles = [console.read(run, head) for head in giving]
    return [console.text([*printed.first, *printed.last], stream) for printed in consoles]


def without_ranks(lines: Sequence[PrintedLine], merged: bytes, texts: Sequence[bytes]) -> list[PrintedLine]:
    """Return the lines of a merged text that no rank gave: none if it has only the characters of theirs."""
    if _characters([merged]) == _characters(texts):
        return []
    given = Counter(line.text for text in texts for line in printed_lines(text)[0])
    return _others(lines, given)


def _characters(texts: Iterable[bytes]) -> Counter[int]:
    """Count the characters of some texts; a terminal between rank and launcher adds carriage returns."""
    return sum((Counter(text.replace(b"\r", b"")) for text in texts), Counter[int]())


def compare_as_set(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None
) -> LinesComparison:
    """Compare lines in any order: equal ones first, then the others in the order of the words around their numbers."""
    common = Counter(line.text for line in left) & Counter(line.text for line in right)
    others = [sorted(_others(side, common), key=_words) for side in (left, right)]
    return compare_lines(others[0], others[1], contexts)


def _words(line: PrintedLine) -> str:
    """Return a line without its numbers."""
    return _DIGITS.sub("#", line.text)


def _others(lines: Iterable[PrintedLine], known: Counter[str]) -> list[PrintedLine]:
    """Return the lines beyond those that are known, each as often as it is."""
    rest, others = known.copy(), []
    for line in lines:
        if rest[line.text] > 0:
            rest[line.text] -= 1
        else:
            others.append(line)
    return others


@dataclass(frozen=True)
class LineGap:
    """Lines at one place that are not the same in both runs; of one side there may be none."""

    left: tuple[PrintedLine, ...]
    right: tuple[PrintedLine, ...]


def gaps(left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None) -> list[LineGap]:
    """Return the places that differ, in their order; none if there are too many lines to align."""
    start = _common(left, right, contexts)
    left, right = left[start:], right[start:]
    if max(len(left), len(right)) <= MOST_ADDED_TO:
        added = _beyond_other(left, right, contexts)
        if added is not None:
            return added
    if max(len(left), len(right)) > MOST_ALIGNED:
        return []
    return list(_aligned(left, right, contexts))


def _comparer(contexts: Contexts | None) -> LineComparer | ExactComparer:
    return LineComparer(contexts) if contexts else ExactComparer()


def _are_same(comparer: LineComparer | ExactComparer, left: PrintedLine, right: PrintedLine) -> bool:
    return comparer.compare(left.text, right.text) is not None


def _common(left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None) -> int:
    """Return how many lines are the same at the start."""
    comparer, count = _comparer(contexts), 0
    for left_line, right_line in zip(left, right, strict=False):
        if not _are_same(comparer, left_line, right_line):
            break
        count += 1
    return count


def _beyond_other(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None
) -> list[LineGap] | None:
    """Return what one side has beyond the other, all of whose lines it has in their order; None if it has not."""
    is_left_longer = len(left) > len(right)
    longer, shorter = (left, right) if is_left_longer else (right, left)
    comparer = _comparer(contexts)
    groups: list[list[PrintedLine]] = [[]]
    found = 0
    for line in longer:
        pair = (line, shorter[found]) if found < len(shorter) else None
        if pair is not None and _are_same(comparer, *(pair if is_left_longer else pair[::-1])):
            found += 1
            groups.append([])
        else:
            groups[-1].append(line)
    if found < len(shorter):
        return None
    added = [tuple(group) for group in groups if group]
    return [LineGap(lines, ()) if is_left_longer else LineGap((), lines) for lines in added]


def _aligned(left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None) -> Iterator[LineGap]:
    """Yield the places that differ by a diff of the texts; within one, lines are compared where both have as many."""
    texts = [[line.text for line in side] for side in (left, right)]
    matcher = SequenceMatcher(a=texts[0], b=texts[1], autojunk=False)
    for what, left_start, left_end, right_start, right_end in matcher.get_opcodes():
        if what == "equal":
            continue
        sides = left[left_start:left_end], right[right_start:right_end]
        added = _beyond_other(*sides, contexts)
        yield from [LineGap(tuple(sides[0]), tuple(sides[1]))] if added is None else added
