"""Tasks of a Dask cluster draw random numbers: in two processes, or, given "threads", in four threads of this one."""

import sys

import numpy as np
from dask.distributed import Client, LocalCluster

OPTIONS = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}


def draw(number):
    return float(np.random.default_rng().normal()) + number


def main():
    options = {**OPTIONS, "processes": False, "threads_per_worker": 2} if "threads" in sys.argv else OPTIONS
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        for _ in range(3):
            first = client.map(draw, range(20), pure=False)
            print(client.gather(first), client.submit(sum, first).result())


if __name__ == "__main__":
    main()
