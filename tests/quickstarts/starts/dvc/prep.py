"""The first step of a pipeline: data."""

import numpy as np

np.savetxt("data.csv", np.random.randn(100, 4), delimiter=",")
