"""What the log of operators needs of JAX."""
