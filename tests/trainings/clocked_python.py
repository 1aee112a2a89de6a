"""Reads clocks, and waits by them, in the ways that Python's standard library has."""

import multiprocessing
import os
import random
import signal
import sys
import threading
import time


def work(queue):
    queue.put((time.time(), os.getpid() == multiprocessing.current_process().pid, os.getppid() == int(sys.argv[1])))


if __name__ == "__main__":
    sys.argv[1:] = sys.argv[1:] or [str(os.getpid())]
    random.seed(time.time())
    print(random.random(), time.time(), os.path.isdir(f"/proc/{os.getpid()}"))
    signal.signal(signal.SIGUSR1, lambda *_: print("signal"))
    os.kill(os.getpid(), signal.SIGUSR1)
    lock = threading.Lock()
    lock.acquire()
    before = time.monotonic()
    print(lock.acquire(timeout=0.05), time.monotonic() - before > 0.04)
    queue = multiprocessing.Queue()
    child = multiprocessing.Process(target=work, args=(queue,))
    child.start()
    print(queue.get(timeout=30))
    child.join()
    before = time.monotonic()
    print(multiprocessing.Event().wait(0.05), time.monotonic() - before > 0.04)
