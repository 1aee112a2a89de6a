"""Compares lines that were printed. What differs in two of them is a difference, unless it is a time or the like.

Only what stands in the place of a time, a rate, an address, a process id or a temporary name in both lines may differ,
and what it was is counted. Right behind a metric's name a number is a result, whatever its unit ("MAE: 3.2 minutes").
Of a line that was written over, as progress bars are, the last state counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

LOOKED_AT = 4096  # characters of a line in which times and the like are told
DAY = 86400
DIRECTORIES = "the working directory"
LINE_ENDS = "blanks or carriage returns at the end"
SMALLEST_ID = 1000  # a number below it is a process id only where the line says so

_NUMBER = r"(?<![\w.])[-+]?\d{1,20}(?:[.,]\d{1,20})?(?:[eE][-+]?\d{1,3})?"
_CLOCK = r"\d{1,4}:\d\d:\d\d(?:[.,]\d{1,9})?(?!\d)"
_UNIT = r"(?:s|secs?|seconds?|m?secs?|[mnuµ]s|(?:milli|micro|nano)seconds?|minutes?|mins|hours?|hrs|days?)"
_PER = r"(?:s|secs?|seconds?|min|minute|h|hour)"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_ZONE = r"(?: ?(?:Z|UTC|[-+]\d\d:?\d\d)(?!\w))?"
_KEY = r"""["']?(?: ?[(\[][a-z/]{1,12}[)\]])?["']?\s{0,8}[:=]?\s{0,8}"""
_KINDS = {
    "rates": (
        rf"{_NUMBER} ?[A-Za-z]{{1,20}}/{_PER}(?![\w/])",
        rf"{_NUMBER} ?{_UNIT}/[A-Za-z]{{1,20}}(?!\w)",
        rf"\?[A-Za-z]{{1,20}}/{_PER}(?!\w)",
        rf"(?<!\w)(?:\w{{1,40}}_per_sec(?:ond)?|\w{{1,20}}/{_PER}|throughput|fps){_KEY}{_NUMBER}",
    ),
    "times": (
        rf"(?<!\d)\d{{4}}[-/]\d\d[-/]\d\d(?:[T _-]\d\d[:.-]\d\d(?:[:.-]\d\d(?:[.,]\d{{1,9}})?)?{_ZONE})?(?!\d)",
        r"(?<!\d)\d\d/\d\d/\d{4}(?!\d)",
        r"(?<!\d)\d{8}[-_T]\d{4,6}(?!\d)",
        rf"(?<!\w)(?:[A-Z][a-z]{{2,8}},? )?(?:\d{{1,2}} {_MONTH}|{_MONTH} {{1,2}}\d{{1,2}})(?:,? \d{{4}})?,? "
        rf"{_CLOCK}(?: [A-Z]{{3,4}}(?!\w))?(?: \d{{4}})?",
        rf"(?<!\w)[IWEF]\d{{4}} {_CLOCK}",
        rf"(?<![\w:])(?:\d{{1,5}} days?,? )?{_CLOCK}",
        r"(?<![\w:])\d{1,4}:\d\d(?::\d\d)?<(?:\?|[\d:]{4,10})",
        r"(?<![\w.])(?:\d{1,5}d ?)?\d{1,5}h ?\d{1,2}m(?: ?\d{1,2}(?:\.\d{1,9})?s)?(?!\w)",
        r"(?<![\w.])\d{1,5}m ?\d{1,2}(?:\.\d{1,9})?s(?!\w)",
        rf"(?<!\w)(?:\w{{0,40}}time|elapsed|duration|latency){_KEY}{_NUMBER}(?!\d|:\d)(?: ?{_UNIT}(?![\w/]))?",
        rf"{_NUMBER}{_UNIT}(?![\w/=])",
        rf"{_NUMBER} {_UNIT}(?![\w/]|\s{{0,8}}=|:\s{{0,8}}[-\d.]|\s{{1,8}}[-+.]?\d)",
    ),
    "addresses": (r"(?<!\w)0x(?:7[ef]|5[56])[0-9a-f]{10}(?!\w)", r"(?<=\bat )0x[0-9a-f]{6,16}(?!\w)"),
    "temporary names": (
        r"(?<=/tmp/)(?:tmp[a-z0-9_]{6,12}|[\w.-]{0,100}[-_.][A-Za-z0-9_]{8})(?=[/\s'\"),;:]|$)",
        r"(?<=/dev/shm/)[\w.-]{0,100}[-_.][A-Za-z0-9_]{6,8}(?=[\s'\"),;:]|$)",
    ),
    "progress bars": (r"(?<=%)\|[^|\n]{0,400}\|",),
    "numbers": (r"(?<![\w.])\d{2,10}(?:\.\d{1,9})?(?![\w.])",),  # which can be process ids, and seconds since 1970
}
_TOKEN = re.compile(
    "|".join(rf"(?P<{name.replace(' ', '_')}>{'|'.join(forms)})" for name, forms in _KINDS.items()), re.IGNORECASE
)
_NUMBERS = "numbers"
_METRIC = (
    r"(?:loss(?:es)?|errors?|scores?|accuracy|(?<![^\W_])(?:acc|auc|bias|crps|err|f1|huber|mad|mae|mase|medae|metric|mse"
    r"|msle|nll|objective|pinball|ppl|perplexity|r2|regret|residuals?|rewards?|rmse|rmsle|rmspe|s?mape|w[am]pe))"
)
_OF_METRIC = (  # words between its name and the number: "loss_avg", "MAE on the test set is"
    r"(?:[ _/.-](?:(?:after|at|for|in|on|over) (?:the )?)?(?:average|avg|best|data|dev|eval|final|holdout|is|max|mean"
    r"|median|min|of|rate|set|std|sum|test|total|train|training|val|valid|validation|was"
    r"|(?:epochs?|fold|iter|steps?)[ _]?\d{0,9})|[_@-]\d{1,4})"
)
_BEHIND_METRIC = re.compile(
    rf"{_METRIC}{_OF_METRIC}{{0,5}}(?: ?[(\[][\w /%]{{1,20}}[)\]])?[^\w.,;]{{0,8}}"
    rf"(?:{_NUMBER}(?: ?{_UNIT})? ?\(?(?:±|\+/?-) ?)?$",
    re.IGNORECASE,
)
_BEFORE = 120  # characters of a line in which the name of a metric is looked for
_QUANTITY = re.compile(rf"{_NUMBER} ?(?:{_UNIT}(?![a-z])|[a-z]{{1,20}}/|[dhm] ?\d)", re.IGNORECASE)
_DURATION = re.compile(rf"(?:\d{{1,5}} days?,? )?{_CLOCK}", re.IGNORECASE)
_OF_ID = re.compile(r"(?:pid|tid|process(?:\sid)?|worker)\W{0,3}$|[\[(]\s*$", re.IGNORECASE)
_COLOR = re.compile(r"\x1b\[[\d;]{0,40}m")
_STATES = re.compile(r"\r|\x08+")  # where a line was begun again
_SCREEN = re.compile(r"\x1b\[\d{0,4}[ABFHJ]")  # which moves between lines
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,400}\| *(\d{1,20}(?:\.\d+)?\w?)/(\d{1,20}(?:\.\d+)?\w?|\?) *\[")


@dataclass(frozen=True)
class LineContext:
    """What of one run can stand in its lines and is no result."""

    ids: frozenset[int] = frozenset()  # of its processes
    started: float = 0.0  # seconds since the epoch
    directory: str = ""  # in which it ran


@dataclass(frozen=True)
class PrintedLine:
    """A line as it stood at the end, and its number from 1."""

    number: int
    text: str
    end: str = ""  # blanks and the carriage return behind it


@dataclass
class LinesComparison:
    """What came of comparing the lines of two streams."""

    varied: Counter[str] = field(default_factory=Counter)  # lines by what differs in them and is not compared
    first: tuple[PrintedLine | None, PrintedLine | None] | None = None  # the first difference


def printed_lines(data: bytes) -> tuple[list[PrintedLine], int]:
    """Return the lines that are compared, and how many of them are a progress bar's: blank ones are neither."""
    lines, bars = [], 0
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        states = _STATES.split(line.rstrip("\r")) if "\r" in line or "\x08" in line else [line]
        text = states[-1].rstrip()
        if _is_under_way(line, text):
            bars += 1
        elif text:
            lines.append(PrintedLine(number, text, "" if len(states) > 1 else line[len(text) :]))
    return lines, bars


def _is_under_way(line: str, text: str) -> bool:
    """Return whether a line is of a progress bar that is not at its end, or moves on the screen as several do."""
    bar = _BAR.search(text) if "%|" in text else None
    return (bar is not None and bar[1] != bar[2]) or ("\x1b" in line and _SCREEN.search(line) is not None)


def tells_results(lines: Sequence[PrintedLine]) -> bool:
    """Return whether some line holds more than times and the like, and the words around them."""
    return any(map(_tells, lines))


def _tells(line: PrintedLine) -> bool:
    text = _COLOR.sub("", line.text[:LOOKED_AT])
    varying = [token for token in _TOKEN.finditer(text) if token.lastgroup != _NUMBERS and not _is_result(token)]
    rest = "".join(_between(text, varying))
    return re.search(r"\d" if varying else r"\w", rest) is not None


def compare_lines(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: tuple[LineContext, LineContext]
) -> LinesComparison:
    """Compare two lists line by line, up to the first difference."""
    found = LinesComparison()
    for one, other in zip(left, right, strict=False):
        kinds = varying(one.text, other.text, contexts)
        if kinds is None:
            found.first = one, other
            return found
        kinds |= set() if one.end == other.end else {LINE_ENDS}
        found.varied.update([" and ".join(sorted(kinds))] if kinds else [])
    if len(left) != len(right):
        found.first = next(iter(left[len(right) :]), None), next(iter(right[len(left) :]), None)
    return found


def varying(left: str, right: str, contexts: tuple[LineContext, LineContext]) -> frozenset[str] | None:
    """Return the kinds of what differs in two lines and is not compared; None where they differ otherwise."""
    if left == right:
        return frozenset()
    if contexts[0].directory != contexts[1].directory:
        left, right = (
            text.replace(context.directory, ".") if len(context.directory) > 1 else text
            for text, context in zip((left, right), contexts, strict=True)
        )
        if left == right:
            return frozenset({DIRECTORIES})
    if left[LOOKED_AT:] != right[LOOKED_AT:]:
        return None
    if _COLOR.findall(left) != _COLOR.findall(right):
        return None
    left, right = (_COLOR.sub("", text[:LOOKED_AT]) for text in (left, right))
    tokens = list(_TOKEN.finditer(left)), list(_TOKEN.finditer(right))
    if len(tokens[0]) != len(tokens[1]) or _between(left, tokens[0]) != _between(right, tokens[1]):
        return None
    kinds = set()
    for one, other in zip(*tokens, strict=True):
        if one[0] == other[0]:
            continue
        found = {_kind(token, context) for token, context in zip((one, other), contexts, strict=True)}
        if len(found) != 1 or "" in found:
            return None
        kinds |= found
    return frozenset(kinds) or None


def _between(line: str, tokens: Sequence[re.Match[str]]) -> list[str]:
    """Return what stands around the tokens, without the blanks by which a column of them is made."""
    ends, starts = [0, *(token.end() for token in tokens)], [*(token.start() for token in tokens), len(line)]
    return [line[end:start].strip() for end, start in zip(ends, starts, strict=True)]


def _is_result(token: re.Match[str]) -> bool:
    """Return whether a token is a metric in a unit of time or of a rate: a date, and the time in a log, are none."""
    if not _QUANTITY.match(token[0]) and not _DURATION.fullmatch(token[0]):
        return False
    before = token.string[max(0, token.start() - _BEFORE) : token.start()]
    is_named = _BEHIND_METRIC.search(before) is not None
    return is_named and (_QUANTITY.match(token[0]) is not None or before.rstrip()[-1:] in ":=")


def _kind(token: re.Match[str], context: LineContext) -> str:
    """Return what a token is; empty for a number that is nothing but a number, and for a metric."""
    if _is_result(token):
        return ""
    if token.lastgroup != _NUMBERS:
        return (token.lastgroup or "").replace("_", " ")
    number = float(token[0])
    if context.started and abs(number - context.started) < DAY:
        return "times"
    is_said = number >= SMALLEST_ID or _OF_ID.search(token.string[: token.start()])
    return "process ids" if number in context.ids and is_said else ""
