"""What the listeners of operators need of PyTorch: copies, digests and repeated calls."""
