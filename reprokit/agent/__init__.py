"""What of reprokit lives inside the training's Python process: standard library only, CPython 3.7 and newer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent import Agent

# The agent of this process, where one runs: how reprokit.log, wherever it was imported from, finds it.
running: Agent | None = None
