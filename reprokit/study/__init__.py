"""Runs a training many times, in pairs, and records the result of each run: a study."""
