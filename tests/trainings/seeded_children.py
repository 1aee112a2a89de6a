"""Seeds from the clock and the process id, in children and threads."""

import multiprocessing
import os
import random
import threading
import time

import numpy


def draw(name):
    random.seed(time.time())
    numpy.random.seed(os.getpid())
    local = numpy.random.default_rng(time.time_ns())
    state = numpy.random.RandomState(time.time_ns() % 2**32)
    return name, random.random(), numpy.random.rand(), local.random(), state.rand()


def child(name):
    with open(name, "w") as file:
        file.write(repr(draw(name)))


def main():
    print(draw("main"))
    for method in ("fork", "spawn"):
        for number in range(2):
            process = multiprocessing.get_context(method).Process(target=child, args=(f"{method}{number}",))
            process.start()
            process.join()
            with open(f"{method}{number}") as file:
                print(file.read())
    for _ in range(2):
        thread = threading.Thread(target=lambda: print(draw("thread")))
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()
