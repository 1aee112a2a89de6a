"""Asks a replay questions; the replay proves by its trail that it is the recorded run."""
