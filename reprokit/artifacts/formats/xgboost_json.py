"""Reads the JSON of a model without recursion and without holding its values: long lists of numbers are tensors.

XGBoost writes numbers of single precision with at most nine digits. Lists of numbers with at most 15 digits become
doubles, which then differ whenever the numbers do; all other numbers are compared as they are written.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from reprokit.artifacts.formats.json import escaped
from reprokit.artifacts.formats.pickle_walk import unused
from reprokit.artifacts.parts import Limits, Part, Source, TensorPart, Value
from reprokit.artifacts.sources import Memory, whole
from reprokit.errors import ArtifactDamaged

FEW = 8  # shorter lists of numbers are shown number by number
ROOT = "(root)"
SPACE = re.compile(r"[ \t\r\n]*")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null|NaN|-?Infinity")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBERS = re.compile(r"\[([-+0-9.eE, \t\r\n]+)\]")
DIGITS = 15  # that a double tells apart
SMALLEST = 1e-290  # of normal doubles, with room


@dataclass
class JsonLevel:
    """An array or object that is being read."""

    path: str
    is_object: bool
    done: int = 0


class JsonReader:
    """One pass over a text."""

    def __init__(self, text: str, limits: Limits):
        self.text, self.limits = text, limits
        self.at = 0
        self.levels: list[JsonLevel] = []
        self.names: dict[str, int] = {}

    def fail(self, what: str) -> ArtifactDamaged:
        return ArtifactDamaged(f"JSON at character {self.at}: {what}")

    def parts(self) -> Iterator[Part]:
        """All values in the order of the text."""
        yield from self.value("")
        while self.levels:
            level = self.levels[-1]
            path = self.next_in(level)
            if path is None:
                self.levels.pop()
                yield Value(self.name(level.path), f"{'object' if level.is_object else 'list'} of {level.done}")
            else:
                yield from self.value(path)
        if self.peek():
            raise self.fail("there is text behind its end")

    def name(self, path: str) -> str:
        return unused(self.names, path or ROOT)

    def peek(self) -> str:
        """The next character that is no space."""
        space = SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def expect(self, character: str) -> None:
        if self.peek() != character:
            raise self.fail(f"there is no {character!r}")
        self.at += 1

    def next_in(self, level: JsonLevel) -> str | None:
        """The path of the next value in an array or object; None at its end."""
        if self.peek() == ("}" if level.is_object else "]"):
            self.at += 1
            return None
        if level.done:
            self.expect(",")
        number = level.done
        level.done += 1
        name = str(number)
        if level.is_object:
            self.peek()
            name = escaped(self.string())
            self.expect(":")
        return f"{level.path}/{name}" if level.path else name

    def string(self) -> str:
        found = STRING.match(self.text, self.at)
        if found is None:
            raise self.fail("there is no text")
        try:
            text = json.loads(found.group())
        except ValueError:
            raise self.fail("a text has an escape that is none") from None
        self.at = found.end()
        return str(text)

    def value(self, path: str) -> Iterator[Part]:
        """A value that is small, or the beginning of an array or object."""
        first = self.peek()
        numbers = NUMBERS.match(self.text, self.at) if first == "[" else None
        tensor = numbers_of(numbers.group(1)) if numbers else None
        if numbers and tensor:
            self.at = numbers.end()
            dtype, data = tensor
            yield TensorPart(self.name(path), dtype, (len(data) // 8,), Memory(data))
        elif first in ("[", "{") and first:
            if len(self.levels) >= self.limits.nesting:
                raise self.fail(f"values are nested more than {self.limits.nesting} levels deep")
            self.at += 1
            self.levels.append(JsonLevel(path, first == "{"))
        elif first == '"':
            yield Value(self.name(path), repr(self.string()))
        else:
            yield Value(self.name(path), self.atom())

    def atom(self) -> str:
        found = ATOM.match(self.text, self.at)
        if found is None:
            raise self.fail("there is no value")
        self.at = found.end()
        return found.group()


def numbers_of(text: str) -> tuple[str, bytes] | None:
    """A list of numbers as the bytes of a tensor; None where they are few, or doubles would not tell them apart."""
    items = [item.strip() for item in text.split(",")]
    if len(items) < FEW or not all(map(NUMBER.fullmatch, items)):
        return None
    try:
        if not any(sign in text for sign in ".eE"):
            whole_numbers = [int(item) for item in items if item != "-0" and len(item) < 20]
            return (
                ("int64", struct.pack(f"<{len(items)}q", *whole_numbers)) if len(whole_numbers) == len(items) else None
            )
    except struct.error:
        return None
    numbers = [float(item) for item in items]
    if not all(map(told_apart, items, numbers)):
        return None
    return "float64", struct.pack(f"<{len(items)}d", *numbers)


def told_apart(item: str, number: float) -> bool:
    """Whether no other number of as few digits is the same double."""
    digits = item.lstrip("-").upper().partition("E")[0].replace(".", "")
    if len(digits) > DIGITS:
        return False
    return SMALLEST < abs(number) < 1e300 if digits.strip("0") else number == 0


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Every value by its path."""
    try:
        text = whole(source, limits.header).decode("utf-8")
    except UnicodeError:
        raise ArtifactDamaged("it is not in UTF-8") from None
    return JsonReader(text, limits).parts()
