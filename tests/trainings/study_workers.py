"""Notes who its parents are, which of them has the shim in it, and what a worker may have set; ends a parent."""

import os
import pathlib
import random
import signal
import time

import reprokit

MARK, SIGNAL = b"multiprocessing", signal.SIGKILL  # of the parent, and what ends it


def parents(pid):
    while pid > 1:
        yield pid
        pid = int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def has_shim(pid):
    return b"LD_PRELOAD=" in pathlib.Path(f"/proc/{pid}/environ").read_bytes()


here = pathlib.Path(".cache")  # in which nothing is a result
here.mkdir(exist_ok=True)
name = os.environ.get("KIND", "plain")
with open(here / name, "a") as file:
    above = any(map(has_shim, parents(os.getppid())))
    print(has_shim(os.getpid()), above, os.environ.get("OMP_NUM_THREADS"), file=file)
reprokit.log_predictions([0, 1, 1], [0, random.randrange(2), 1])
reprokit.log(step=0, value=random.random())
if len((here / name).read_text().splitlines()) <= int(os.environ.get("DEATHS", "0")):
    worker = next(pid for pid in parents(os.getppid()) if MARK in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(worker, SIGNAL)
    time.sleep(100)
