"""The part of reprokit inside the training's Python process: standard library only, CPython 3.7 and newer."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .core.agent import Agent

# The agent of this process, if there is one; reprokit.log, wherever it is imported from, finds it here.
running: Agent | None = None
