"""The comparison of the files that trainings write."""
