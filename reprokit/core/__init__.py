"""What every part rests on: errors, bounds, reading untrusted text, differences, screens."""
