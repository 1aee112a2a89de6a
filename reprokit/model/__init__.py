"""Declares the contents of files in a run directory as typed structs, for those who write, read and show them."""
