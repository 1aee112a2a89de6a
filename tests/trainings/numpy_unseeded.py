"""Trains with generators of NumPy and Python that nobody seeds."""

import random

import numpy

import reprokit

weights = numpy.random.default_rng().normal(size=100)
for step in range(5):
    weights = weights * 0.9 + numpy.random.rand(100) + random.random()
    reprokit.log(loss=float(abs(weights).sum()), step=step)
    print(weights.sum())
