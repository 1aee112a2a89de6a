"""Ends a loader's worker by SIGTERM, and tells its exit code and whether process numbers are another's."""

import ctypes
import os
import signal

from torch.utils.data import DataLoader

batches = iter(DataLoader(list(range(1000)), num_workers=2, multiprocessing_context="fork"))
next(batches)
worker = batches._workers[0]
os.kill(worker.pid, signal.SIGTERM)
worker.join()
print(worker.exitcode, ctypes.CDLL(None).getpid() > 1 << 22 >= os.getpid())
