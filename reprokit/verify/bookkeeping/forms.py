"""The forms of values that may be bookkeeping: durations, rates, dates, ids, addresses, temporary names."""

from __future__ import annotations

import ast
import re
from datetime import datetime, timedelta, timezone
from enum import Enum

LONGEST = 400  # characters of a value that is looked at
MOST_PROCESS_IDS = 1 << 22

NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,5}(?![\d,])(?:\.\d{1,20})?|\d{1,20}(?:[.,]\d{1,20})?(?:e[-+]?\d{1,3})?)"
_SIGNED = rf"(?<![\w.])[-+]?{NUMBER}"
_SPREAD = rf"(?: ?(?:±|\+/?-) ?{NUMBER})?"
_CLOCK = r"\d{1,4}:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?[AP]M(?!\w))?(?!\d)"
UNIT = r"(?:s|secs?|seconds?|m?secs?|[mnuµ]s|(?:milli|micro|nano)seconds?|minutes?|mins?(?!\w)|hours?|hrs?(?!\w)|days?)"
_PER = r"(?:s|secs?|seconds?|min|minute|h|hour)"
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_MONTH = rf"(?:{'|'.join(_MONTHS)})[a-z]{{0,6}}"
_ZONE = r"(?: ?(?:Z|UTC|[-+]\d\d:?\d\d)(?!\w))?"
_HEX = "[0-9a-f]"


class Form(Enum):
    """What a value looks like."""

    NUMBER = "number"
    QUANTITY = "quantity"  # a number with a unit of time
    CLOCK = "clock"  # hours, minutes and seconds
    RATE = "rate"
    DATE = "date"
    ADDRESS = "address"
    ID = "id"
    TEMPORARY = "temporary"
    BAR = "bar"
    SHORT_ID = "short id"  # only of a whole value: letters and digits


_DAY, _HOUR = r"(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])", r"(?:[01]\d|2[0-3])"  # other digits are no date
_DATE_FORMS = (
    r"(?<!\d)\d{4}-\d\d-\d\dT\d{6}(?:\.\d{1,9})?(?!\d)",
    # 2026-11-24T17:55:37.123Z, 2026/11/24 17:55, 2026-11-29/08-09-12, 2026_11_29_08_09_12
    r"(?<!\d)\d{4}([-/_.])\d\d\1\d\d(?:(?:[T _/-]{1,2}|, )\d\d([:._h-])\d\d(?:\2\d\d(?:[.,]\d{1,9})?)?"
    + _ZONE
    + r")?(?![\d])",
    r"(?<!\d)\d{4}-\d\d-\d\d[T_-]\d\dh\d\dm(?:\d\ds)?(?![\da-z])",
    # 11/29/2026 09:20, 29.11.2026, 09:20, 29-11-2026_09-20-30: the day or the month first
    r"(?<!\d)\d\d([-/.])\d\d\1\d{4}(?:(?:,? |[T_-])\d\d([:-])\d\d(?:\2\d\d)?(?: [AP]M)?)?(?!\d)",
    r"(?<![\d/])\d\d/\d\d(?:/\d\d)? \d\d:\d\d:\d\d(?!\d)",  # of Rich and Detectron2: month, day
    rf"(?<!\d)\d\d/{_MONTH}/\d{{4}}:\d\d:\d\d:\d\d(?: [-+]\d{{4}})?(?!\d)",
    rf"(?<!\d)20\d\d{_DAY}[-_T]?{_HOUR}[0-5]\d\d\d(?:[.,]\d{{1,9}}|\d{{3}}|\d{{6}})?(?!\d)",
    rf"(?<!\d)20\d\d{_DAY}[-_T]{_HOUR}[0-5]\d(?!\d)",
    rf"(?<!\d)20\d\d{_DAY}(?!\d)",
    r"(?<![A-Za-z])(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
    rf"(?:\d{{1,2}} {_MONTH}|{_MONTH} {{1,2}}\d{{1,2}})(?:,? \d{{4}})?,? "
    rf"{_CLOCK}(?-i: [A-Z]{{3,4}}(?!\w))?(?: \d{{4}})?",
    rf"(?<![A-Za-z])(?:{'|'.join(_MONTHS)})\d{{1,2}}_\d\d-\d\d-\d\d(?!\d)",
    rf"(?<!\w)[IWEF]\d{{4}} {_CLOCK}",
)


def _group(form: Form, *patterns: str) -> str:
    """Return the patterns as a named group; their own groups must be named, as they are numbered anew."""
    return rf"(?P<{form.value}>{'|'.join(patterns)})"


def _named(pattern: str, number: int) -> str:
    """Return a pattern whose numbered groups have names that are unique in a longer pattern."""
    name = f"d{number}_"
    opened = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal opened
        if match[0] == "(":
            opened += 1
            return f"(?P<{name}{opened}>"
        return f"(?P={name}{match[0][1:]})"

    return re.sub(r"(?<!\\)\((?!\?)|\\[1-9]", replaced, pattern)


# Where a value may begin: at a digit, a sign, a bar or a word. It spares all other places the alternatives.
_BEGINNING = r"(?:(?=[\d|?\u2501\u2578\u257a+-])|(?<![A-Za-z0-9])(?=[A-Za-z_.])|(?<=/tmp/)|(?<=/dev/shm/))"
TOKEN = re.compile(
    f"{_BEGINNING}(?:"
    + "|".join(
        (
            _group(Form.ADDRESS, rf"(?<!\w)0x{_HEX}{{6,16}}(?!\w)"),
            _group(
                Form.TEMPORARY,
                r"(?<=/tmp/)(?:tmp[a-z0-9_]{6,12}|[\w.-]{0,100}[-_.][A-Za-z0-9_]{8})(?=[/\s'\"),;:]|$)",
                r"(?<=/dev/shm/)[\w.-]{0,100}[-_.][A-Za-z0-9_]{6,8}(?=[\s'\"),;:]|$)",
            ),
            _group(
                Form.ID,
                rf"(?<![\w]){_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?![\w])",
                r"(?<=\d{8}_\d{6}-)[a-z0-9]{8}(?![\w-])",  # of Weights & Biases, behind the date
                rf"(?<![\w.])(?=[a-f]{{0,31}}\d)(?=\d{{0,31}}[a-f]){_HEX}{{12,64}}(?![\w.])",
                r"(?<=[Rr]un )[a-z]{3,20}-[a-z]{3,20}-\d{1,6}(?![\w-])",
            ),
            _group(Form.DATE, *(_named(pattern, number) for number, pattern in enumerate(_DATE_FORMS))),
            _group(Form.BAR, r"(?<=%)\|[^|\n]{0,400}\|", r"[━╸╺]{2,200}"),
            _group(
                Form.RATE,
                rf"{_SIGNED}{_SPREAD} ?(?:(?:effective|raw|env) )?(?:[A-Za-z]{{1,20}}){{1}}/{_PER}(?![\w/])",
                rf"{_SIGNED}{_SPREAD} ?{UNIT}/[A-Za-z]{{1,20}}(?!\w)",
                rf"\?[A-Za-z]{{1,20}}/{_PER}(?!\w)",
                rf"{_SIGNED}/s(?!\w)",
                rf"{_SIGNED}{_SPREAD} (?:[A-Za-z]{{1,20}} ){{1,2}}per (?:second|sec|s|minute|hour)(?!\w)",
            ),
            _group(
                Form.CLOCK,
                r"(?<![\w:])\d{1,4}:\d\d(?::\d\d)?<(?:\?|[\d:]{4,10})",
                rf"(?<![\w:.])(?:\d{{1,5}} days?,? )?{_CLOCK}",
                r"(?<![\w:.])(?:-:--:--|\?:\?\?:\?\?)",
                r"(?<![\w:.])\d{1,3}:\d\d(?![\w:.])",
            ),
            _group(
                Form.QUANTITY,
                r"(?<![\w.])(?:\d{1,5}d ?)?\d{1,5}h ?\d{1,2}m(?:in)?(?: ?\d{1,2}(?:\.\d{1,9})?s)?(?!\w)",
                r"(?<![\w.])\d{1,5}m(?:in)? ?\d{1,2}(?:\.\d{1,9})?s(?!\w)",
                rf"(?<![\w.])\d{{1,5}} ?(?:h|hours?|mins?|minutes?),? (?:and )?"
                rf"\d{{1,2}}(?:\.\d{{1,9}})? ?{UNIT}(?![\w/=])",
                rf"{_SIGNED}{_SPREAD} ?{UNIT}(?![\w/]|\s{{0,8}}[=:]\s{{0,8}}[-\d.])",
            ),
            _group(
                Form.NUMBER,
                rf"{_SIGNED}{_SPREAD}%?(?!\w)",
                r"(?<=[_-])1\d{9}(?:\d{3}){0,3}(?!\w|\.\d)",
                r"(?<![\w.])nan(?!\w)",
            ),
        )
    )
    + ")",
    re.IGNORECASE,
)
_LONG = re.compile(r"[\d ](?:h|hrs?|hours?|d|days?)$", re.IGNORECASE)
_PLAIN = re.compile(rf"{NUMBER}{_SPREAD}%?|nan|inf", re.IGNORECASE)
_MOMENT = re.compile(r"(\d{4})\D?(\d\d)\D?(\d\d)(?:\D{0,2}(\d\d)\D?(\d\d)(?:\D?(\d\d))?)?")
_NAMED_MONTH = re.compile(rf"({'|'.join(_MONTHS)})", re.IGNORECASE)
_TURNED = re.compile(r"(\d\d)([-/.])(\d\d)(?:\2(\d{4}|\d\d))?(?!\d)")  # month, day, year; or day, month, year
_TIME_OF_DAY = re.compile(r"(\d{1,2})[:-](\d\d)[:-](\d\d)")
_PICKLED_DATE = re.compile(
    r"[^(]{0,60}\bdatetime\.datetime>?\W{0,3}\((b(?:'[^\n]{1,60}'|\"[^\n]{1,60}\"))[,)].*", re.DOTALL
)
_SHORT_ID = re.compile(r"(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z\d_-]{6,64}")
UUID = re.compile(rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", re.IGNORECASE)
# By the form of a whole value: what matches its like in a line, in rules that are shown to people.
_SHOWN_TIME = r"\d\d[:._h-]?\d\d(?:[:._-]?\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
SHOWN_DATE = rf"(?:\d{{4}}[-/_.]\d\d[-/_.]\d\d(?:[T _-]?{_SHOWN_TIME})?|20\d{{6}}[-_T]?\d{{4,6}})"
_SHOWN_NUMBER = r"[-+]?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?"
_EXPRESSIONS = {
    Form.NUMBER: _SHOWN_NUMBER,
    Form.QUANTITY: _SHOWN_NUMBER + r" ?[a-zµ]{1,12}",
    Form.CLOCK: r"\d{1,4}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?",
    Form.DATE: SHOWN_DATE,
    Form.ADDRESS: rf"0x{_HEX}{{6,16}}",
    Form.SHORT_ID: r"[A-Za-z\d_-]{6,64}",
}
EPOCHS = {10: 1, 13: 10**3, 16: 10**6, 19: 10**9}  # digits of a time since 1970, and its unit


def form_of(token: re.Match[str]) -> Form:
    """Return the form of a token."""
    return Form(token.lastgroup)


def whole(text: str) -> Form | None:
    """Return the form of a whole value; None if it has none of these."""
    token = TOKEN.fullmatch(text) if len(text) <= LONGEST else None
    if token is not None:
        return form_of(token)
    return Form.SHORT_ID if _SHORT_ID.fullmatch(text) else None


def expression(text: str) -> str:
    """Return a regular expression for values like this one."""
    form = whole(text)
    return _EXPRESSIONS.get(form, r"\S{1,400}") if form is not None else r"\S{1,400}"


def unquoted(text: str) -> str:
    """Return a value without the quotes that its format puts around a text."""
    stripped = text.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] and stripped[0] in "'\"":
        return stripped[1:-1]
    return stripped


def is_long(text: str) -> bool:
    """Return whether a quantity is in hours or days, as those of data often are."""
    return _LONG.search(text) is not None


def is_plain(text: str) -> bool:
    """Return whether a text is a number that is not negative."""
    return _PLAIN.fullmatch(text) is not None


def is_whole_number(text: str) -> bool:
    """Return whether a text is a number without a fraction."""
    return re.fullmatch(r"\d{1,20}(?:\.0{1,20})?", text) is not None


def seconds(text: str, year: int) -> tuple[float, bool] | None:
    """Return a date in seconds since 1970 by UTC, and whether it is one of a day only; None if it is no date."""
    number = text.replace(".", "", 1)
    digits = text.partition(".")[0]
    if number.isascii() and number.isdecimal() and len(digits) in EPOCHS:
        return float(text) / EPOCHS[len(digits)], False
    try:
        return _seconds(text, year)
    except (ValueError, OverflowError):
        return None


def _seconds(text: str, year: int) -> tuple[float, bool] | None:
    text = re.sub(r"(/\d{4}):", r"\1 ", text)  # 29/Nov/2026:08:04:02
    month = _NAMED_MONTH.search(text)
    clock = _TIME_OF_DAY.search(text)
    if month is not None and clock is not None:
        rest = text[: clock.start()] + " " + text[clock.end() :]
        years = re.findall(r"(?<!\d)\d{4}(?!\d)", rest)
        day = re.search(r"(?<!\d)\d{1,2}(?!\d)", rest)
        if day is None:
            return None
        date = datetime(int(years[0]) if years else year, _MONTHS.index(month[1].capitalize()) + 1, int(day[0]))
        hours = int(clock[1]) + 12 * (
            text[clock.end() :].lstrip(".,0123456789 ")[:2].upper() == "PM" and int(clock[1]) < 12
        )
        return _stamp(date, hours, int(clock[2]), int(clock[3])), False
    if re.match(r"[IWEF]\d{4} ", text) and clock is not None:
        return _stamp(datetime(year, int(text[1:3]), int(text[3:5])), *map(int, clock.groups())), False
    turned = _TURNED.match(text)
    if turned is not None:
        shown_year = turned[4] or f"{year}"
        century = "20" if len(shown_year) == 2 else ""
        dates = (turned[1], turned[3]) if turned[2] == "/" and turned[1] <= "12" else (turned[3], turned[1])
        text = f"{century}{shown_year}-{dates[0]}-{dates[1]} {text[turned.end() :].lstrip(' ,T_-')}"
    moment = _MOMENT.match(text)
    if moment is None:
        return None
    parts = [int(part) if part else 0 for part in moment.groups()]
    return _stamp(datetime(parts[0], parts[1], parts[2]), *parts[3:]), moment[4] is None


def _stamp(date: datetime, hours: int, minutes: int, seconds: int) -> float:
    moment = date.replace(tzinfo=timezone.utc) + timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return moment.timestamp()


def pickled_date(text: str) -> str | None:
    """Return the date of a pickled datetime as a text; None if the value is none."""
    match = _PICKLED_DATE.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    try:
        data = ast.literal_eval(match[1])
    except (ValueError, SyntaxError):
        return None
    if len(data) != 10:
        return None
    return f"{data[0] << 8 | data[1]:04}-{data[2] & 127:02}-{data[3]:02}T{data[4]:02}:{data[5]:02}:{data[6]:02}"
