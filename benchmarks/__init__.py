"""Benchmarks: every side runs in turn in one run, and ratios are printed with medians and spread."""
