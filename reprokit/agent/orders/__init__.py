"""Records the order in which threads and processes take their turns, and enforces it in a replay."""
