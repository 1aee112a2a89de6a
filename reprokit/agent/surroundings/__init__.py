"""What a training asks of its surroundings: folders, variables, settings, and where in the script."""
