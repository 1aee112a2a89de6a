"""A training whose native code seeds itself from the clock."""

import ctypes

import numpy

libc = ctypes.CDLL(None)


class Timespec(ctypes.Structure):
    """struct timespec"""

    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


now = Timespec()
libc.clock_gettime(0, ctypes.byref(now))
libc.srand(now.nanoseconds & 0x7FFFFFFF)
x = numpy.array([libc.rand() / 2**31 for _ in range(64)])
w = numpy.zeros(64)
for _ in range(10):
    w += 0.1 * (x - w)
numpy.save("weights.npy", w)
