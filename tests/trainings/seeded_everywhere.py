"""Seeds generators of Python and NumPy in the script, and in a library that a test puts beside it."""

import pickle
import random

import library
import numpy

random.seed(12)
random.seed()
numpy.random.seed([1, 2])
numpy.random.default_rng(seed=5)
numpy.random.default_rng()
numpy.random.default_rng(numpy.random.PCG64(1))
library.shuffled()
assert pickle.loads(pickle.dumps(numpy.random.default_rng)) is numpy.random.default_rng
