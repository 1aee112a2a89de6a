"""Tells by the form of values that differ in several runs what they are, if they say something of the runs alone.

What has no such form may be a result: a plain number never has one, unless its name says that it is a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reprokit.verify.result_names import names_result, words

DAY = 86400
SMALLEST_ID = 300  # a smaller number is no process id
_HEX = "[0-9a-f]"
NUMBER = r"[-+]?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?"
_TIME = r"\d\d[:._h-]?\d\d(?:[:._-]?\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
DATE = rf"\d{{4}}[-/_.]\d\d[-/_.]\d\d(?:[T _-]?{_TIME})?|20\d{{6}}[-_T]?\d{{4,6}}"
_FORMS = tuple(
    (what, re.compile(expression))
    for what, expression in (
        ("a date", DATE),
        ("a time of day", r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"),
        ("a UUID", UUID),
        ("an address in memory", rf"0x{_HEX}{{6,16}}"),
        ("a temporary name", r"(?:/tmp|/var/tmp|/dev/shm)/[\w./-]{1,200}"),
    )
)
# What looks random can be a digest of results, so that its name must say that it is none.
_ID = re.compile(r"(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z\d_-]{6,64}")
_ID_NAMES = frozenset(["experiment", "guid", "id", "ids", "job", "nonce", "run", "runs", "session", "trial", "uuid"])
_LENGTHS = frozenset(["duration", "elapsed", "runtime", "walltime"])
_TIMES = frozenset(["ms", "sec", "seconds", "secs", "time", "times", "timestamp", *_LENGTHS])
_RATES = frozenset(["fps", "throughput"])
_PROCESS_WORDS = """
    average avg backward batch compile cpu created data end epoch eval evaluation finished fit forward gpu inference
    iter iteration iterations load loading mean of per process run samples save second start started step steps test
    total train training updated valid validation wall
"""
_OF_TIMES = _TIMES.union(_RATES, _PROCESS_WORDS.split())  # of which the name of a time of the run consists
_WORD = re.compile(r"([\w.:+/-]+)")


@dataclass(frozen=True)
class RunFacts:
    """What a run says of itself."""

    started: float = 0.0  # seconds since 1970
    pids: frozenset[int] = frozenset()
    host: str = ""
    directories: tuple[str, ...] = ()  # the run directory and the working directory


@dataclass(frozen=True)
class RecognizedForm:
    """What values are, and an expression that matches them in a line."""

    what: str
    expression: str


def recognized(texts: Sequence[str], runs: Sequence[RunFacts], name: str = "") -> RecognizedForm | None:
    """Return what the values of these runs are, one of each, by form and name; None if they may be results."""
    values, named = [text.strip("\"'") for text in texts], words(name)
    if names_result(name, is_number=True):
        return None
    for what, pattern in _FORMS:
        if all(map(pattern.fullmatch, values)):
            return RecognizedForm(what, f"(?:{pattern.pattern})" if "|" in pattern.pattern else pattern.pattern)
    pairs = list(zip(values, runs, strict=True))
    if all(re.fullmatch(NUMBER, value) for value in values):
        return _number(pairs, named)
    if all(map(_ID.fullmatch, values)) and not _ID_NAMES.isdisjoint(named[-2:]):
        return RecognizedForm("an id by its name", r"[A-Za-z\d_-]{6,64}")
    if all(value and value == run.host for value, run in pairs):
        return RecognizedForm("the name of the host", r"[\w.-]{1,255}")
    if all(any(place and place in value for place in run.directories) for value, run in pairs):
        return RecognizedForm("a path of the run", r"\S{1,400}")
    return None


def _number(pairs: Sequence[tuple[str, RunFacts]], named: Sequence[str]) -> RecognizedForm | None:
    if all(run.started and _is_near(float(value), run.started) for value, run in pairs):
        return RecognizedForm("a time since 1970", NUMBER)
    if all(value.isdecimal() and int(value) >= SMALLEST_ID and int(value) in run.pids for value, run in pairs):
        return RecognizedForm("a process id", r"\d{1,10}")
    form = named_as_time(named)
    return RecognizedForm(form, NUMBER) if form else None


def named_as_time(named: Sequence[str]) -> str:
    """Return what a number is by the words of its name; empty if it is no time of the run: a survival time is none."""
    if not named or not _OF_TIMES.issuperset(named):
        return ""
    if not _RATES.isdisjoint(named) or ("per" in named and not _TIMES.union(["second"]).isdisjoint(named)):
        return "a rate by its name"
    return "a time by its name" if not _TIMES.isdisjoint(named) else ""


def _is_near(number: float, started: float) -> bool:
    """Return whether a number is a time since 1970 near the start of the run, in seconds or parts of them."""
    return any(abs(number / scale - started) < DAY for scale in (1, 1e3, 1e6, 1e9))


def varying_words(texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the words in which texts differ, each behind the first text's beginning; none if more differs."""
    parts = [_WORD.split(text) for text in texts]
    if len(set(map(len, parts))) > 1 or len({tuple(of_text[::2]) for of_text in parts}) > 1:
        return []
    columns = enumerate(zip(*parts, strict=True))
    return [("".join(parts[0][:place]), list(column)) for place, column in columns if len(set(column)) > 1]
