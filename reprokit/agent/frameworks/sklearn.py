"""scikit-learn: its version."""

from __future__ import annotations

from .version_only import VersionOnly as Adapter

__all__ = ["Adapter"]
