"""Presents proposals of what to declare, as lines for the configuration and as a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from reprokit.core.printable import printable
from reprokit.verify.ignores import CONSOLE, OUTPUTS
from reprokit.verify.suggestions import IgnoreSuggestions, SuggestedRule
from reprokit.verify.verdict import RUNS_ARE_SAME, verdict_line

FORMAT = 1
KEYS = {"ignore": OUTPUTS, "ignore_console": CONSOLE}
HEAD = "# for reprokit.toml, or below [tool.reprokit] in pyproject.toml"
LONGEST = 1000  # characters of a line


def print_suggestions(found: IgnoreSuggestions) -> None:
    """Print the proposals as TOML, in whose comments stands what they rest on."""
    for line in _lines(found):
        print(printable(line, LONGEST))


def _lines(found: IgnoreSuggestions) -> Iterator[str]:
    yield HEAD if found.rules else "# nothing is proposed"
    for key, option in KEYS.items():
        rules = [rule for rule in found.rules if rule.option == option]
        if rules:
            yield f"{key} = ["
            yield from (f"    {_quoted(rule.text)},  # {_reason(rule)}" for rule in rules)
            yield "]"
    yield from (f"# not proposed: {left.place}: {left.why}" for left in found.unsuggested)
    if found.suffices:
        yield f"# {'with these lines ' if found.rules else ''}{RUNS_ARE_SAME}"
    for comparison in found.comparisons:
        if not comparison.identical:
            sides = f"{comparison.left.path} and {comparison.right.path}"
            yield f"# {sides} still differ: {verdict_line(comparison).partition(': ')[2]}"


def _reason(rule: SuggestedRule) -> str:
    return f"{rule.reason}: {', '.join(rule.values)}" if rule.values else rule.reason


def _quoted(text: str) -> str:
    """Return a text as a string of TOML, as it is where it holds no quote."""
    return f"'{text}'" if "'" not in text else json.dumps(text, ensure_ascii=False)


def document(found: IgnoreSuggestions) -> dict[str, Any]:
    """Return the proposals as a JSON document."""
    return {
        "format": FORMAT,
        **{
            key: [
                {"rule": rule.text, "reason": rule.reason, "values": list(rule.values)}
                for rule in found.rules
                if rule.option == option
            ]
            for key, option in KEYS.items()
        },
        "not_proposed": [{"place": left.place, "why": left.why} for left in found.unsuggested],
        "identical": found.suffices,
        "comparisons": [verdict_line(comparison) for comparison in found.comparisons],
    }
