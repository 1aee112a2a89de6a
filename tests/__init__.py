"""The tests: real processes, real signals, real trainings."""
