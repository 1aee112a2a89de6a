"""Starts two further ranks of mpi_steps.py by mpirun, without the variables of an mpirun that this is a rank of."""

import os
import subprocess
import sys
from pathlib import Path

OUTER = ("OMPI_COMM", "OMPI_MCA", "PMIX_", "PRTE_MCA")
own = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
steps = str(Path(__file__).with_name("mpi_steps.py"))
subprocess.run(
    ["mpirun", "--oversubscribe", "-n", "2", sys.executable, steps], env=own, check=True, stdout=subprocess.DEVNULL
)
