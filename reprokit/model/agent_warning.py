"""Declares the agent's warnings: what it could not do, or saw, in a process of the training."""

from __future__ import annotations

import msgspec


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
