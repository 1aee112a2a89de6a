"""The order in which threads and processes get their turns: written down, and given again in a replay."""
