"""Runs a training again and again, with more and more done to it, until two runs of it are the same bit for bit."""
