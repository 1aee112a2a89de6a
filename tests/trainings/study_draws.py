"""Logs a random number of Python, one of NumPy and a hash."""

import random

import numpy

import reprokit

reprokit.log(step=0, python=random.random(), numpy=float(numpy.random.random()), hash=hash("text"))
