"""Shows runs and comparisons: on the screen, and as JSON documents."""
