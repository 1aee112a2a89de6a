"""Signed in-toto statements of runs: what they say, their keys, the policies they meet."""
