"""Templates of pages: every text in them is escaped, and nothing in them is fetched."""

from __future__ import annotations

import re
from typing import Any

import jinja2
from markupsafe import Markup, escape

from reprokit.core.printable import printable

LONGEST = 2000  # characters of one text
MOST_ROWS = 400  # of a table: more cannot be read or printed, and JSON has them
SHOWN_DIGITS = 12  # of a digest
_DIGEST = re.compile(r"\b((?:[a-z]+-)?sha256:)?([0-9a-f]{64})\b")


def environment(package: str) -> jinja2.Environment:
    """Return the templates of a package, which may use the shared ones."""
    loaders = [jinja2.PackageLoader(package), jinja2.PackageLoader("reprokit.core.pages")]
    templates = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, undefined=jinja2.StrictUndefined
    )
    templates.globals |= {"MOST_ROWS": MOST_ROWS}
    templates.filters |= {"short": printable, "heading": _heading, "digests": _digests}
    return templates


def style(templates: jinja2.Environment, *names: str) -> Any:
    """Style sheets as they are, unescaped."""
    assert templates.loader is not None
    return Markup("\n").join(Markup(templates.loader.get_source(templates, name)[0]) for name in names)


def unescaped(text: str) -> Any:
    """Markup that was made here."""
    return Markup(text)


def all_printable(value: Any) -> Any:
    """Return the same without anything that a reader's screen might act upon."""
    if isinstance(value, str):
        return printable(value, LONGEST)
    if isinstance(value, dict):
        return {key: all_printable(inner) for key, inner in value.items()}
    return [all_printable(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _digests(text: object) -> Any:
    """Shorten the digests in a text; the whole is their title, which paper shows."""

    def shortened(match: re.Match[str]) -> str:
        short = f"{match[1] or ''}{match[2][:SHOWN_DIGITS]}…"
        return f'<span class="digest" title="{match[0]}"><span>{short}</span></span>'

    return Markup(_DIGEST.sub(shortened, escape(text)))


def _heading(text: str) -> str:
    return text[:1].upper() + text[1:]
