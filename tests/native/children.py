"""Child processes of multiprocessing, made by the given start method; prints what each drew."""

import multiprocessing
import os
import random
import sys
from typing import Any


def draw(connection: Any) -> None:
    connection.send((os.urandom(8).hex(), random.random()))


if __name__ == "__main__":
    context: Any = multiprocessing.get_context(sys.argv[1])
    for _ in range(3):
        ours, theirs = context.Pipe()
        child = context.Process(target=draw, args=(theirs,))
        child.start()
        print(ours.recv())
        child.join()
