"""Tests of verify and show, and of reading run directories."""
