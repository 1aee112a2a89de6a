"""Applies the user's rules to what two runs wrote and printed; none covers weights, results or random states."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from reprokit.core import dtypes
from reprokit.core.difference import Difference, IgnoredCount, IgnoredThing, Verdict, counts_of_ignored
from reprokit.core.errors import IgnoreRefused, ReprokitError
from reprokit.core.printable import cut
from reprokit.diff.elements import Blob, Format, Limits, NestedFile, Part, TensorPart, Value
from reprokit.diff.formats import HEAD, detect, holds_model
from reprokit.diff.sources import FileSource
from reprokit.model.outputs import OutputFile
from reprokit.run_files import rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.bookkeeping.names import names_result, names_weights, words
from reprokit.verify.categories.printed_lines import PrintedLine, printed_results, result_spans
from reprokit.verify.ignores import IgnoreRule, Ignores, OutputRule, matches
from reprokit.verify.pattern_search import Span

OF_ARRAYS = ("npy", "npz", "pickle", "joblib")  # formats that can hold weights, and much else
OF_VALUES = ("csv", "json", "json lines", "arrow", "text", *OF_ARRAYS)
_MODEL_WORDS = frozenset(["checkpoint", "ckpt", "model", "models", "optimizer", "weight", "weights"])
_POSITIONS = ("numbers", "as written")  # what the JSON reader puts behind the path of a list
LEFT_OUT = "\N{OBJECT REPLACEMENT CHARACTER}"  # in the place of what is left out: no two words become one
QUOTED = 60  # characters of a line


@dataclass(frozen=True)
class UncoveredPart:
    """A part of an output that differs and that no rule covers."""

    path: str
    key: str  # empty for a line of a text, and for a whole file
    left: Part | None
    right: Part | None
    protected: str  # why it may not be ignored; empty if it may
    is_whole: bool = False  # a file whose parts are not known
    leaf: Difference | None = None  # of a whole file


SeenDifference: TypeAlias = "Callable[[UncoveredPart], None]"


@dataclass(frozen=True)
class DeclaredIgnores:
    """The rules of one comparison, and why some of them cannot be obeyed."""

    rules: Ignores = field(default_factory=Ignores)
    refusals: list[IgnoreRefused] = field(default_factory=list)
    seen: SeenDifference | None = None  # told of each part that differs and that no rule covers

    def require_obeyed(self) -> None:
        """Raise the first refusal."""
        for refusal in self.refusals[:1]:
            raise refusal

    def of_file(self, *paths: str) -> DeclaredFile | None:
        """Return the rules for an output by its paths in both runs and the one in the comparison; None if none."""
        matching = [rule for rule in self.rules.outputs if any(map(rule.path.matches, filter(None, paths)))]
        is_asked = bool(matching) or self.seen is not None
        return DeclaredFile(paths[0], matching, self.refusals, self.seen) if is_asked else None


@dataclass(frozen=True)
class DeclaredFile:
    """The rules that match one output; asked for each part of it that differs (artifacts.ignored_parts)."""

    name: str  # in the comparison
    rules: list[OutputRule]
    refusals: list[IgnoreRefused]
    seen: SeenDifference | None = None

    def __call__(
        self, paths: Sequence[str], left: Part | None, right: Part | None, *, of_model: bool, is_bookkeeping: bool
    ) -> IgnoredCount | None:
        """Return the rule that covers a part, by its paths; a part of a result is refused."""
        keys = [path[len(self.name) + 1 :] for path in paths]
        for rule in self.rules:
            if rule.key is not None and not any(map(rule.key.matches, keys)):
                continue
            key = keys[0]
            if why := _protected(key, left, right, of_model=of_model, by_key=rule.names_keys):
                self.refuse(rule, f"it covers {key or self.name} of {self.name}, {why}")
            else:
                return IgnoredCount(rule.rule.text, IgnoredThing.VALUE)
        if self.seen is not None and not is_bookkeeping:
            why = _protected(keys[0], left, right, of_model=of_model, by_key=True)
            self.seen(UncoveredPart(self.name, keys[0], left, right, why))
        return None

    def refuse(self, rule: OutputRule, why: str) -> None:
        """Note that a rule covers what is always compared."""
        advice = "" if rule.names_keys else "; name the values that may differ, as in GLOB:KEY"
        self.refusals.append(rule.rule.refused(f"{why}, and is always compared{advice}"))

    def judged(self, leaf: Difference, files: Iterable[tuple[RunDirectory, OutputFile | None]]) -> Difference:
        """Return the leaf of a file, as ignored where a rule for the whole of it covers all that differs."""
        whole = [rule for rule in self.rules if rule.key is None]
        why = _protected_name(self.name) if whole else ""
        for run, file in files if whole and not why else ():
            why = why or _protected_file(run, file)
        if why:
            self.refuse(whole[0], f"it covers {self.name}, {why}")
            return leaf
        texts = {rule.rule.text for rule in whole}
        by_whole = next((one.rule for one in counts_of_ignored(leaf) if one.rule in texts), None)
        if leaf.verdict is Verdict.IGNORED and by_whole is not None:
            return _whole(leaf, by_whole)
        if leaf.verdict.differs and leaf.judged is not None and whole:
            return _whole(leaf, whole[0].rule.text)
        if self.seen is not None and leaf.verdict.differs and leaf.judged is not None:
            self.seen(UncoveredPart(self.name, "", None, None, _protected_name(self.name), is_whole=True, leaf=leaf))
        return leaf


def _whole(leaf: Difference, rule: str) -> Difference:
    """Return the leaf of a file as ignored as a whole."""
    ignored = (IgnoredCount(rule, IgnoredThing.FILE),)
    return replace(leaf, judged=Verdict.IGNORED, children=(), ignored=ignored, can_change_results=False)


def _protected(key: str, left: Part | None, right: Part | None, *, of_model: bool, by_key: bool) -> str:
    """Return why a part may not be ignored; empty if it may."""
    parts = [part for part in (left, right) if part is not None]
    if any(isinstance(part, TensorPart) for part in parts):
        tensors = [part for part in parts if isinstance(part, TensorPart)]
        return "a tensor of a model" if of_model else _protected_array(key, tensors, by_key=by_key)
    name = own_name(key)
    if all(isinstance(part, Value) for part in parts):
        texts = [part.text for part in parts if isinstance(part, Value)]
        if name and names_result(name, is_number=any(map(_is_number, texts))):
            return "which names a result"
        if len({tuple(printed_results(text)) for text in texts}) > 1:
            return "a text with other results"
        return ""
    heads = [part.source.read(0, HEAD) for part in parts if isinstance(part, (Blob, NestedFile))]
    return "which holds weights" if of_model or any(holds_model(key, head) for head in heads) else ""


def _protected_array(key: str, tensors: list[TensorPart], *, by_key: bool) -> str:
    """Return why an array may not be ignored, by its name and shape, and by whether its own key is declared."""
    is_floating = any(dtypes.named(tensor.dtype).is_float for tensor in tensors)
    size = max(math.prod(tensor.shape) for tensor in tensors)
    is_matrix = any(len(tensor.shape) > 1 for tensor in tensors)
    if (is_floating and is_matrix) or (not by_key and size > 1 and (is_floating or is_matrix)):
        return f"an array of {size} numbers, which can be weights or results"
    return "an array with the name of weights or results" if names_weights(own_name(key)) else ""


def own_name(key: str) -> str:
    """Return the last part of a path that is a name: no position in a list."""
    names = [name for name in key.split("/") if name and not name.isdigit() and name not in _POSITIONS]
    return names[-1] if names else ""


def _is_number(text: str) -> bool:
    return any(character.isdigit() for character in text) and text.strip(" +-.eE0123456789_nafi") == ""


def _protected_name(name: str) -> str:
    """Return why no file of this name may be ignored as a whole; empty if it may."""
    return "which holds weights by its name" if holds_model(name, b"") else ""


def _protected_file(run: RunDirectory, file: OutputFile | None) -> str:
    """Return why a file of a run may not be ignored as a whole, by what it holds, as far as it is still there."""
    source = None if file is None else _opened(run, file)
    if file is None or source is None:
        return ""
    try:
        head, stem = source.read(0, HEAD), Path(file.path).stem
        format_ = detect(file.path, head)
        if holds_model(file.path, head):
            return "which holds weights"
        if format_ is None:
            is_named = not _MODEL_WORDS.isdisjoint(words(stem))
            return "which has the name of a model" if is_named and head else ""
        if format_.name in OF_VALUES and names_result(stem):
            return "which has the name of results"
        return _holds_arrays(format_, source) if format_.name in OF_ARRAYS else ""
    finally:
        source.close()


def _holds_arrays(format_: Format, source: FileSource) -> str:
    """Return that a file holds arrays that can be weights or results; empty if it does not, or cannot be read."""
    with suppress(Exception):  # a reader may fail in any way on a hostile file
        for part in format_.read(source, Limits()):
            if isinstance(part, TensorPart) and (why := _protected_array(part.name, [part], by_key=False)):
                return f"in which {part.name or 'there'} is {why}"
    return ""


def _opened(run: RunDirectory, file: OutputFile) -> FileSource | None:
    """Open the run's own copy of an output, else the file of that name, whatever it holds by now."""
    with suppress(OSError, ValueError, ReprokitError):
        if file.kept is not None:
            return FileSource(run.open_kept(file))
    with suppress(OSError, ValueError):
        return FileSource(rundir.open_regular(os.fspath(Path(run.run.working_directory) / file.path), os.O_RDONLY))
    return None


class DeclaredLines:
    """The lines of some streams, searched by all rules at once."""

    def __init__(self, declared: DeclaredIgnores, lines: Iterable[PrintedLine]) -> None:
        texts = list(dict.fromkeys(line.text for line in lines))
        rules = declared.rules.console
        found = matches(rules, texts)
        self._shortened: dict[str, tuple[str, tuple[str, ...]]] = {}  # by text: what is left, and the rules
        for number, text in enumerate(texts):
            spans_of_rules = [(rule, spans[number]) for rule, spans in zip(rules, found, strict=True) if spans[number]]
            for rule, spans in spans_of_rules:
                if why := _covered_result(text, spans):
                    declared.refusals.append(_refusal(rule, text, why))
            if spans_of_rules:
                rest = _without(text, [span for _, spans in spans_of_rules for span in spans])
                self._shortened[text] = rest, tuple(rule.text for rule, _ in spans_of_rules)

    def of(self, lines: Iterable[PrintedLine]) -> list[PrintedLine]:
        """Return the lines that are left, each with what is left of it."""
        return [line for line in map(self._shorter, lines) if not _is_empty(line)]

    def left_out(self, lines: Iterable[PrintedLine]) -> Iterator[PrintedLine]:
        """Yield the lines of which nothing is left."""
        return filter(_is_empty, map(self._shorter, lines))

    def _shorter(self, line: PrintedLine) -> PrintedLine:
        if line.text not in self._shortened:
            return line
        rest, rules = self._shortened[line.text]
        return replace(line, text=rest, whole=line.text, rules=rules)


def _is_empty(line: PrintedLine) -> bool:
    return bool(line.rules) and not line.text.replace(LEFT_OUT, "").strip()


def _without(text: str, spans: list[Span]) -> str:
    """Return a text with the place of each span marked."""
    pieces: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if start > at or not pieces:
            pieces.append(text[at : max(start, at)])
        at = max(at, end)
    return LEFT_OUT.join([*pieces, text[at:]])


def _covered_result(text: str, spans: list[Span]) -> str:
    """Return the first result in a line that one of the spans covers in part; empty if there is none."""
    covered = (
        text[start:end]
        for start, end in result_spans(text)
        if any(start < span_end and span_start < end for span_start, span_end in spans)
    )
    return next(covered, "")


def _refusal(rule: IgnoreRule, text: str, result: str) -> IgnoreRefused:
    line = cut(text, QUOTED)
    return rule.refused(f"it matches {result}, a result, in the line {line!r}; results are always compared")
