"""Diagnoses profiled runs: reads what was observed, joins it with what is known, and says what keeps runs apart."""

from reprokit.profiling.analyse import analyse

__all__ = ["analyse"]
