"""Seeds generators of the standard library by the clock, in threads and in a child."""

import os
import pathlib
import random
import threading
import time
import warnings

warnings.simplefilter("ignore")


class Own(random.Random):
    def __new__(cls, *arguments):
        return super().__new__(cls)

    def __init__(self, seed, other):
        super().__init__(seed)


def draw():
    random.seed(time.time())
    first = random.random()
    random.seed(str(time.time()), version=1)
    instance = random.Random(os.urandom(20))
    instance.seed(a=bytearray(time.monotonic().hex().encode()))
    return [
        first,
        random.random(),
        instance.random(),
        Own(time.time_ns() << 80, 1).random(),
        random.Random(-time.time_ns()).random(),
        random.Random(time.time() * 1e-300).random(),
    ]


drawn = [draw(), draw()]


def in_thread():
    drawn.append(draw())


for _ in range(2):
    thread = threading.Thread(target=in_thread, name="drawing")
    thread.start()
    thread.join()
child = os.fork()
if child == 0:
    pathlib.Path("child").write_text(repr(draw()))
    os._exit(0)
os.waitpid(child, 0)
print(drawn, pathlib.Path("child").read_text())
