"""Texts in Markdown: what comes from elsewhere is neither Markdown nor HTML, and links nowhere."""

from __future__ import annotations

import re

from reprokit.core.printable import printable

LONGEST = 2000
_SPECIAL = re.compile(r"([\\`*_{}\[\]#!|<>~&@]|(?<=www)\.|:(?=//))")  # with what makes links and mentions


def escaped(text: str, limit: int = LONGEST) -> str:
    """Return a text in which nothing is Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", printable(text, limit))


def code(text: str, limit: int = LONGEST) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = printable(text, limit)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else ""
