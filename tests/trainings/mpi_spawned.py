"""Ranks that start two further ranks, twice, and gather what each drew. mpirun -n 3 python mpi_spawned.py"""

import os
import sys

from mpi4py import MPI


def gathered(others, value, high):
    together = others.Merge(high)
    result = together.gather(value)
    together.Free()
    others.Disconnect()
    return result


def main():
    drawn = int.from_bytes(os.urandom(4), "little")
    parent = MPI.Comm.Get_parent()
    if parent != MPI.COMM_NULL:
        gathered(parent, drawn, True)
        return
    for _ in range(2):
        result = gathered(MPI.COMM_WORLD.Spawn(sys.executable, args=[__file__], maxprocs=2), drawn, False)
        if result is not None:
            print(result)


main()
