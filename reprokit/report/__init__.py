"""Audit facts of one run or two, gathered once, and a presenter for each format that they are wanted in."""
