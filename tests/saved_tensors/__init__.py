"""Reading the tensors of runs."""
