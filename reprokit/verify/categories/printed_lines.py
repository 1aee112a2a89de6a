"""Compares printed lines. Two lines differ unless all values that differ in them are recognized as bookkeeping.

The name of a value in a line is what stands around it: "train_runtime = 0.2", "took 3 s", the head of its column.
Of a line that was overwritten, as progress bars are, the last state counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from reprokit.core.difference import BookkeepingKind
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.forms import Form
from reprokit.verify.bookkeeping.recognition import Contexts, Position, RunContext, ValueName, recognized, resembles

LOOKED_AT = 4096  # characters of a line that are searched for bookkeeping
MOST_KNOWN = 1000  # kinds of lines whose names are kept
LINE_ENDS = "blanks or carriage returns at the end"

_DIGIT = re.compile(r"\d")
_COLOR = re.compile(r"\x1b\[[\d;]{0,40}m")
_STATES = re.compile(r"\r|\x08+")  # where a line was overwritten from its beginning
_SCREEN = re.compile(r"\x1b\[\d{0,4}[ABFHJ]")  # cursor movement between lines
_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,400}\| *(\d{1,20}(?:\.\d+)?\w?)/(\d{1,20}(?:\.\d+)?\w?|\?) *\[")
_PIECES = re.compile(r"[,;|{}<>()\[\]\t\u2022]|(?<!\w)[-\u2014](?!\w)|:(?!$)|\s{3,}")  # what parts the names of values
_UNIT_BEHIND = re.compile(r"\s?[(\[][\w/%]{1,20}[)\]]$")  # "time (s)"
_KEY_END = re.compile(r"[\s\"'=:(\[<>]*$")
_EQUATED = re.compile(r"\s*[:=]\s*")  # behind "epoch 3" in "epoch 3: 3.2 s"
_NAMES = re.compile(r"[A-Za-z_]\s*(?:,|/|\band\b)\s*[A-Za-z_][\w ]*[\s)\"'=:(\[]*$")  # "loss, time: "
_CONTINUED = re.compile(r"\s*(?:,|/|to|\.\.\.?|[(\[])?\s*(?:±|\+/?-)?\s*")  # between values of one name
_SIDES = "|\u2502\u2503\u2551"  # of tables, as Rich draws them
_CELLS = re.compile(rf"\s*[{_SIDES},\t]\s*|\s{{2,}}")
_IS_HOST = re.compile(r"..*[\d.-]|[\d.-].*.")  # a name that is no plain word
_WITHIN = re.compile(r"[\w/.~-]")


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


@dataclass(frozen=True)
class RecognizedValue:
    """Two values at the same place that are bookkeeping."""

    kind: BookkeepingKind
    left: str
    right: str


@dataclass(frozen=True)
class LookAlike:
    """Two values that look like bookkeeping, while nothing names them so."""

    kind: BookkeepingKind
    left: str
    right: str


@dataclass
class LinesComparison:
    """The result of comparing the lines of two streams."""

    values: list[tuple[PrintedLine, RecognizedValue]] = field(default_factory=list)
    line_ends: int = 0  # lines in which only blanks at the end differ
    first: tuple[PrintedLine | None, PrintedLine | None] | None = None  # the first difference
    look_alike: LookAlike | None = None  # in the first difference
    ignored: Counter[str] = field(default_factory=Counter)  # number of lines by the rule that leaves out what differs

    def __add__(self, other: LinesComparison) -> LinesComparison:
        return LinesComparison(
            self.values + other.values,
            self.line_ends + other.line_ends,
            other.first,
            other.look_alike,
            self.ignored + other.ignored,
        )


def exact_lines(data: bytes) -> list[PrintedLine]:
    """Return all lines as they were printed."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return [PrintedLine(number, line) for number, line in enumerate(lines if lines[-1] else lines[:-1], 1)]


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


def tells_results(lines: Sequence[PrintedLine], context: RunContext) -> bool:
    """Return whether some line holds more than bookkeeping and the words around it."""
    return any(_has_result(line, context) for line in lines)


def _has_result(line: PrintedLine, context: RunContext) -> bool:
    text = _COLOR.sub("", line.text[:LOOKED_AT])
    tokens = list(forms.TOKEN.finditer(text))
    volatile_tokens = [
        token
        for token, name in zip(tokens, _names(text, tokens), strict=True)
        if recognized(name, token[0], token[0], (context, context), (form := forms.form_of(token), form))
    ]
    remaining_text = "".join(_text_between(text, volatile_tokens))
    return re.search(r"\d" if volatile_tokens else r"\w", remaining_text) is not None


def compare_lines(
    left: Sequence[PrintedLine], right: Sequence[PrintedLine], contexts: Contexts | None
) -> LinesComparison:
    """Compare two lists line by line, up to the first difference; exactly if there are no contexts."""
    comparison, comparer = LinesComparison(), LineComparer(contexts) if contexts else ExactComparer()
    for left_line, right_line in zip(left, right, strict=False):
        values = comparer.compare(left_line.text, right_line.text)
        if values is None:
            comparison.first, comparison.look_alike = (left_line, right_line), comparer.look_alike
            return comparison
        comparison.values += [(left_line, value) for value in values]
        comparison.line_ends += left_line.end != right_line.end
        comparison.ignored.update(ignored_by(left_line, right_line, contexts))
    if len(left) != len(right):
        comparison.first = next(iter(left[len(right) :]), None), next(iter(right[len(left) :]), None)
    return comparison


def ignored_by(left: PrintedLine | None, right: PrintedLine | None, contexts: Contexts | None) -> tuple[str, ...]:
    """Return the first of the user's rules without which two lines differ, or a line that has no partner."""
    rules = (*(left.rules if left else ()), *(right.rules if right else ()))
    comparer = LineComparer(contexts) if contexts else ExactComparer()
    if not rules or (left and right and comparer.compare(left.printed, right.printed) is not None):
        return ()
    return rules[:1]


def printed_results(text: str) -> list[str]:
    """Return the numbers in a text that stand under the name of a metric or of another result."""
    return [text[start:end] for start, end in result_spans(text)]


def result_spans(text: str) -> list[tuple[int, int]]:
    """Return where such numbers stand in a text; of a longer text in what is looked at."""
    tokens = list(forms.TOKEN.finditer(text[:LOOKED_AT]))
    named = zip(tokens, _names(text[:LOOKED_AT], tokens), strict=True)
    return [token.span() for token, name in named if names.is_metric(name.words) or names.is_result(name.words)]


class ExactComparer:
    """Compares pairs of lines as they are."""

    look_alike: LookAlike | None = None

    def compare(self, left: str, right: str) -> list[RecognizedValue] | None:
        """Return no bookkeeping; None if the lines differ."""
        return [] if left == right else None


class LineComparer:
    """Compares pairs of lines from the first one on; remembers the heads of columns."""

    def __init__(self, contexts: Contexts):
        self._contexts = contexts
        self._heads: list[str] = []
        self._known_names: dict[Hashable, list[ValueName]] = {}  # by the text around the values of a line
        self.look_alike: LookAlike | None = None  # in the last pair that differed

    def compare(self, left: str, right: str, name: ValueName | None = None) -> list[RecognizedValue] | None:
        """Return the bookkeeping that differs in two lines; None if they differ otherwise.

        `name` is what the whole line stands under.
        """
        self.look_alike = None
        self._heads = _heads(left) or (self._heads if _continues(left, self._heads) else [])
        if left == right:
            return []
        values, (left, right) = self._same_places(left, right)
        if left == right:
            return values
        if left[LOOKED_AT:] != right[LOOKED_AT:] or _COLOR.findall(left) != _COLOR.findall(right):
            return None
        left, right = (_COLOR.sub("", text[:LOOKED_AT]) for text in (left, right))
        further_values = self._values(left, right, name)
        return None if further_values is None else values + further_values

    def _same_places(self, left: str, right: str) -> tuple[list[RecognizedValue], tuple[str, str]]:
        """Return both lines with the same names for the runs' directories and themselves, and what was renamed."""
        values, texts = [], (left, right)
        pairs = [
            (BookkeepingKind.DIRECTORY, *sides) for sides in zip(*(c.directories for c in self._contexts), strict=False)
        ]
        own_names = zip(*(context.own_names for context in self._contexts), strict=False)
        pairs += [(BookkeepingKind.ID, (left, left), (right, left)) for left, right in own_names]
        hosts = [context.host for context in self._contexts]
        if all(map(_IS_HOST.search, hosts)):
            pairs.append((BookkeepingKind.HOST, *((host, hosts[0]) for host in hosts)))
        directories = tuple((context.directory, ".") for context in self._contexts)
        if directories[0] != directories[1]:
            pairs.insert(0, (BookkeepingKind.PATH, *directories))
        for kind, left_name, right_name in pairs:
            if left_name[0] != right_name[0] and left_name[0] in texts[0] and right_name[0] in texts[1]:
                values.append(RecognizedValue(kind, left_name[0], right_name[0]))
                texts = _renamed(texts[0], *left_name), _renamed(texts[1], *right_name)
        return values, texts

    def _values(self, left: str, right: str, outer: ValueName | None) -> list[RecognizedValue] | None:
        tokens = list(forms.TOKEN.finditer(left)), list(forms.TOKEN.finditer(right))
        if len(tokens[0]) != len(tokens[1]) or _text_between(left, tokens[0]) != _text_between(right, tokens[1]):
            return None
        values = []
        heads = _columns(left, tokens[0], self._heads)
        all_names = self._names_in(left, tokens[0], outer)
        for name, head, left_token, right_token in zip(all_names, heads, *tokens, strict=True):
            if left_token[0] == right_token[0]:
                continue
            shapes = forms.form_of(left_token), forms.form_of(right_token)
            texts = left_token[0], right_token[0]
            in_table = head and not name.words
            named = ValueName(head, beside=tuple(self._heads), is_row=True) if in_table else name
            kind = recognized(named, *texts, self._contexts, shapes)
            if kind is None:
                like = resembles(named, *texts, shapes)
                self.look_alike = None if like is None else LookAlike(like, *texts)
                return None
            values.append(RecognizedValue(kind, *texts))
        return values or None

    def _names_in(self, line: str, tokens: list[re.Match[str]], outer: ValueName | None) -> list[ValueName]:
        """Return the names of a line's values, which are those of each line with the same text around them."""
        spans = [token.span() for token in tokens]
        starts, ends = [start for start, _ in spans] + [len(line)], [0] + [end for _, end in spans]
        around = tuple(line[end:start] for end, start in zip(ends, starts, strict=True))
        key = (around, tuple(token.lastgroup for token in tokens), outer)
        if key not in self._known_names:
            if len(self._known_names) >= MOST_KNOWN:
                self._known_names.clear()
            self._known_names[key] = list(_names(line, tokens, outer))
        return self._known_names[key]


def _renamed(text: str, name: str, other: str) -> str:
    """Return a text with another name for a directory."""
    return re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lambda match: other, text) if len(name) > 1 else text


def _text_between(line: str, tokens: Sequence[re.Match[str]]) -> list[str]:
    """Return the text around the tokens, without the blanks that align columns."""
    ends, starts = [0, *(token.end() for token in tokens)], [*(token.start() for token in tokens), len(line)]
    return [line[end:start].strip() for end, start in zip(ends, starts, strict=True)]


def _names(line: str, tokens: Sequence[re.Match[str]], outer: ValueName | None = None) -> Iterator[ValueName]:
    """Yield what stands around each value."""
    name = ValueName()
    end, prefix = 0, ""
    previous: re.Match[str] | None = None
    for number, token in enumerate(tokens):
        between = line[end : token.start()]
        prefix += between
        behind_end = tokens[number + 1].start() if number + 1 < len(tokens) else len(line)
        following = line[token.end() : behind_end].lstrip(" \t=\"'([")
        behind = _PIECES.split(following, maxsplit=1)[0]
        following_value = tokens[number + 1] if number + 1 < len(tokens) else None
        name = _name(between, behind, name, previous, token)
        if following_value is not None and _NAMES.search(between) and _is_next(token, following_value):
            name = ValueName("", behind, previous=name.previous, position=Position.ASIDE)
        is_prefix = not names.words(names.LEVELS.sub("", prefix))
        if outer is not None:
            parents = outer.parents if is_prefix else f"{outer.parents} {outer.text}"
            text = outer.text if is_prefix else name.text
            name = replace(
                outer, text=text, behind=behind, parents=parents, previous=name.previous, position=name.position
            )
        elif name.position is not Position.WITHIN and is_prefix and _begins_line(token):
            name = ValueName("", _PIECES.split(following.lstrip(": "), maxsplit=1)[0], position=Position.FIRST)
        yield replace(name, before=_key_text(line[: token.start()]))
        end, previous = token.end(), token


def _begins_line(token: re.Match[str]) -> bool:
    """Return whether a token may belong to what a logger writes before each message."""
    form, line = forms.form_of(token), token.string
    before = line[: token.start()]
    is_marked = (before.endswith("[") and form is Form.DATE) or names.LEVELS.search(before) is not None
    return form in (Form.DATE, Form.CLOCK, Form.NUMBER) and (is_marked or bool(names.words(line[token.end() :])))


def _name(
    between: str, behind: str, last: ValueName, previous: re.Match[str] | None, token: re.Match[str]
) -> ValueName:
    """Return the name of a value by the text since the value before it, whose name is `last`."""
    is_within = _is_within(token)
    if previous is not None and _EQUATED.fullmatch(between):
        return ValueName(last.text, behind, previous=last.previous)
    is_named = names.are_known(names.words(behind))  # "fit time 3.2, 12 clusters"
    if previous is not None and is_named and _CONTINUED.fullmatch(between) and _are_alike(previous, token):
        return ValueName(last.text, behind, previous=last.previous, position=last.position)
    key = _key(between, is_first=previous is None)
    earlier = last.text or last.previous
    if key:
        if names.continues(names.words(key)):
            key = f"{last.text} {key}"
        return ValueName(key, behind, previous=earlier, position=Position.WITHIN if is_within else Position.NAMED)
    aside = Position.NAMED if previous is None else Position.ASIDE
    position = Position.WITHIN if is_within else aside
    return ValueName(last.text if is_within else "", behind, previous=earlier, position=position)


def _key_text(before: str) -> str:
    """Return the text before a value without what separates it from its name."""
    return _KEY_END.sub("", before[-names.LONGEST :])


def _key(between: str, *, is_first: bool) -> str:
    """Return the words right before a value; empty if there are none, or if they belong to the value before it."""
    text = _UNIT_BEHIND.sub("", _KEY_END.sub("", between))
    pieces = _PIECES.split(text)
    is_own = is_first or len(pieces) == 1 or bool(names.words(pieces[-1]))
    with_words = [number for number, piece in enumerate(pieces) if names.words(piece)]
    if not with_words:
        return ""
    last = with_words[-1]
    return pieces[last].strip() if is_own or last > 0 else ""


def _is_next(token: re.Match[str], following: re.Match[str]) -> bool:
    """Return whether a value follows another one without a word between them, as in a list."""
    return _CONTINUED.fullmatch(token.string[token.end() : following.start()]) is not None


def _is_within(token: re.Match[str]) -> bool:
    """Return whether a token is a part of a path or of a longer name."""
    before, behind = token.string[: token.start()][-1:], token.string[token.end() :][:1]
    if Form(token.lastgroup) not in (Form.DATE, Form.ID, Form.NUMBER):
        return False
    return bool(before and before in "/_-" and _WITHIN.match(before)) or (
        behind in ("_", "/") and before not in ("", " ")
    )


def _are_alike(left: re.Match[str], right: re.Match[str]) -> bool:
    """Return whether two values have the same form, as those of a list have."""
    between = left.string[left.end() : right.start()].strip()
    return left.lastgroup == right.lastgroup and (bool(between) or left.lastgroup != Form.NUMBER.value)


def _heads(line: str) -> list[str]:
    """Return the heads of a table's columns; empty if the line is none of heads."""
    if _DIGIT.search(line, 0, LOOKED_AT):
        return []
    text = _COLOR.sub("", line[:LOOKED_AT]).strip().strip(_SIDES)
    cells = _CELLS.split(text.strip())
    are_heads = len(cells) > 1 and all(names.words(cell) for cell in cells)
    return cells if are_heads else []


def _continues(line: str, heads: list[str]) -> bool:
    """Return whether a line is one of the table with these heads: a row, or a rule between rows."""
    return bool(heads) and (len(_ends(line)) == len(heads) or not re.search(r"\w", line))


def _ends(line: str) -> list[int]:
    """Return where the cells of a line end."""
    text = _COLOR.sub("", line[:LOOKED_AT]).rstrip().rstrip(_SIDES).rstrip()
    start = len(text) - len(text.lstrip().lstrip(_SIDES).lstrip())
    return [*(match.start() for match in _CELLS.finditer(text, start)), len(text)]


def _columns(line: str, tokens: Sequence[re.Match[str]], heads: list[str]) -> list[str]:
    """Return the head of each value's column; empty texts if the line is no row under the heads."""
    ends = _ends(line) if heads else []
    if not heads or len(ends) != len(heads):
        return [""] * len(tokens)
    return [heads[next(number for number, end in enumerate(ends) if token.start() < end)] for token in tokens]
