"""Sums the bytes of the pipes that are named, "-" for standard input; prints the sum."""

from __future__ import annotations

import sys


def content(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    with open(name, "rb") as file:
        return file.read()


print(sum(sum(content(name)) for name in sys.argv[1:]))
