"""Gathers audit facts of one run or two, and presents them in several formats."""
