"""Two runs in, a tree of differences out; reads run directories and nothing else."""
