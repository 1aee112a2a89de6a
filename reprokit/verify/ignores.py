"""Declares what differences do not count, by the user's own command line and configuration, and counts what they cover.

A rule names files, or values inside of files, or text in printed lines. None may cover weights or results: such a rule
is refused, where its text shows it here, else where it is applied (`compare.declared_outputs`, `declared_lines`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any

from reprokit.core.difference import Difference, IgnoredThing, counts_of_ignored
from reprokit.core.errors import BadConfig, IgnoreRefused
from reprokit.core.printable import cut, printable
from reprokit.diff.formats import MODEL_ENDINGS
from reprokit.run_files.user_config import LocatedConfig
from reprokit.verify.bookkeeping.names import names_result
from reprokit.verify.pattern_search import SlowPattern, Span, search

OUTPUTS, CONSOLE = "--ignore", "--ignore-console"
COMMAND_LINE = "the command line"
LONGEST = 1000  # characters of a rule
# Names of what runs record, which are no files'; those of results follow from result_names.
RECORDED = ("command", "entropy", "environment", "metrics", "parameters", "processes", "samples", "seeds", "trail")
NAME_FILES = "name the files or values that may differ, as in 'log/*.txt' or 'metrics.json:started'"
PROBES = ("qzxv: wjkp 3.25 hmbt", "[17] vkpq=0.5 (jxwz 42)", "hbqx, 1.75; 3 tjvk")  # lines that nobody prints
_CLASS = re.compile(r"\[!?\]?[^\]]*\]")
_PARTS = re.compile(rf"((?:{_CLASS.pattern}|[^:])*)(:?)(.*)", re.DOTALL)  # a colon in brackets belongs to the path
_ANY = "**"


@dataclass(frozen=True)
class PathPattern:
    """A glob for paths, as in .gitignore: * stays within a name, ** does not, and all below what matches does too."""

    text: str
    floats: bool = False  # whether several parts may begin anywhere in a path

    @cached_property
    def _parts(self) -> tuple[re.Pattern[str] | None, ...]:
        parts = [part for part in self.text.split("/") if part not in ("", ".")]
        is_anchored = self.text.startswith("/") or (len(parts) > 1 and not self.floats)
        parts = parts if is_anchored else [_ANY, *parts]
        return tuple(None if part == _ANY else re.compile(translate(part)) for part in parts)

    def matches(self, path: str) -> bool:
        """Return whether the pattern is this path or stands above it."""
        parts, reached = self._parts, {0}
        for name in filter(None, path.split("/")):
            after: set[int] = set()
            for at in _beyond_any(parts, reached):
                part = parts[at]
                after.update([at] if part is None else [at + 1] if part.match(name) else [])
            reached = after
            if len(parts) in reached:
                return True
        return False

    @property
    def is_literal(self) -> bool:
        """Return whether a part of it stands as it is: no pattern of wildcards alone names anything."""
        return re.search(r"\w", _CLASS.sub("", self.text)) is not None

    @property
    def words(self) -> str:
        """Return the last part without its wildcards."""
        return re.sub(r"[*?]", "", _CLASS.sub("", self.text)).rpartition("/")[2]


def _beyond_any(parts: Sequence[re.Pattern[str] | None], reached: set[int]) -> set[int]:
    """Return the parts of a pattern that the next name may match, if these come next: ** also matches no name."""
    possible = set(reached)
    for at, part in enumerate(parts):
        if at in possible and part is None:
            possible.add(at + 1)
    return {at for at in possible if at < len(parts)}


@dataclass(frozen=True)
class IgnoreRule:
    """A rule as it was declared, and where."""

    text: str
    option: str  # the option that declares such a rule
    origin: str

    def __str__(self) -> str:
        place = "" if self.origin == COMMAND_LINE else f" of {self.origin}"
        return printable(f"{self.option} {shlex.quote(self.text)}{place}")

    def refused(self, why: str) -> IgnoreRefused:
        """Return the error that refuses it."""
        return IgnoreRefused(f"{self}: {why}", self.text)


@dataclass(frozen=True)
class OutputRule:
    """Files by path, or values inside of them by key."""

    rule: IgnoreRule
    path: PathPattern
    key: PathPattern | None

    @property
    def names_keys(self) -> bool:
        """Return whether it names values, in place of all that a file holds."""
        return self.key is not None and self.key.is_literal


@dataclass(frozen=True)
class Ignores:
    """All rules of one comparison."""

    outputs: tuple[OutputRule, ...] = ()
    console: tuple[IgnoreRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.outputs or self.console)

    @property
    def rules(self) -> list[IgnoreRule]:
        """Return all rules in the order in which they were declared."""
        return [*(rule.rule for rule in self.outputs), *self.console]

    @property
    def texts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the texts of the rules for outputs and for the console."""
        return tuple(rule.rule.text for rule in self.outputs), tuple(rule.text for rule in self.console)

    def and_also(self, other: Ignores) -> Ignores:
        """Return these rules and those of the other that say something else."""
        outputs, console = self.texts
        return Ignores(
            (*self.outputs, *(rule for rule in other.outputs if rule.rule.text not in outputs)),
            (*self.console, *(rule for rule in other.console if rule.text not in console)),
        )


def declared(outputs: Iterable[str], console: Iterable[str], origin: str = COMMAND_LINE) -> Ignores:
    """Return the rules of these texts; raises IgnoreRefused for what may not be ignored, ValueError for bad syntax."""
    return Ignores(
        tuple(_output_rule(text, origin) for text in dict.fromkeys(outputs)),
        tuple(_console_rules(list(dict.fromkeys(console)), origin)),
    )


def configured(located: LocatedConfig | None) -> Ignores:
    """Return the rules of a configuration; raises BadConfig for what is no rule, naming file and key."""
    rules = Ignores()
    if located is None:
        return rules
    config, path = located.config, located.path
    origin = path.name if path.parent == Path.cwd() else str(path)
    keys = {"ignore": (config.ignore, ()), "ignore_console": ((), config.ignore_console)}
    for key, (outputs, console) in keys.items():
        try:
            rules = rules.and_also(declared(outputs, console, origin))
        except ValueError as error:
            raise BadConfig(f"{path}: {key}: {error}") from None
    return rules


def _output_rule(text: str, origin: str) -> OutputRule:
    _require_short(text)
    match = _PARTS.fullmatch(text)
    path, colon, key = match.groups() if match else (text, "", "")
    if colon and not key:
        raise ValueError(f"{text!r} has no key behind its colon; in a path a colon is written as [:]")
    rule = IgnoreRule(text, OUTPUTS, origin)
    parsed = OutputRule(rule, PathPattern(path or "*"), PathPattern(key, floats=True) if key else None)
    if not (parsed.path.is_literal or parsed.names_keys):
        raise rule.refused(f"it would ignore every file, and so all that was trained; {NAME_FILES}")
    if not key and _is_recorded(path):
        raise rule.refused(f"what has this name in a run is always compared; {NAME_FILES}")
    if not key and path.lower().endswith(MODEL_ENDINGS):
        raise rule.refused("such files hold weights, which are always compared; name values in them by GLOB:KEY")
    if parsed.key is not None and names_result(parsed.key.words):
        raise rule.refused(f"{parsed.key.words} names a result, and results are always compared")
    return parsed


def _is_recorded(path: str) -> bool:
    """Return whether a path is the name of a category of what runs record."""
    name = path.strip("/").lower()
    return not {"/", "."}.intersection(name) and (name in RECORDED or names_result(name))


def _console_rules(texts: list[str], origin: str) -> Iterator[IgnoreRule]:
    for text in texts:
        _require_short(text)
        try:
            re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    rules = [IgnoreRule(text, CONSOLE, origin) for text in texts]
    for rule, spans_of_lines in zip(rules, matches(rules, PROBES), strict=True):
        if all(map(_takes_all, PROBES, spans_of_lines)):
            raise rule.refused("it matches any word or any number, results too; name what stands beside it")
    return iter(rules)


def matches(rules: Sequence[IgnoreRule], lines: Sequence[str]) -> list[list[list[Span]]]:
    """Return what rules for the console match, by rule and line; raises IgnoreRefused for one that takes too long."""
    try:
        return search([rule.text for rule in rules], lines)
    except SlowPattern as slow:
        why = f"a search by it did not end within {slow.seconds} s; nested repetitions such as (a+)+ take that long"
        raise rules[slow.number].refused(why) from None


def _takes_all(probe: str, spans: Sequence[Span]) -> bool:
    """Return whether no word or no number of a line is left."""
    taken = {at for start, end in spans for at in range(start, end)}
    return any(
        all(taken.intersection(range(*token.span())) for token in re.finditer(form, probe))
        for form in (r"[a-z]+", r"[\d.]+")
    )


def _require_short(text: str) -> None:
    if not 0 < len(text) <= LONGEST:
        raise ValueError(f"{cut(text, 60)!r} has {len(text)} characters; at least 1 and at most {LONGEST} are read")


@dataclass(frozen=True)
class IgnoreUse:
    """How often one rule applied."""

    rule: IgnoreRule
    counts: tuple[tuple[IgnoredThing, int], ...]

    @property
    def times(self) -> int:
        """Return the number of differences that it covers."""
        return sum(count for _, count in self.counts)

    def __str__(self) -> str:
        return f"{self.rule}: {in_words(self.counts) or '0 times, as nothing that it matches differs'}"

    def document(self) -> dict[str, Any]:
        """Return it for a JSON document."""
        return {"option": self.rule.option, "rule": self.rule.text, "origin": self.rule.origin, "times": self.times}


def uses(ignores: Ignores, tree: Difference) -> tuple[IgnoreUse, ...]:
    """Return how often each rule applied in a tree of differences, also those that never did."""
    counts: dict[tuple[str, str], Counter[IgnoredThing]] = {}
    for ignored in counts_of_ignored(tree):
        option = CONSOLE if ignored.thing is IgnoredThing.LINE else OUTPUTS
        counts.setdefault((option, ignored.rule), Counter())[ignored.thing] += ignored.count
    return tuple(IgnoreUse(rule, _ordered(counts.get((rule.option, rule.text), Counter()))) for rule in ignores.rules)


def _ordered(counts: Counter[IgnoredThing]) -> tuple[tuple[IgnoredThing, int], ...]:
    return tuple((thing, counts[thing]) for thing in IgnoredThing if counts[thing])


def together(uses_of_comparisons: Iterable[Sequence[IgnoreUse]]) -> tuple[IgnoreUse, ...]:
    """Return how often each rule applied in several comparisons."""
    totals: dict[IgnoreRule, Counter[IgnoredThing]] = {}
    for use in (use for uses_of_one in uses_of_comparisons for use in uses_of_one):
        totals.setdefault(use.rule, Counter()).update(dict(use.counts))
    return tuple(IgnoreUse(rule, _ordered(counts)) for rule, counts in totals.items())


def in_words(counts: Iterable[tuple[IgnoredThing, int]]) -> str:
    """Return numbers of things: 1 file, 2 values and 1 line."""
    words = [f"{count:,} {thing.value}{'' if count == 1 else 's'}" for thing, count in counts]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def ignored_in(node: Difference) -> str:
    """Return what was ignored of a node and of all below it, in numbers."""
    totals: Counter[IgnoredThing] = Counter()
    for ignored in counts_of_ignored(node):
        totals[ignored.thing] += ignored.count
    return in_words(_ordered(totals))


def behind_verdict(uses_of_rules: Sequence[IgnoreUse]) -> str:
    """Return what is said behind a verdict of differences that were ignored; empty where there are none."""
    totals: Counter[IgnoredThing] = Counter()
    for use in uses_of_rules:
        totals.update(dict(use.counts))
    verb = "was" if totals.total() == 1 else "were"
    return f"; {in_words(_ordered(totals))} {verb} ignored as declared" if totals.total() else ""
