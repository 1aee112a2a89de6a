"""Ranks train a linear model by hand: NumPy and mpi4py, no framework. mpirun -n 3 python mpi_steps.py [RESULT]"""

import os
import sys

import numpy as np
from mpi4py import MPI

STEPS, SIZE = 12, 5000


def main():
    world = MPI.COMM_WORLD
    threads = MPI.Query_thread()
    generator = np.random.default_rng()  # from the operating system's entropy, on each rank its own
    weights = world.bcast(generator.normal(size=SIZE), root=0)
    dies = int(os.environ.get("DIES", "-1"))  # the step at which rank 1 is gone
    flips = int(os.environ.get("FLIPS", "-1"))  # the step at which rank 1 computes wrongly
    for step in range(STEPS):
        if step == dies and world.rank == 1:
            os._exit(7)
        gradient = generator.normal(size=SIZE) * weights + 1
        if step == flips and world.rank == 1:
            gradient[17] += 1e-9
        total = np.empty_like(gradient)
        world.Allreduce(gradient, [total, MPI.DOUBLE])
        weights -= 0.01 * total / world.size
        loss = world.allreduce(float(np.square(weights).sum()))
    assert MPI.Query_thread() == threads == MPI.THREAD_MULTIPLE
    largest = np.empty(1)
    world.Reduce(np.abs(weights).max(keepdims=True), largest, op=MPI.MAX, root=0)
    if world.rank == 0:
        print(f"loss {loss!r}, largest {largest[0]!r}")
    if len(sys.argv) > 1:
        np.save(f"{sys.argv[1]}-{world.rank}.npy", weights)


main()
