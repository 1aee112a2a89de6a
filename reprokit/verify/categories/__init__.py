"""Compares two runs: one module for each category, and what their verdicts have in common."""
