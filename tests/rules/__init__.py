"""Rules on the tensors of runs."""
