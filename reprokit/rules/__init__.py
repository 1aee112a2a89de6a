"""Rules that detect a failing training by its saved tensors; they run in a process of their own."""
