"""The seeds that a training gives its generators: written down, and given again in a replay."""
