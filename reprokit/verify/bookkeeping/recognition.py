"""Recognizes bookkeeping by form and name: `recognized` is the only judge, of printed values and of values in files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum, auto
from typing import TypeAlias

from reprokit.core.difference import BookkeepingKind
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.forms import Form

DAY = 86400
MONTH = 31 * DAY  # clocks and time zones of machines and containers are off, and a replay may have a recorded calendar
SMALLEST_ID = 1000  # a smaller number is a process id only if its name, or the form of its line, says so
SHORTEST_NAME = 6  # characters of a directory's name that stands for it alone
_PORTS = range(1024, 1 << 16)
_MAPPED = range(0x7E << 40, 0x80 << 40)  # where libraries and large objects of a process lie
_DURATIONS = (Form.QUANTITY, Form.CLOCK)


@dataclass(frozen=True)
class RunContext:
    """A run's values that may appear in its lines and files without being results."""

    ids: frozenset[int] = frozenset()  # ids of its processes
    started: float = 0.0  # seconds since the epoch
    ended: float = 0.0  # 0: not known
    directory: str = ""  # its working directory
    directories: tuple[tuple[str, str], ...] = ()  # its directories under other names than in the other run: both names
    host: str = ""
    own_names: tuple[str, ...] = ()  # that trackers made up for it and its models, in the same order in both runs


Contexts: TypeAlias = "tuple[RunContext, RunContext]"
Shapes: TypeAlias = "tuple[Form | None, Form | None]"


class Position(Enum):
    """Where a value stands."""

    NAMED = auto()  # behind or under its name
    FIRST = auto()  # at the beginning of a line
    ASIDE = auto()  # without a name of its own, behind another value: "loss 0.5 (3.2 s)"
    WITHIN = auto()  # within a path or a longer name


@dataclass(frozen=True)
class ValueName:
    """The words around a value, or the keys that lead to it."""

    text: str = ""  # the words before it; the column's head, the last key
    behind: str = ""  # the words behind it
    parents: str = ""  # the keys above
    previous: str = ""  # the name of the value before it in its line
    before: str = ""  # all of its line before it
    position: Position = Position.NAMED
    beside: tuple[str, ...] = ()  # the keys or columns next to it
    is_row: bool = False  # whether it is one of a table's row

    @property
    def words(self) -> tuple[str, ...]:
        return names.words(self.text)


_TEMPORARY_PATH = re.compile(r"(?:/tmp|/var/tmp|/dev/shm)/[\w./-]{1,200}")
# Before a duration: bars of tqdm and Rich, and "--- 3.2 seconds ---".
_IDIOM = re.compile(r"^-{2,}$|[\u2501\u2578\u257a]|%\|")
_COLUMNS = frozenset(  # kinds that the columns of data have, too
    {
        BookkeepingKind.DATE,
        BookkeepingKind.DURATION,
        BookkeepingKind.RATE,
        BookkeepingKind.PROCESS_ID,
        BookkeepingKind.PORT,
    }
)
_Rule: TypeAlias = "Callable[[ValueName, str, str, Form, Contexts], bool]"


def recognized(
    name: ValueName, left: str, right: str, contexts: Contexts, shapes: Shapes | None = None
) -> BookkeepingKind | None:
    """Return what kind of bookkeeping two values are; None if they may be results.

    The values are whole unless their shapes are given, as of pieces of a longer text.
    """
    texts = [forms.pickled_date(text) or forms.unquoted(text) for text in (left, right)]
    shapes = shapes or (forms.whole(texts[0]), forms.whole(texts[1]))
    shape = shapes[0]
    if names.are_of_inputs(names.words(name.parents)) or names.is_result(names.words(name.behind)):
        return None
    if _are_own_names(texts, contexts):
        return BookkeepingKind.ID
    if names.of_host(name.words) and _are_hosts(texts, contexts):
        return BookkeepingKind.HOST
    if shape is None or shapes[1] is None:
        return None
    if _are_names_of_directories(texts, contexts):
        return BookkeepingKind.DIRECTORY
    for kind, accepted, rule in _TABLE:
        if all(shape in accepted for shape in shapes) and rule(name, texts[0], texts[1], shape, contexts):
            is_of_data = name.is_row and kind in _COLUMNS and not names.are_of_log(name.beside)
            return None if is_of_data else kind
    return None


def _are_names_of_directories(texts: list[str], contexts: Contexts) -> bool:
    """Return whether both values are the names of one directory, which each run calls by another one."""
    pairs = zip(*(context.directories for context in contexts), strict=False)
    base_names = ([os.path.basename(pair[0]) for pair in sides] for sides in pairs)
    return any(names_of_pair == texts for names_of_pair in base_names) and min(map(len, texts)) >= SHORTEST_NAME


def _are_own_names(texts: list[str], contexts: Contexts) -> bool:
    left, right = (context.own_names for context in contexts)
    return (texts[0], texts[1]) in zip(left, right, strict=False)


def _are_hosts(texts: list[str], contexts: Contexts) -> bool:
    return all(text and text == context.host for text, context in zip(texts, contexts, strict=True))


def resembles(name: ValueName, left: str, right: str, shapes: Shapes | None = None) -> BookkeepingKind | None:
    """Return what kind of bookkeeping two values look like that were not recognized; None if like none, or results."""
    named = [*name.words, *names.words(name.parents), *names.words(name.behind)]
    if names.is_result(named) or names.is_metric(name.words):
        return None
    texts = [forms.unquoted(text) for text in (left, right)]
    shapes_seen = set(shapes or map(forms.whole, texts))
    by_form = {
        Form.QUANTITY: BookkeepingKind.DURATION,
        Form.CLOCK: BookkeepingKind.DURATION,
        Form.RATE: BookkeepingKind.RATE,
        Form.DATE: BookkeepingKind.DATE,
        Form.ADDRESS: BookkeepingKind.ADDRESS,
        Form.ID: BookkeepingKind.ID,
        Form.TEMPORARY: BookkeepingKind.TEMPORARY_NAME,
    }
    kinds = {by_form.get(shape) if shape is not None else None for shape in shapes_seen}
    if len(kinds) == 1 and None not in kinds:
        return kinds.pop()
    is_number = shapes_seen == {Form.NUMBER} and all(map(forms.is_plain, texts))
    return BookkeepingKind.DURATION if is_number and names.mentions_time(name.words) else None


def proposed(name: ValueName, left: str, right: str, contexts: Contexts) -> BookkeepingKind | None:
    """Return what kind of bookkeeping two values are by their form, if their name does not say that they are results.

    What has the form of a digest, or is a number, must be named as bookkeeping, or be a value of these runs.
    """
    texts = [forms.unquoted(text) for text in (left, right)]
    if names.names_result(name.text, is_number=True):
        return None
    kind = recognized(name, left, right, contexts) or _of_these_runs(texts, contexts)
    if kind is not None:
        return kind
    shapes = set(map(forms.whole, texts))
    if not shapes.isdisjoint({Form.ID, Form.SHORT_ID}):
        is_free = all(map(forms.UUID.fullmatch, texts)) or names.mentions_id(name.words)
        return BookkeepingKind.ID if is_free and shapes <= {Form.ID, Form.SHORT_ID, Form.NUMBER} else None
    return resembles(name, left, right) if shapes != {Form.NUMBER} or names.names_time(name.words) else None


def _of_these_runs(texts: list[str], contexts: Contexts) -> BookkeepingKind | None:
    """Return what two values are, whatever their name is, as each is one of its own run."""
    if all(map(forms.is_plain, texts)) and all(is_of_run(text, contexts, DAY) for text in texts):
        return BookkeepingKind.DATE
    if all(map(str.isdecimal, texts)) and min(map(int, texts)) >= SMALLEST_ID:
        are_ids = all(int(text) in context.ids for text, context in zip(texts, contexts, strict=True))
        return BookkeepingKind.PROCESS_ID if are_ids else None
    if _are_hosts(texts, contexts):
        return BookkeepingKind.HOST
    directories = [context.directory for context in contexts]
    if all(own and own in text for own, text in zip(directories, texts, strict=True)):
        return BookkeepingKind.PATH
    return BookkeepingKind.TEMPORARY_NAME if all(map(_TEMPORARY_PATH.fullmatch, texts)) else None


def recognized_numbers(name: ValueName) -> BookkeepingKind | None:
    """Return what kind of bookkeeping a list of numbers is by its name, which must say more than "time"."""
    words, parents = name.words, names.words(name.parents)
    is_named = names.of_duration(words, has_unit=False) and not names.is_vague(words)
    return None if names.are_of_inputs(parents) or not is_named else BookkeepingKind.DURATION


def _is_address(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    if form is Form.NUMBER:  # as Keras names the tensors of a graph: "140735219727248: TensorSpec("
        are_mapped = all(text.isdecimal() and int(text) in _MAPPED for text in (left, right))
        return are_mapped and name.position is Position.FIRST and names.words(name.behind)[:1] == ("tensor",)
    return names.of_address(name.words)


def _is_date(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    words = name.words
    if names.is_result(words) or (name.is_row and names.are_of_events(name.beside)):  # as in a table of forecasts
        return False
    is_first = name.position is Position.FIRST
    if form is Form.CLOCK:
        if "<" in left or min(text.count(":") for text in (left, right)) < 2:  # minutes and seconds
            return False
        if is_first:
            return True
        return names.of_date(words) and words[-1] in ("at", "now", "started", "finished", "ended", "begin", "end")
    if form is Form.NUMBER and names.is_metric(words):  # of seconds since 1970
        return False
    is_written = is_first or name.position is Position.WITHIN  # at the time that it says
    is_aside = name.position is Position.ASIDE and not words and not names.is_result(names.words(name.previous))
    is_named = is_written or is_aside or names.of_date(words) or names.of_date(names.words(name.behind))
    return is_named and all(is_of_run(text, contexts, MONTH if is_written else DAY) for text in (left, right))


def is_of_run(text: str, contexts: Contexts, slack: float) -> bool:
    """Return whether a date may be one at which one of the two runs was under way."""
    for context in contexts:
        year = datetime.fromtimestamp(context.started, timezone.utc).year
        moment = forms.seconds(text, year)
        if moment is None:
            return False
        at, is_day = moment
        room = 2 * DAY if is_day else slack
        if context.started - room <= at <= (context.ended or context.started) + room:
            return True
    return False


def _is_duration(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    words = name.words
    if names.are_of_settings(names.words(name.parents)):
        return False
    if form is Form.NUMBER:
        are_counts = names.may_count(words) and all(map(forms.is_whole_number, (left, right)))
        behind = names.words(name.behind)
        is_counted = are_counts or names.is_counted(behind) or names.is_long_time(behind)
        is_named = names.of_duration(words, has_unit=False) or _is_data_time(name) or _is_episode_time(name)
        is_named = is_named and not (names.is_vague(words) and names.are_of_events(name.beside))
        return is_named and not is_counted and all(map(forms.is_plain, (left, right)))
    if names.is_result(words):
        return False
    if names.of_duration(words, has_unit=True) or names.introduces_duration(name.text) or _is_in(name):
        return True
    if any(forms.is_long(text) for text in (left, right)):  # "training data: 960 hours"
        return False
    return names.of_process(words) or _is_named_behind(name) or _is_aside(name, left)


def _is_in(name: ValueName) -> bool:
    """Return whether "in" leads to a duration, behind what was done: "Fit 100 trees in 1.2 s"."""
    words = name.words
    if not words or not names.is_preposition(words[-1:]):
        return False
    return names.introduces_duration(name.before)


def _is_episode_time(name: ValueName) -> bool:
    """Return whether this is the time at which an episode ended, as Gymnasium's monitors write it."""
    return name.words == ("t",) and {"r", "l"} <= set(name.beside)


def _is_data_time(name: ValueName) -> bool:
    """Return whether this is the time of loading as the examples of PyTorch print it: "Time 0.5 (0.6) Data 0.1"."""
    return name.words == ("data",) and "time" in names.words(name.before)


def _is_named_behind(name: ValueName) -> bool:
    """Return whether the words behind a duration name it: "0.2ms preprocess", "3.2 s elapsed"."""
    words, behind = name.words, names.words(name.behind)
    return bool(behind) and names.are_known(words) and not names.is_metric(words) and names.of_process_or_left(behind)


def _is_aside(name: ValueName, text: str) -> bool:
    """Return whether a duration stands alone behind values of a training: "loss 0.5 (3.2 s)", "1/10 - 3s"."""
    if "<" in text or _IDIOM.search(name.before):
        return True
    previous = names.words(name.previous)
    is_sum = names.of_sum(name.words) and bool(previous)
    return (is_sum or (name.position is Position.ASIDE and not name.words)) and names.are_known(previous)


def _is_rate(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    if form is Form.NUMBER:
        return names.of_rate(name.text) and all(map(forms.is_plain, (left, right)))
    words = name.words
    is_free = not names.is_metric(words) and names.are_known(words)
    are_bare = all(text.endswith("/s") and forms.is_plain(text[:-2]) for text in (left, right))  # "0.1s, 12.5/s"
    return is_free and (all(map(_is_rated, (left, right))) or (are_bare and name.position is Position.ASIDE))


def _is_rated(text: str) -> bool:
    per = re.search(r"([A-Za-z ]+?)(?:/| per )([A-Za-z]+)$", text)
    if per is None:
        return False
    is_inverse = re.fullmatch(forms.UNIT, per[1].strip()) is not None and names.are_rated(per[2], "s")
    return is_inverse or names.are_rated(per[1], per[2])


def _is_process_id(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    if not (left.isdecimal() and right.isdecimal()) or max(int(left), int(right)) >= forms.MOST_PROCESS_IDS:
        return False
    if names.is_result(name.words):
        return False
    if names.of_process_id(name.words) and names.are_of_process(name.words):
        return True
    is_near = names.may_be_of_process_id(name.words) and name.position is not Position.ASIDE
    are_of_runs = all(int(text) in context.ids for text, context in zip((left, right), contexts, strict=True))
    is_plain = bool(name.words) or min(int(left), int(right)) >= SMALLEST_ID or _begins_log_line(name)
    return is_near and are_of_runs and is_plain


def _begins_log_line(name: ValueName) -> bool:
    """Return whether a number stands behind a log line's date, "2026-11-24 17:55:37 42 root", or before its level."""
    is_dated = forms.whole(name.before) is Form.DATE and bool(names.words(name.behind))
    return name.position is Position.FIRST and (is_dated or names.LEVELS.match(name.behind) is not None)


def _is_port(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    are_ports = all(text.isdecimal() and int(text) in _PORTS for text in (left, right))
    is_named = names.of_port(name.words) and names.are_of_process(name.words)
    return are_ports and (is_named or name.before.endswith(("127.0.0.1", " 0.0.0.0", "/0.0.0.0")))


def _is_id(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    words = name.words
    if form is Form.NUMBER:
        return names.of_job(words) and left.isdecimal() and right.isdecimal()
    if name.position is Position.WITHIN:  # of a path: "runs/9f3c..."; other digits there may be those of contents
        return names.of_run_name(words)
    is_run_name = names.of_run_name(words) and (len(left) == 8 or left.count("-") == 2)
    return names.of_id(words) or is_run_name


def _is_named_id(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    """Return whether letters and digits are a run's id by their name; one of the two may have digits alone."""
    has_letters = any(forms.whole(text) is not Form.NUMBER for text in (left, right))
    return names.of_run_id(name.words) and len(left) == len(right) and has_letters


def _is_directory(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    """Return whether a number is that of a directory which has another one in each run: "v_num: 1"."""
    if not names.of_version(name.words):
        return False
    numbers = [[re.findall(r"\d+$", pair[0])[-1:] for pair in context.directories] for context in contexts]
    texts = [[text.partition(".")[0].lstrip("0") or "0"] for text in (left, right)]
    return any(list(pair) == texts for pair in zip(*numbers, strict=False))


def _is_temporary(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    """Return whether names below /tmp, which is their own name, are made up: "model_baseline" is none."""
    return any(
        text.startswith("tmp") or (re.search(r"[A-Z0-9]", text[-8:]) is not None and not text[-8:].isdecimal())
        for text in (left, right)
    )


def _always(name: ValueName, left: str, right: str, form: Form, contexts: Contexts) -> bool:
    return True


_TABLE: tuple[tuple[BookkeepingKind, tuple[Form, ...], _Rule], ...] = (
    (BookkeepingKind.ADDRESS, (Form.ADDRESS, Form.NUMBER), _is_address),
    (BookkeepingKind.TEMPORARY_NAME, (Form.TEMPORARY,), _is_temporary),
    (BookkeepingKind.PROGRESS, (Form.BAR,), _always),
    (BookkeepingKind.DATE, (Form.DATE, Form.CLOCK, Form.NUMBER), _is_date),
    (BookkeepingKind.DURATION, (*_DURATIONS, Form.NUMBER), _is_duration),
    (BookkeepingKind.RATE, (Form.RATE, Form.NUMBER), _is_rate),
    (BookkeepingKind.PROCESS_ID, (Form.NUMBER,), _is_process_id),
    (BookkeepingKind.PORT, (Form.NUMBER,), _is_port),
    (BookkeepingKind.DIRECTORY, (Form.NUMBER,), _is_directory),
    (BookkeepingKind.ID, (Form.ID, Form.NUMBER), _is_id),
    (BookkeepingKind.ID, (Form.ID, Form.SHORT_ID, Form.NUMBER), _is_named_id),
)
