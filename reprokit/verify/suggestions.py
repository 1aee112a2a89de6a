"""Proposes what to declare: what differs in the files and lines of three runs whose trainings are equal.

Nothing is proposed for what may be a result. Each proposal rests on the form of the values in all the runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from reprokit.core.difference import SIDES, BookkeepingKind
from reprokit.core.errors import IgnoreRefused
from reprokit.core.printable import cut, printable
from reprokit.core.tolerance import Tolerances
from reprokit.diff.elements import TensorPart, Value
from reprokit.run_files import console
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.recognition import Contexts, RunContext, ValueName, proposed
from reprokit.verify.categories import outputs
from reprokit.verify.categories.declared_outputs import DeclaredIgnores, DeclaredLines, UncoveredPart, own_name
from reprokit.verify.categories.match import match
from reprokit.verify.categories.printed_lines import LineComparer, printed_lines, result_spans
from reprokit.verify.comparison import Comparison
from reprokit.verify.ignores import CONSOLE, LONGEST, OUTPUTS, Ignores, declared
from reprokit.verify.read.scan import natural, of_process
from reprokit.verify.runs import compare

FREE = ("outputs", "console")  # categories in which the runs may differ
MOST = 200  # proposals, and things without one
CONTEXT = 24  # characters before a word of a line that a proposal names
UNKNOWN = "the form of its values is not known"
WHOLE = "its format is not known, or its bytes are gone"
_WORD = re.compile(r"([\w.:+/-]+)")
_NAME_PART = re.compile(rf"({forms.UUID.pattern}|{forms.SHOWN_DATE}(?![0-9])|[A-Za-z0-9]+)")


@dataclass(frozen=True)
class SuggestedRule:
    """A rule that would leave out what differs, and why it may."""

    option: str
    text: str
    reason: str
    values: tuple[str, ...] = ()  # examples


@dataclass(frozen=True)
class Unsuggested:
    """Something that differs and for which no rule is proposed."""

    place: str
    why: str


@dataclass(frozen=True)
class IgnoreSuggestions:
    """All proposals for some runs, and what they would lead to."""

    rules: tuple[SuggestedRule, ...]
    unsuggested: tuple[Unsuggested, ...]
    comparisons: tuple[Comparison, ...]  # of each two runs under these rules

    @property
    def suffices(self) -> bool:
        """Return whether all runs are identical under these rules."""
        return all(comparison.identical for comparison in self.comparisons)


def suggest(paths: Sequence[Path], ignores: Ignores) -> IgnoreSuggestions | Comparison:
    """Return proposals beside the rules that there are; of runs whose trainings differ their comparison."""
    for pair in combinations(paths, 2):
        comparison = compare(*pair, ignores=ignores)
        if any(child.verdict.differs for child in comparison.tree.children if child.name not in FREE):
            return comparison
    runs = list(map(RunDirectory, paths))
    pairs = {(i, j): match(runs[i], runs[j], Tolerances()).contexts for i, j in combinations(range(len(runs)), 2)}
    drafts = _Drafts(pairs)
    _FileDrafts(drafts).add(runs, ignores)
    _add_lines(drafts, runs, ignores)
    drafts.rules = list({(rule.option, rule.text): rule for rule in drafts.rules}.values())
    while True:
        try:
            proposed = ignores.and_also(drafts.declared())
            comparisons = tuple(compare(*pair, ignores=proposed) for pair in combinations(paths, 2))
        except IgnoreRefused as refused:  # one of the rules, which then ends as something without a proposal
            if not drafts.drop(refused):
                raise
        else:
            return IgnoreSuggestions(tuple(drafts.rules), tuple(dict.fromkeys(drafts.unsuggested)), comparisons)


@dataclass
class _Drafts:
    """The proposals so far."""

    contexts: dict[tuple[int, int], Contexts]  # of each two runs
    rules: list[SuggestedRule] = field(default_factory=list)
    unsuggested: list[Unsuggested] = field(default_factory=list)

    def propose(self, option: str, text: str, reason: str, values: Iterable[str] = ()) -> None:
        """Add a rule that can be declared as it is shown."""
        if len(self.rules) >= MOST or not text.isprintable() or len(text) > LONGEST:
            self.leave(text, "no rule can name it" if len(self.rules) < MOST else "there are too many")
        else:
            self.rules.append(SuggestedRule(option, text, reason, tuple(printable(value, 40) for value in values)))

    def leave(self, place: str, why: str) -> None:
        """Add something for which there is no proposal."""
        if len(self.unsuggested) < MOST:
            self.unsuggested.append(Unsuggested(printable(place, 160), why))

    def declared(self) -> Ignores:
        """Return the rules as they would be declared."""
        outputs_texts, console_texts = (
            [rule.text for rule in self.rules if rule.option == option] for option in (OUTPUTS, CONSOLE)
        )
        return declared(outputs_texts, console_texts, "the proposal")

    def kind(self, texts: Mapping[int, str], name: str = "") -> BookkeepingKind | None:
        """Return what the values of some runs are by their form and name; None if they may be results."""
        named = ValueName(name)
        kinds = {
            proposed(named, texts[i], texts[j], contexts)
            for (i, j), contexts in self.contexts.items()
            if i in texts and j in texts
        }
        return kinds.pop() if len(kinds) == 1 else None

    def what(self, texts: Mapping[int, str], name: str = "") -> str:
        """Return what texts are, as a whole or in the words in which they differ; empty if that is not known."""
        kinds = [self.kind(texts, name)]
        if kinds[0] is None:
            words = _varying_words(list(texts.values()))
            kinds = [self.kind(dict(zip(texts, column, strict=True)), _name(start)) for start, column in words]
        return "" if None in kinds else " and ".join(sorted({_article(kind) for kind in kinds if kind is not None}))

    def drop(self, refused: IgnoreRefused) -> bool:
        """Remove the rule that was refused; return whether it is one of these."""
        kept = [rule for rule in self.rules if rule.text != refused.rule]
        is_own = len(kept) < len(self.rules)
        self.rules = kept
        self.leave(refused.rule, str(refused))
        return is_own


@dataclass
class _SeenPart:
    """A part of a file that differs in some runs."""

    texts: dict[int, str | None] = field(default_factory=dict)  # by run; None: it has no value there
    is_array: bool = False
    protected: str = ""


class _FileDrafts:
    """Proposes rules for what differs in the files of any two runs."""

    def __init__(self, drafts: _Drafts) -> None:
        self._drafts = drafts
        self._parts: dict[tuple[str, str], _SeenPart] = {}  # by path and key
        self._lines: dict[str, list[tuple[tuple[int, int], UncoveredPart]]] = {}  # of texts, by path

    def add(self, runs: Sequence[RunDirectory], ignores: Ignores) -> None:
        """Compare each two runs, and propose rules for what differs."""
        for pair in combinations(range(len(runs)), 2):

            def note(part: UncoveredPart, pair: tuple[int, int] = pair) -> None:
                self._note(pair, part)

            left, right = (runs[number] for number in pair)
            outputs.compare(match(left, right, Tolerances(), DeclaredIgnores(ignores, seen=note)))
        self._propose_parts()
        for path, lines in self._lines.items():
            self._propose_text(path, lines)

    def _note(self, pair: tuple[int, int], part: UncoveredPart) -> None:
        if part.is_whole:
            self._note_whole(pair, part)
        elif not part.key:
            self._lines.setdefault(part.path, []).append((pair, part))
        else:
            seen = self._parts.setdefault((part.path, part.key), _SeenPart())
            seen.protected = seen.protected or part.protected
            for number, side in zip(pair, (part.left, part.right), strict=True):
                seen.is_array = seen.is_array or isinstance(side, TensorPart)
                seen.texts.setdefault(number, side.text if isinstance(side, Value) else None)

    def _note_whole(self, pair: tuple[int, int], part: UncoveredPart) -> None:
        """Propose a pattern for a file of one run alone whose name holds something of the run."""
        lacking = part.leaf.lacking if part.leaf is not None else None
        if part.protected or lacking is None:
            self._drafts.leave(part.path, part.protected or WHOLE)
            return
        side = 1 - SIDES.index(lacking)
        context = self._drafts.contexts[pair][side]
        pieces = _NAME_PART.split(part.path)
        kinds = [_named_kind(pieces, number, context) if number % 2 else None for number in range(len(pieces))]
        glob = "".join("*" if kind else _escaped(piece) for kind, piece in zip(kinds, pieces, strict=True))
        found = ", ".join(sorted({_article(kind) for kind in kinds if kind is not None}))
        if found:
            self._drafts.propose(OUTPUTS, glob, f"its name holds {found}", [part.path])
        else:
            self._drafts.leave(part.path, "one run alone wrote it")

    def _propose_parts(self) -> None:
        general: dict[tuple[str, str], list[tuple[str, _SeenPart]]] = {}
        for (path, key), part in self._parts.items():
            stars = "/".join("*" if name.isdigit() else _escaped(name) for name in key.split("/"))
            general.setdefault((path, stars), []).append((key, part))
        for (path, stars), keys in general.items():
            reasons = [self._reason(key, part) for key, part in keys]
            if not all(what for what, _ in reasons):
                why = next(why for what, why in reasons if not what)
                self._drafts.leave(f"{path}/{keys[0][0]}", why)
                continue
            found = sorted({what for what, _ in reasons})
            key = stars if len(keys) > 1 else _escaped(keys[0][0])
            examples = [text for text in keys[0][1].texts.values() if text is not None]
            self._drafts.propose(OUTPUTS, f"{_glob(path)}:{key}", " or ".join(found), examples)

    def _reason(self, key: str, part: _SeenPart) -> tuple[str, str]:
        """Return what the values of a part are; if that is not known, an empty text and why there is no proposal."""
        if part.protected:
            return "", part.protected
        texts = {number: text for number, text in part.texts.items() if text is not None}
        if not part.is_array and len(texts) < len(part.texts):
            return "", "it is not in all the runs"
        return "" if part.is_array else self._drafts.what(texts, own_name(key)), UNKNOWN

    def _propose_text(self, path: str, lines: list[tuple[tuple[int, int], UncoveredPart]]) -> None:
        """Propose a text as a whole if its lines differ only in what says something of the run."""
        found: set[str] = set()
        for pair, line in lines:
            sides = zip(pair, (line.left, line.right), strict=True)
            texts = {number: side.text for number, side in sides if isinstance(side, Value)}
            what = self._drafts.what(texts) if len(texts) == len(pair) else ""
            if line.protected or not what:
                text = next(iter(texts.values()), "").strip()
                self._drafts.leave(f"{path}: {cut(text, 80)!r}", line.protected or UNKNOWN)
                return
            found.add(what)
        self._drafts.propose(OUTPUTS, _glob(path), f"its lines differ in {', '.join(sorted(found))}")


def _named_kind(pieces: Sequence[str], number: int, context: RunContext) -> BookkeepingKind | None:
    """Return what a piece of a path is by its form and the words before it."""
    name = ValueName("".join(pieces[max(0, number - 2) : number]))
    return proposed(name, pieces[number], pieces[number], (context, context))


def _article(kind: BookkeepingKind) -> str:
    return f"{'an' if kind.value[0] in 'aio' else 'a'} {kind.value}"


def _escaped(name: str) -> str:
    """Return a pattern that matches a name alone."""
    return re.sub(r"([\[*?:])", r"[\1]", name)


def _glob(path: str) -> str:
    """Return a pattern for a path of the comparison, in which ? stands for what is another in every run."""
    return re.sub(r"([\[*:])", r"[\1]", path)


def _add_lines(drafts: _Drafts, runs: Sequence[RunDirectory], ignores: Ignores) -> None:
    """Propose rules for printed lines that differ, place by place, in streams with equally many."""
    heads = [console.heads(run) for run in runs]
    for process in sorted(set.intersection(*map(set, heads)), key=natural):
        printed = [console.read(run, of_run[process]) for run, of_run in zip(runs, heads, strict=True)]
        for stream, name in enumerate(console.STREAMS):
            whole = [printed_lines(console.text(one.first, stream))[0] for one in printed]
            rules = DeclaredLines(DeclaredIgnores(ignores), (line for lines in whole for line in lines))
            rows = [[line.text for line in rules.of(lines)] for lines in whole]
            title = of_process(name, process)
            if len(set(map(len, rows))) > 1:
                drafts.leave(title, "the runs printed different numbers of lines")
            for texts in zip(*rows, strict=False):
                compared = drafts.contexts.items()
                if any(LineComparer(of_pair).compare(texts[i], texts[j]) is None for (i, j), of_pair in compared):
                    _add_line(drafts, title, texts)


def _add_line(drafts: _Drafts, title: str, texts: Sequence[str]) -> None:
    place = f"{title}: {cut(texts[0], 80)!r}"
    results = {start for start, _ in result_spans(texts[0])}
    varied = _varying_words(texts)
    kinds = [drafts.kind(dict(enumerate(column)), _name(start)) for start, column in varied]
    if not varied or None in kinds or any(len(start) in results for start, _ in varied):
        drafts.leave(place, UNKNOWN)
        return
    for (start, column), kind in zip(varied, kinds, strict=True):
        assert kind is not None
        context = re.escape(start[-CONTEXT:]).replace(r"\ ", " ")
        expression = ("" if len(start) > CONTEXT else "^") + context + forms.expression(column[0])
        drafts.propose(CONSOLE, expression, _article(kind), column)


def _varying_words(texts: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the words in which texts differ, each behind the first text's beginning; none if more differs."""
    parts = [_WORD.split(text) for text in texts]
    if len(set(map(len, parts))) > 1 or len({tuple(of_text[::2]) for of_text in parts}) > 1:
        return []
    columns = enumerate(zip(*parts, strict=True))
    return [("".join(parts[0][:place]), list(column)) for place, column in columns if len(set(column)) > 1]


def _name(text: str) -> str:
    """Return the last words before a value, which can be its name."""
    return " ".join(names.words(text)[-2:])
