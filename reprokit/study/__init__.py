"""Studies: setups of a training run many times, in pairs, and what came of each run."""
