"""Rules that the source code itself must keep."""
