"""Reads and writes the files of run directories, and finds the runs."""
