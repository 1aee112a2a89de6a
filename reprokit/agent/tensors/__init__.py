"""Saves tensors of chosen steps, for questions."""
