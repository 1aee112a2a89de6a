"""Declares the warnings of a run: what the launcher, or the agent in a process of the training, could not do or saw.

A code is a line of run_warnings.toml, which says what it means, or the slug of an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from reprokit.core.printable import listed

NOT_WHOLE: Final = "snapshot-not-whole"
NAMED = 3  # further paths that a warning names


class RunWarning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One warning; several of the same code about the same path say the same thing."""

    text: str
    code: str = ""  # of runs recorded before there were codes
    path: str = ""
    said: bool = False  # whether the agent has printed it, too

    @property
    def line(self) -> str:
        """Return the text with the code behind it."""
        return f"{self.text} [{self.code}]" if self.code else self.text

    @property
    def about(self) -> tuple[str, str]:
        """Return what tells it from other warnings."""
        return (self.code, self.path or self.text)

    @property
    def cause(self) -> str:
        """Return what further warnings of the same cause share."""
        return self.code if self.path else self.text


def distinct(warnings: list[RunWarning]) -> list[RunWarning]:
    """Return the first warning of each thing that is warned of."""
    by_thing: dict[tuple[str, str], RunWarning] = {}
    for warning in warnings:
        by_thing.setdefault(warning.about, warning)
    return list(by_thing.values())


def by_cause(warnings: Iterable[RunWarning]) -> list[RunWarning]:
    """Return one warning for each cause: those of the same code are one, which names the first paths."""
    of_causes: dict[str, list[RunWarning]] = {}
    for warning in warnings:
        of_causes.setdefault(warning.cause, []).append(warning)
    return [_joined(same) for same in of_causes.values()]


def _joined(warnings: list[RunWarning]) -> RunWarning:
    first, *further = warnings
    if not further:
        return first
    paths = listed([warning.path or warning.text for warning in further], NAMED)
    text = f"{first.text} (and {len(further)} more: {paths})"
    return RunWarning(text, first.code, first.path, all(warning.said for warning in warnings))
