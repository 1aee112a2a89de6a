"""The seeds that a training gives to its random generators: recorded, and reused in a replay."""
