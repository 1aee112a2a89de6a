"""Judges values in the files of two runs: the names are keys, columns and labels, the rules those of printed lines."""

from __future__ import annotations

import ast
import json
import operator
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from reprokit.core.difference import BookkeepingKind, Difference, Verdict, bookkeeping, group
from reprokit.diff.elements import Source
from reprokit.diff.sources import BytesSource
from reprokit.verify.bookkeeping import forms, names
from reprokit.verify.bookkeeping.forms import Form
from reprokit.verify.bookkeeping.recognition import (
    Contexts,
    ValueName,
    recognized,
    recognized_numbers,
    resembles,
)
from reprokit.verify.categories.printed_lines import LineComparer, LookAlike, RecognizedValue
from reprokit.verify.read.normalization import is_tracker_settings

LONGEST = 1 << 16  # characters of a text that is looked at
_NUMBERS = re.compile(r"[\[(][-+\d.e, ]{1,4096}[\])]")  # a list
# A level of a path that names nothing, as an index or a field of TensorBoard's messages.
_INDEX = re.compile(r"\d+|\(.*\)|simple_value|tensor|tensor_content|(?:float|double|int|int64)_val|content")

# Of config.yaml: what Weights & Biases keeps beside the user's values.
_OWN_SECTION = re.compile(rb"^_wandb:[^\n]*\n(?:[ \t][^\n]*\n?|\n)*", re.MULTILINE)
LARGEST_SETTINGS = 4 << 20  # bytes
_OF_MACHINE = frozenset({"disk", "memory", "heartbeatAt"})  # keys of wandb-metadata.json
_OWN_FORMS = frozenset({Form.ID, Form.SHORT_ID, Form.DATE})


class FileBookkeeping:
    """Judges the values of one pair of files."""

    def __init__(self, path: str, contexts: Contexts):
        self._path, self._contexts = path, contexts
        self._is_trackers = is_tracker_settings(path)

    def value(
        self, title: str, path: str, texts: tuple[str, str], beside: tuple[str, ...] = (), *, is_row: bool = False
    ) -> Difference | None:
        """Return the difference of two values if it is bookkeeping alone; a text is judged line by line."""
        name = value_name(path, beside, is_row=is_row)
        kind = recognized(name, *texts, self._contexts)
        if kind is None and self._is_trackers and _is_tracker_value(path, texts):
            kind = BookkeepingKind.TRACKER
        if kind is not None:
            return bookkeeping(title, *texts, kind)
        if all(map(_NUMBERS.fullmatch, texts)):
            return self._list(title, path, texts)
        left, right = (_lines(text) for text in texts)
        if len(left) != len(right) or not _is_text(texts):
            return None
        comparer, values = LineComparer(self._contexts), list[RecognizedValue]()
        if any(forms.whole(forms.unquoted(text)) is None for text in texts):
            name = replace(name, is_row=False)  # the words of a text say more than its column
        for left_line, right_line in zip(left, right, strict=True):
            line_values = comparer.compare(left_line, right_line, name)
            if line_values is None:
                return None
            values += line_values
        return _difference(title, values)

    def _list(self, title: str, path: str, texts: tuple[str, str]) -> Difference | None:
        """Return the difference of two lists that are written as texts."""
        left, right = (text.split(",") for text in texts)
        is_negative = any("-" in item.partition("e")[0] for item in (*left, *right))
        if len(left) != len(right) or is_negative:
            return None
        return self.numbers(title, path, texts, sum(map(operator.ne, left, right)))

    def numbers(self, title: str, path: str, texts: tuple[str, str], count: int) -> Difference | None:
        """Return the difference of two lists of numbers if their name is that of bookkeeping."""
        kind = recognized_numbers(value_name(path))
        if kind is None:
            return None
        return Difference(title, Verdict.BOOKKEEPING, *texts, kind.counted(count), kind=kind, count=count)

    def advice(self, path: str, texts: tuple[str, str]) -> str:
        """Return what to do where two values look like bookkeeping, which nothing names so."""
        name = value_name(path)
        kind = resembles(name, *texts)
        if kind is None:
            return ""
        return f"it may be a {kind.value}: if it is no result, --ignore '{self._path}:{name.text or '*'}' leaves it out"

    def unnamed(self, place: str) -> str:
        """Return what to do where a value without a name is no result."""
        return f"nothing names it: if it is no result, --ignore '{self._path}:{place}' leaves it out"

    def lines(self) -> _FileLines:
        """Return a judge of the lines of the files."""
        return _FileLines(self._path, self._contexts)


class _FileLines:
    """Judges the lines of one pair of texts."""

    def __init__(self, path: str, contexts: Contexts):
        self._path = path
        self._comparer = LineComparer(contexts)
        of_process = not {"pid", "lock"}.isdisjoint(names.words(os.path.basename(path)))
        self._name = ValueName("process") if of_process else None  # a lock file holds the id of its process
        self._look_alike: LookAlike | None = None

    def line(self, title: str, left: str, right: str) -> Difference | None:
        """Return the difference of two lines if it is bookkeeping alone."""
        texts = left.strip(), right.strip()
        name = self._name if texts[0].isdecimal() else None
        values = self._comparer.compare(*texts, name)
        self._look_alike = self._comparer.look_alike
        return None if values is None else _difference(title, values)

    @property
    def advice(self) -> str:
        """Return what to do where the last pair of lines only looked like bookkeeping."""
        like = self._look_alike
        if like is None:
            return ""
        return (
            f"{like.left} may be a {like.kind.value}: if the file is no result, --ignore '{self._path}' leaves it out"
        )


def of_user(path: str, source: Source) -> Source:
    """Return what a file holds beside a tracker's own section; most files have none."""
    if not is_tracker_settings(path) or os.path.basename(path) != "config.yaml" or source.size > LARGEST_SETTINGS:
        return source
    return BytesSource(_OWN_SECTION.sub(b"", source.read(0, source.size)))


def _is_tracker_value(path: str, texts: tuple[str, str]) -> bool:
    """Return whether a value in a tracker's settings is one of the machine's, or an id or time by its form."""
    is_of_machine = not _OF_MACHINE.isdisjoint(path.split("/")[:2])  # the first may name the whole document
    return is_of_machine or all(forms.whole(forms.unquoted(text)) in _OWN_FORMS for text in texts)


def value_name(path: str, beside: tuple[str, ...] = (), *, is_row: bool = False) -> ValueName:
    """Return the name of a value by its path within a file: the last key that is no index."""
    keys = [key.replace("~1", "/").replace("~0", "~") for key in path.split("/")]
    named = [key for key in keys if not _INDEX.fullmatch(key)]
    parents = named[:-1]
    if parents and parents[0][:1].isupper():  # the class of a pickled object: "SurvivalForest/fit_time_"
        parents = parents[1:]
    text = named[-1] if named else ""
    if len(named) > 1 and names.qualifies(text, named[-2]):  # as Lightning's "time_elapsed/train"
        text = f"{named[-2]} {text}"
    is_item = len(keys) > 1 and (
        keys[-1].isdecimal() or (keys[-2].isdecimal() and keys[-1] == text)
    )  # of columns, rows
    return ValueName(text, parents=" ".join(parents), beside=beside, is_row=is_row or is_item)


def _is_text(texts: tuple[str, str]) -> bool:
    return all(len(text) <= LONGEST and re.search(r"[^\W\d]", text) is not None for text in texts)


def _lines(text: str) -> list[str]:
    """Return the lines of a text, which its format may have quoted."""
    quoted = text[:1] if len(text) <= LONGEST and text[:1] == text[-1:] and text[:1] in ("'", '"') else ""
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        text = str(json.loads(text) if quoted == '"' else ast.literal_eval(text)) if quoted else text
    return text.splitlines()


def _difference(title: str, values: list[RecognizedValue]) -> Difference | None:
    """Return the leaf of one value, or a group of several; None if there are none."""
    if len(values) == 1:
        return bookkeeping(title, values[0].left, values[0].right, values[0].kind)
    return group(title, tuple(_leaves(title, values))) if values else None


def _leaves(title: str, values: list[RecognizedValue]) -> Iterator[Difference]:
    for number, value in enumerate(values, 1):
        yield bookkeeping(f"{title} ({number})", value.left, value.right, value.kind)
