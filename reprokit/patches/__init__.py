"""Patches: what makes a training repeat, applied from outside its source by launcher and agent."""

from __future__ import annotations

from reprokit.patches.catalogue import CATALOGUE, Patch, Takes, find
from reprokit.patches.selection import Chosen, is_absent, matters, misfit, parse, select

__all__ = ["CATALOGUE", "Chosen", "Patch", "Takes", "find", "is_absent", "matters", "misfit", "parse", "select"]
