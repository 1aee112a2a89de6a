"""A run packed for somebody else, without what is secret, and what was packed unpacked again with distrust."""
