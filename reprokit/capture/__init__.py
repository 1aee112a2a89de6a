"""Snapshots in scripts: read a snapshot, restore its state into a model, or guard a training loop.

    snapshot = reprokit.capture.load("snapshots/step-00001234")
    snapshot.restore(model, optimizer)

    guard = reprokit.capture.guard(model, optimizer)  # PyTorch, without the launcher

Reading needs NumPy only; a framework is imported only when a model of it is passed.
"""

from __future__ import annotations

from reprokit.core.errors import BadSnapshot

from .loop_guard import guard
from .snapshot import Snapshot, load

__all__ = ["BadSnapshot", "Snapshot", "guard", "load"]
