"""Reads an HDF5 file after its bits were flipped and its end was cut, and counts how often it could be read."""

import io
import random
import sys

import h5py

from reprokit.diff.hdf5_process import Hdf5Reader
from reprokit.diff.part_process import PartWriter, limit

limit()
data, generator, read = sys.stdin.buffer.read(), random.Random(1), 0
for number in range(300):
    damaged = bytearray(data)
    for place in [generator.randrange(8 * len(data)) for _ in range(1 + number % 3)]:
        damaged[place // 8] ^= 1 << place % 8
    try:
        with h5py.File(io.BytesIO(damaged[: len(data) - number // 100 * generator.randrange(200)]), "r") as file:
            Hdf5Reader(file, PartWriter(io.BytesIO(), 1 << 24)).read()
            read += 1
    except Exception:
        pass
print(read)
