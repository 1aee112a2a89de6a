"""Reads the tensors that a run saved, while it runs or afterwards; nothing is executed or unpickled."""
