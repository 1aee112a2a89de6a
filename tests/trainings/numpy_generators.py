"""Generators of NumPy that are given no seed: two of one thread, one of another, of two children, and one that is."""

import multiprocessing
import threading

import numpy

OTHERS = []


def draw() -> None:
    OTHERS.append(numpy.random.default_rng().random())


def draw_in_child(queue: "multiprocessing.Queue[float]") -> None:
    queue.put(numpy.random.default_rng().random())


if __name__ == "__main__":
    first, second = (numpy.random.default_rng().random() for _ in range(2))
    thread = threading.Thread(target=draw, name="other")
    thread.start()
    thread.join()
    context = multiprocessing.get_context("fork")
    queue: "multiprocessing.Queue[float]" = context.Queue()
    for _ in range(2):
        child = context.Process(target=draw_in_child, args=(queue,))
        child.start()
        OTHERS.append(queue.get())
        child.join()
    print(first, second, numpy.random.RandomState().random(), *OTHERS)
    print(numpy.random.default_rng(5).random())
