"""Names the lines of YAML, TOML and INI files by the keys that they stand under, without reading their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from reprokit.diff.elements import Source

_YAML = re.compile(
    r"""(?P<indent>[ ]*(?:-[ ]+)*)(?:(?P<key>[^\s#'"{}\[\],&*!|>%@`-][^:#]{0,400}?|"[^"]*"|'[^']*')\s*:(?=\s|$))?"""
)
_SECTION = re.compile(r"\s*\[{1,2}([^\[\]]{1,400})\]{1,2}\s*(?:[#;].*)?$")
_ASSIGNED = re.compile(r"""\s*([\w.'"-]{1,400})\s*[=:]""")


class LineKeys:
    """The paths of the lines of two texts, which are read again when the first path is asked for."""

    def __init__(self, name: str, left: Source, right: Source, longest: int) -> None:
        self._name, self._sides, self._longest = name, (left, right), longest
        self._keys_of = next((keys for endings, keys in _READERS if name.lower().endswith(endings)), None)

    def path(self, left: int, right: int) -> str:
        """Return the path of a pair of lines by their numbers from 1, of which one may be 0: the name, then keys."""
        if self._keys_of is None:
            return self._name
        keys = (self._paths[0][left - 1] if left else "", self._paths[1][right - 1] if right else "")
        return keys[0] if keys[0] == keys[1] or not right else keys[1] if not left else self._name

    @cached_property
    def _paths(self) -> tuple[list[str], list[str]]:
        from reprokit.diff.formats.text import lines

        assert self._keys_of is not None
        left, right = (
            ["/".join((self._name, *keys)) for keys in self._keys_of(lines(side, self._longest))]
            for side in self._sides
        )
        return left, right


def of_yaml(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the keys above each line and its own; items of lists have the keys of their list."""
    above: list[tuple[int, str]] = []
    for line in lines:
        if _is_comment(line):
            yield ()
            continue
        match = _YAML.match(line)
        assert match is not None
        dashes = len(match["indent"]) - len(match["indent"].lstrip(" "))
        indent = len(match["indent"]) if match["key"] else dashes
        is_item = "-" in match["indent"]
        # A list may stand as far left as its key.
        above = [(at, key) for at, key in above if at < dashes or (is_item and at == dashes)]
        if match["key"]:
            above = [*(pair for pair in above if pair[0] < indent or is_item), (indent, match["key"].strip("'\""))]
        yield tuple(key for _, key in above)


def _is_comment(line: str) -> bool:
    return line.lstrip()[:1] in ("", "#", ";")


def of_sections(lines: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield section and key of each line; a line that goes on has those of the line before."""
    section: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    for line in lines:
        if _is_comment(line):
            yield ()
            continue
        if match := _SECTION.match(line):
            section, key = tuple(match[1].strip().split(".")), ()
        elif match := _ASSIGNED.match(line):
            key = tuple(match[1].strip("'\"").split("."))
        yield (*section, *key)


_READERS: tuple[tuple[tuple[str, ...], Callable[[Iterable[str]], Iterator[tuple[str, ...]]]], ...] = (
    ((".yaml", ".yml"), of_yaml),
    ((".toml", ".ini", ".cfg", ".conf", ".properties", ".env"), of_sections),
)
