"""Snapshots in scripts: read one, put its state into a model, or guard a training loop by oneself.

    snapshot = reprokit.capture.load("snapshots/step-00001234")
    snapshot.restore(model, optimizer)

    guard = reprokit.capture.guard(model, optimizer)  # PyTorch, without the launcher

Reading needs NumPy and nothing else; a model's framework is imported only by what is given a model.
"""

from __future__ import annotations

from reprokit.errors import BadSnapshot

from .loop_guard import guard
from .snapshot import Snapshot, load

__all__ = ["BadSnapshot", "Snapshot", "guard", "load"]
