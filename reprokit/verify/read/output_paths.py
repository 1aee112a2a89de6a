"""Pairs outputs whose paths hold dates, run names or numbers of their run: runs/Nov29_08-04-02_host, version_1.

Only paths that one run alone has are looked at, from the top directory down. Names are paired by what is left of them
without dates and ids, in their order. Numbers are paired only where one run's follow the other's: then the directories
of the earlier run were in the way. Contents decide nothing here, so no difference of contents is lost.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from reprokit.core.difference import BookkeepingKind, Difference, bookkeeping
from reprokit.model.outputs import OutputsFile
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.forms import Form
from reprokit.verify.bookkeeping.recognition import MONTH, Contexts, is_of_run
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import natural

MOST = 10_000  # paths of one run that the other lacks; more are not paired
_TIME_OF_DAY = re.compile(r"\d\d[-_.:h]\d\d(?:[-_.:m]\d\d)?")
_NUMBERED = re.compile(r"(.*?)[-_]?(\d{0,6})")
_EVENTS = "events.out.tfevents"
_HEX_NAME = re.compile(r"[0-9a-f]{8,64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class PairedName:
    """A directory or file that has another name in each run."""

    left: str  # path
    right: str
    kind: BookkeepingKind

    def leaf(self) -> Difference:
        """Return the difference of the names."""
        return bookkeeping(self.left, self.left, self.right, self.kind)


@dataclass
class OutputPaths:
    """The names under which a run's outputs are compared."""

    renamed: dict[str, str] = field(default_factory=dict)  # to the other run's name, of files and directories
    pairs: list[PairedName] = field(default_factory=list)

    def common(self, path: str) -> str:
        """Return the name under which a path is compared, without volatile parts."""
        return self.renamed.get(path, path)


@dataclass
class _Branch:
    """The part of both runs' outputs below a directory that both have."""

    left: str  # its path in the left run
    right: str
    sides: tuple[list[str], list[str]]  # paths below it
    is_dated: bool = False  # whether its name has a date


def paired_paths(
    outputs: tuple[OutputsFile | None, OutputsFile | None], contexts: Contexts
) -> tuple[OutputPaths, OutputPaths]:
    """Return the names under which the outputs of both runs are compared."""
    left, right = OutputPaths(), OutputPaths()
    normalizations = Normalizations()
    sides = [set(map(normalizations.path, _written(side))) if side is not None else set() for side in outputs]
    alone = sides[0] - sides[1], sides[1] - sides[0]
    if not all(alone) or max(map(len, alone)) > MOST:
        return left, right
    pairing = _Pairing(contexts)
    pairing.descend(_Branch("", "", sides=(sorted(alone[0], key=natural), sorted(alone[1], key=natural))))
    left.pairs = right.pairs = pairing.pairs
    right.renamed = pairing.renamed
    return left, right


def _written(outputs: OutputsFile) -> list[str]:
    return [file.path for file in outputs.files] + [link.path for link in outputs.links]


class _Pairing:
    """Walks down both trees of paths, and pairs the names of each directory's entries."""

    def __init__(self, contexts: Contexts):
        self._contexts = contexts
        self.pairs: list[PairedName] = []
        self.renamed: dict[str, str] = {}

    def descend(self, branch: _Branch) -> None:
        """Pair the entries of a directory, then what is below them."""
        entries = _entries(branch.sides[0]), _entries(branch.sides[1])
        partners = {name: name for name in entries[0] if name in entries[1]}
        partners.update(self._numbered(branch, entries))
        unpaired = [name for name in entries[0] if name not in partners], set(entries[1]) - set(partners.values())
        partners.update(self._dated(branch, unpaired))
        for name, partner in partners.items():
            left, right = os.path.join(branch.left, name), os.path.join(branch.right, partner)
            below = entries[0][name], entries[1][partner]
            is_directory = any(below[0]) or any(below[1])
            if name != partner:
                kind = BookkeepingKind.DIRECTORY if is_directory else BookkeepingKind.PATH
                self.pairs.append(PairedName(left, right, kind))
            if left != right:
                self.renamed.update({os.path.join(right, path): os.path.join(left, path) for path in ("", *below[1])})
                self.renamed[right] = left
            if is_directory:
                is_dated = "<date>" in self._pattern(name, 0, is_dated=False)
                rest = [*filter(None, below[0])], [*filter(None, below[1])]
                self.descend(_Branch(left, right, rest, is_dated))

    def _dated(self, branch: _Branch, unpaired: tuple[Iterable[str], Iterable[str]]) -> Iterator[tuple[str, str]]:
        """Yield the names that are the same without their dates and ids, in their order."""
        patterns: tuple[dict[str, list[str]], ...] = defaultdict(list), defaultdict(list)
        for side, side_names in enumerate(unpaired):
            for name in sorted(side_names, key=natural):
                pattern = self._pattern(name, side, is_dated=branch.is_dated)
                if pattern != name:
                    patterns[side][pattern].append(name)
        for pattern, left_names in patterns[0].items():
            right_names = patterns[1].get(pattern, [])
            if "<id>" not in pattern or len(left_names) == len(right_names) == 1:  # ids have no order
                yield from zip(left_names, right_names, strict=False)

    def _pattern(self, name: str, side: int, *, is_dated: bool) -> str:
        """Return a name without the run's dates, ids and process ids."""
        context = self._contexts[side]
        if is_dated and _TIME_OF_DAY.fullmatch(name):
            return "<time>"
        if _HEX_NAME.fullmatch(name) and not name.isdecimal():
            return "<id>"

        def replaced(token: re.Match[str]) -> str:
            form, text = forms.form_of(token), token[0]
            if form in (Form.DATE, Form.NUMBER) and is_of_run(text, (context, context), MONTH):
                return "<date>"
            if form is Form.NUMBER and text.isdecimal() and int(text) in context.ids:
                return "<process>"
            return "<id>" if form is Form.ID and text.count("-") == 4 else text

        return forms.TOKEN.sub(replaced, name)

    def _numbered(
        self, branch: _Branch, entries: tuple[dict[str, list[str]], dict[str, list[str]]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the directories of runs that were numbered on, as those of the earlier run were there already."""
        families = _families(entries[0]), _families(entries[1])
        for family, left in families[0].items():
            right = families[1].get(family, {})
            left_numbers, right_numbers = sorted(left), sorted(right)
            are_ranges = all(map(_is_range, (left_numbers, right_numbers)))
            if len(left) != len(right) or left_numbers == right_numbers or not are_ranges:
                continue
            apart = abs(left_numbers[0] - right_numbers[0])
            first, last = sorted((left_numbers[0], right_numbers[0]))
            is_later = 0 if left_numbers[0] > right_numbers[0] else 1
            if apart == len(left) or self._existed(branch, is_later, family, range(first, last)):
                yield from ((left[here], right[there]) for here, there in zip(left_numbers, right_numbers, strict=True))

    def _existed(self, branch: _Branch, side: int, family: str, numbers: range) -> bool:
        """Return whether directories of all these numbers are there, beside that of the later run."""
        place = os.path.join(self._contexts[side].directory, (branch.left, branch.right)[side])
        found = _families({name: ["x"] for name in _listed(place)})
        return all(number in found.get(family, {}) for number in numbers)


def _listed(place: str) -> list[str]:
    try:
        return os.listdir(place)
    except (OSError, ValueError):
        return []


def _entries(paths: list[str]) -> dict[str, list[str]]:
    """Return the entries of a directory, each with the paths below it; of a file an empty one."""
    entries: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        start = 1 if path.startswith("/") else 0
        name, _, rest = path[start:].partition("/")
        entries[path[:start] + name].append(rest)
    return entries


def _families(entries: dict[str, list[str]]) -> dict[str, dict[int, str]]:
    """Return the numbered directories of runs by what stands before the number; without one it is 1."""
    families: dict[str, dict[int, str]] = defaultdict(dict)
    for name, below in entries.items():
        match = _NUMBERED.fullmatch(name)
        if match is None or not any(below) or not _is_of_runs(match[1], below):
            continue
        families[match[1]][int(match[2] or 1)] = name
    return families


def _is_of_runs(family: str, below: list[str]) -> bool:
    """Return whether directories of this name are made for each run anew."""
    words = names.words(family)
    return (bool(words) and words[-1] in names.RUN_DIRECTORIES) or any(path.startswith(_EVENTS) for path in below)


def _is_range(numbers: list[int]) -> bool:
    return bool(numbers) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
