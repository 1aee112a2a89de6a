"""The state of a training: what of it there is, by name and kind, and how it is put back."""
