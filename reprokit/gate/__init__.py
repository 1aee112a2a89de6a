"""Fails a pipeline unless trainings are bitwise identical: runs them, compares them, and tells CI systems."""
