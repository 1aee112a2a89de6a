"""Diagnoses profiled runs: reads what was observed, joins it with what is known, and says what keeps runs apart."""

from reprokit.profiling.analyze import analyze

__all__ = ["analyze"]
