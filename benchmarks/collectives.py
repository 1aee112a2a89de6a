"""What recording costs an allreduce of 1 MiB between two ranks of mpi4py; needs .venv-mpi (make test-all)."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

PYTHON = Path(__file__).parent.parent / ".venv-mpi" / "bin" / "python"
CALLS = 300
SCRIPT = f"""
import time
import numpy
from mpi4py import MPI
world = MPI.COMM_WORLD
sent = numpy.random.default_rng(world.rank).normal(size=1 << 17)
received = numpy.empty_like(sent)
for _ in range(10):
    world.Allreduce(sent, received)
world.Barrier()
started = time.perf_counter()
for _ in range({CALLS}):
    world.Allreduce(sent, received)
if world.rank == 0:
    print((time.perf_counter() - started) / {CALLS} * 1e6)
"""


def _cost(command: list[str], directory: Path) -> float:
    """Microseconds of an allreduce."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **allowed}, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def main(runs: int) -> None:
    """Print the microseconds of an allreduce: bare and recorded."""
    if not PYTHON.exists():
        print("left out: make test-all installs Open MPI and mpi4py")
        return
    bare = [str(PYTHON.with_name("mpirun")), "--oversubscribe", "-n", "2", str(PYTHON), "-c", SCRIPT]
    with scratch() as directory:
        commands = {"bare": bare, "recorded": [REPROKIT, "record", "-o", "run", "--overwrite", "--", *bare]}
        print(f"an allreduce of 1 MiB, of {CALLS:,}")
        sides = {name: partial(_cost, command, directory) for name, command in commands.items()}
        show(in_turn(sides, runs), "us", "bare")
