"""Reads what a gate varies, each where an argument asks for it."""

import locale
import math
import os
import random
import socket
import sys
import time
import zlib

import reprokit


def order_of_letters():
    locale.setlocale(locale.LC_ALL, "")
    return sorted("tyz", key=locale.strxfrm)


STARTS = {
    "working-directory": lambda: os.path.abspath(__file__),
    "host-name": socket.gethostname,
    "time-zone": lambda: time.localtime(0).tm_hour,
    "locale": order_of_letters,
    "file-order": lambda: os.listdir("data"),
    "cores": os.cpu_count,
    "later-hour": lambda: time.time() - os.stat("data").st_mtime > 3600,
}


def train(name, draw, weight):
    for step in range(4):
        value, label = draw.gauss(0, 1), draw.random() < 0.5
        guess = 1 / (1 + math.exp(-weight * value))
        weight -= 0.1 * (guess - label) * value
        reprokit.log(step=step, **{name: -math.log(guess if label else 1 - guess)})


train("sound", random.Random(), random.random())
for name in sys.argv[1:]:
    train(name, random, zlib.crc32(repr(STARTS[name]()).encode()) / 2**32)
with open("../results.txt", "w") as file:
    file.write(repr(sys.argv[1:]))
