"""Reads the files that trainings write, and compares them tensor by tensor; nothing in them is ever executed."""
