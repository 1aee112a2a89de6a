"""Plan to child to run directory: starts the training as if reprokit were not there."""
