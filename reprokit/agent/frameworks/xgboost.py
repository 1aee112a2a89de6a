"""XGBoost: its version, and the seed among the parameters of a training."""

from __future__ import annotations

from .parameters import ParametersAdapter as Adapter

__all__ = ["Adapter"]
