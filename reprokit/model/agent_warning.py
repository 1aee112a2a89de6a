"""Declares the agent's warnings: what it could not do, or saw, in a process of the training."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from reprokit.core.printable import listed

NAMED = 3  # further paths that a warning names


class AgentWarning(msgspec.Struct, frozen=True):
    """One warning; several of the same code about the same path say the same thing."""

    text: str
    code: str = ""
    path: str = ""
    said: bool = False  # whether the agent has printed it, too

    @property
    def about(self) -> tuple[str, str]:
        """Return what tells it from other warnings."""
        return (self.code, self.path) if self.code else ("", self.text)


def distinct(warnings: list[AgentWarning]) -> list[AgentWarning]:
    """Return the first warning of each thing that is warned of."""
    by_thing: dict[tuple[str, str], AgentWarning] = {}
    for warning in warnings:
        by_thing.setdefault(warning.about, warning)
    return list(by_thing.values())


def by_cause(warnings: Iterable[AgentWarning]) -> list[AgentWarning]:
    """Return one warning for each cause: those of the same code are one, which names the first paths."""
    by_code: dict[str, list[AgentWarning]] = {}
    for warning in warnings:
        by_code.setdefault(warning.code or warning.text, []).append(warning)
    return [_joined(same) for same in by_code.values()]


def _joined(warnings: list[AgentWarning]) -> AgentWarning:
    first, *further = warnings
    if not further:
        return first
    paths = listed([warning.path or warning.text for warning in further], NAMED)
    text = f"{first.text} (and {len(further)} more: {paths})"
    return AgentWarning(text, first.code, first.path, all(warning.said for warning in warnings))
