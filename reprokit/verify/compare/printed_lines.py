"""Compares printed lines. Two lines differ unless only volatile text differs in them, such as times.

Only times, rates, addresses, process ids or temporary names at the same place of both lines may differ; their number
is reported. A number right after the name of a metric or of a prediction is a result, whatever its unit ("MAE: 3.2
minutes"), and so are speeds ("3.2 km/h").
Of a line that was overwritten, as progress bars are, the last state counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

LOOKED_AT = 4096  # characters of a line that are searched for volatile text
DAY = 86400
DIRECTORIES = "the working directory"
LINE_ENDS = "blanks or carriage returns at the end"
SMALLEST_ID = 1000  # a smaller number is a process id only if the line says so

_NUMBER = r"(?<![\w.])[-+]?\d{1,20}(?:[.,]\d{1,20})?(?:[eE][-+]?\d{1,3})?"
_CLOCK = r"\d{1,4}:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[AP]M(?!\w))?(?!\d)"
_UNIT = r"(?:s|secs?|seconds?|m?secs?|[mnuµ]s|(?:milli|micro|nano)seconds?|minutes?|mins|hours?|hrs|days?)"
_PER = r"(?:s|secs?|seconds?|min|minute|h|hour)"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_ZONE = r"(?: ?(?:Z|UTC|[-+]\d\d:?\d\d)(?!\w))?"
_KEY = r"""["']?(?: ?[(\[][a-z/]{1,12}[)\]])?["']?\s{0,8}[:=]?\s{0,8}"""
_KINDS = {
    "rates": (
        rf"{_NUMBER} ?(?!(?:[cmk]?m|deg|rad)/)[A-Za-z]{{1,20}}/{_PER}(?![\w/])",
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
        rf"(?<![\w.])\d{{1,5}} ?(?:h|hours?|min|mins|minutes?),? (?:and )?\d{{1,2}}(?:\.\d{{1,9}})? ?{_UNIT}(?![\w/=])",
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
    "numbers": (r"(?<![\w.])\d{2,10}(?:\.\d{1,9})?(?![\w.])",),  # possible process ids, or seconds since 1970
}
_TOKEN = re.compile(
    "|".join(rf"(?P<{name.replace(' ', '_')}>{'|'.join(forms)})" for name, forms in _KINDS.items()), re.IGNORECASE
)
_NUMBERS = "numbers"
_METRIC = (
    r"(?:loss(?:es)?|errors?|scores?|accuracy|(?<![^\W_])(?:acc|auc|bias|crps|err|f1|huber|mad|mae|mase|medae|metric|mse"
    r"|msle|nll|objective|pinball|ppl|perplexity|predict(?:ed|ions?)|preds?|forecasts?|r2|regret|residuals?|rewards?|rmse"
    r"|rmsle|rmspe|s?mape|targets?|truth|w[am]pe))"
)
_OF_METRIC = (  # words between a metric's name and the number: "loss_avg", "MAE on the test set is"
    r"(?:[ _/.-](?:(?:after|at|for|in|on|over) (?:the )?)?(?:average|avg|best|data|dev|eval|final|holdout|is|max|mean"
    r"|median|min|of|rate|set|std|sum|test|total|train|training|val|valid|validation|was"
    r"|(?:epochs?|fold|iter|steps?)[ _]?\d{0,9})|[_@-]\d{1,4})"
)
_AFTER_METRIC = re.compile(
    rf"{_METRIC}{_OF_METRIC}{{0,5}}(?: ?[(\[][\w /%]{{1,20}}[)\]])?[^\w.,;]{{0,8}}"
    rf"(?:{_NUMBER}(?: ?{_UNIT})? ?\(?(?:±|\+/?-) ?)?$",
    re.IGNORECASE,
)
_BEFORE = 120  # characters before a number that are searched for a metric's name
_QUANTITY = re.compile(rf"{_NUMBER} ?(?:{_UNIT}(?![a-z])|[a-z]{{1,20}}/|[dhm] ?\d)", re.IGNORECASE)
_DURATION = re.compile(rf"(?:\d{{1,5}} days?,? )?{_CLOCK}", re.IGNORECASE)
_BEFORE_ID = re.compile(r"(?:pid|tid|process(?:\sid)?|worker)\W{0,3}$|[\[(]\s*$", re.IGNORECASE)
_COLOR = re.compile(r"\x1b\[[\d;]{0,40}m")
_STATES = re.compile(r"\r|\x08+")  # where a line was overwritten from its beginning
_SCREEN = re.compile(r"\x1b\[\d{0,4}[ABFHJ]")  # cursor movement between lines
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,400}\| *(\d{1,20}(?:\.\d+)?\w?)/(\d{1,20}(?:\.\d+)?\w?|\?) *\[")


@dataclass(frozen=True)
class LineContext:
    """A run's values that may appear in its lines without being results."""

    ids: frozenset[int] = frozenset()  # ids of its processes
    started: float = 0.0  # seconds since the epoch
    directory: str = ""  # its working directory


@dataclass(frozen=True)
class PrintedLine:
    """A line's last state, and its number from 1; behind a part that was not kept from the end, the last being -1."""

    number: int
    text: str
    end: str = ""  # blanks and carriage return at its end
    whole: str = ""  # where the user's rules leave some of it out: the line as it was printed
    rules: tuple[str, ...] = ()  # which do

    @property
    def printed(self) -> str:
        """Return the line as it was printed."""
        return self.whole or self.text


@dataclass
class LinesComparison:
    """The result of comparing the lines of two streams."""

    varied: Counter[str] = field(default_factory=Counter)  # number of lines by the volatile text that differs in them
    first: tuple[PrintedLine | None, PrintedLine | None] | None = None  # the first difference
    ignored: Counter[str] = field(default_factory=Counter)  # number of lines by the rule that leaves out what differs


def printed_lines(data: bytes) -> tuple[list[PrintedLine], int]:
    """Return the lines to compare, and the number of lines of progress bars; blank lines are neither."""
    lines, bars = [], 0
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
        states = _STATES.split(line.rstrip("\r")) if "\r" in line or "\x08" in line else [line]
        text = states[-1].rstrip()
        if _is_unfinished_bar(line, text):
            bars += 1
        elif text:
            lines.append(PrintedLine(number, text, "" if len(states) > 1 else line[len(text) :]))
    return lines, bars


def _is_unfinished_bar(line: str, text: str) -> bool:
    """Return whether a line is an unfinished progress bar, or moves the cursor as several bars do."""
    bar = _BAR.search(text) if "%|" in text else None
    return (bar is not None and bar[1] != bar[2]) or ("\x1b" in line and _SCREEN.search(line) is not None)


def tells_results(lines: Sequence[PrintedLine]) -> bool:
    """Return whether some line holds more than volatile text and the words around it."""
    return any(map(_has_result, lines))


def _has_result(line: PrintedLine) -> bool:
    text = _COLOR.sub("", line.text[:LOOKED_AT])
    volatile_tokens = [
        token for token in _TOKEN.finditer(text) if token.lastgroup != _NUMBERS and not _is_result(token)
    ]
    remaining_text = "".join(_text_between(text, volatile_tokens))
    return re.search(r"\d" if volatile_tokens else r"\w", remaining_text) is not None


def compare_lines(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: tuple[LineContext, LineContext]
) -> LinesComparison:
    """Compare two lists line by line, up to the first difference."""
    comparison = LinesComparison()
    for left_line, right_line in zip(left, right, strict=False):
        kinds = varying(left_line.text, right_line.text, contexts)
        if kinds is None:
            comparison.first = left_line, right_line
            return comparison
        comparison.ignored.update(ignored_by(left_line, right_line, contexts))
        kinds |= set() if left_line.end == right_line.end else {LINE_ENDS}
        comparison.varied.update([" and ".join(sorted(kinds))] if kinds else [])
    if len(left) != len(right):
        comparison.first = next(iter(left[len(right) :]), None), next(iter(right[len(left) :]), None)
    return comparison


def ignored_by(
    left: PrintedLine | None, right: PrintedLine | None, contexts: tuple[LineContext, LineContext]
) -> tuple[str, ...]:
    """Return the first of the user's rules without which two lines differ, or a line that has no partner."""
    rules = (*(left.rules if left else ()), *(right.rules if right else ()))
    if not rules or (left and right and varying(left.printed, right.printed, contexts) is not None):
        return ()
    return rules[:1]


def printed_results(text: str) -> list[str]:
    """Return the numbers in a text that stand right behind the name of a metric or of a prediction."""
    return [text[start:end] for start, end in result_spans(text)]


def result_spans(text: str) -> list[tuple[int, int]]:
    """Return where such numbers stand in a text; of a longer text in what is looked at."""
    numbers = re.finditer(_NUMBER, text[:LOOKED_AT])
    return [
        number.span()
        for number in numbers
        if _AFTER_METRIC.search(text[max(0, number.start() - _BEFORE) : number.start()]) is not None
    ]


def varying(left: str, right: str, contexts: tuple[LineContext, LineContext]) -> frozenset[str] | None:
    """Return the kinds of volatile text that differ in two lines; None if they differ otherwise."""
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
    if len(tokens[0]) != len(tokens[1]) or _text_between(left, tokens[0]) != _text_between(right, tokens[1]):
        return None
    kinds = set()
    for left_token, right_token in zip(*tokens, strict=True):
        if left_token[0] == right_token[0]:
            continue
        kinds_here = {_kind(token, context) for token, context in zip((left_token, right_token), contexts, strict=True)}
        if len(kinds_here) != 1 or "" in kinds_here:
            return None
        kinds |= kinds_here
    return frozenset(kinds) or None


def _text_between(line: str, tokens: Sequence[re.Match[str]]) -> list[str]:
    """Return the text around the tokens, without the blanks that align columns."""
    ends, starts = [0, *(token.end() for token in tokens)], [*(token.start() for token in tokens), len(line)]
    return [line[end:start].strip() for end, start in zip(ends, starts, strict=True)]


def _is_result(token: re.Match[str]) -> bool:
    """Return whether a token is a metric with a unit of time or rate; dates and times of logs are not."""
    if not _QUANTITY.match(token[0]) and not _DURATION.fullmatch(token[0]):
        return False
    before = token.string[max(0, token.start() - _BEFORE) : token.start()]
    is_named = _AFTER_METRIC.search(before) is not None
    return is_named and (_QUANTITY.match(token[0]) is not None or before.rstrip()[-1:] in ":=")


def _kind(token: re.Match[str], context: LineContext) -> str:
    """Return a token's kind of volatile text; empty for plain numbers and metrics."""
    if _is_result(token):
        return ""
    if token.lastgroup != _NUMBERS:
        return (token.lastgroup or "").replace("_", " ")
    number = float(token[0])
    if context.started and abs(number - context.started) < DAY:
        return "times"
    is_likely = number >= SMALLEST_ID or _BEFORE_ID.search(token.string[: token.start()])
    return "process ids" if token[0].isdecimal() and int(token[0]) in context.ids and is_likely else ""
