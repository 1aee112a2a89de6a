"""Comparing two safetensors files: against cmp where they are equal, and what it takes where they differ."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, show

TENSORS = 16
PIECE = 16 << 20
WRAPPER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode
assert status == int(sys.argv[1]), status
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def write(path: Path, size: int, seed: bytes, *, flip: bool) -> None:
    """A file of float32 tensors of arbitrary bits; with flip, one bit of every 4 KiB is another."""
    length = size // TENSORS // 4 * 4
    tensors = {
        f"layer{number}": {
            "dtype": "F32",
            "shape": [length // 4],
            "data_offsets": [number * length, (number + 1) * length],
        }
        for number in range(TENSORS)
    }
    header = json.dumps(tensors).encode()
    piece = bytearray(seed)
    if flip:
        for at in range(0, len(piece), 4096):
            piece[at] ^= 1
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        left = TENSORS * length
        while left:
            left -= file.write(piece[: min(left, len(piece))])


def timed(command: Sequence[str], status: int) -> tuple[float, float]:
    """Seconds and MiB at the most of a command that must end with this status."""
    start = time.perf_counter()
    wrapper = [sys.executable, "-S", "-c", WRAPPER, str(status), *command]
    done = subprocess.run(wrapper, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stdout) / 1024


def main(runs: int, size: int) -> None:
    with tempfile.TemporaryDirectory(prefix="reprokit-benchmark-") as name:
        directory = Path(name)
        files = [directory / f"{letter}.safetensors" for letter in "abc"]
        seed = os.urandom(PIECE)
        for file in files:
            write(file, size, seed, flip=file.name.startswith("c"))
        one, same, other = map(str, files)

        def side(command: list[str], status: int) -> Callable[[], tuple[float, float]]:
            return lambda: timed(command, status)

        sides = {
            "cmp": side(["cmp", one, same], 0),
            "diff": side([REPROKIT, "diff", one, same], 0),
            "cmp -l, different": side(
                ["sh", "-c", f"cmp -l {one} {other} | wc -l"], 0
            ),  # to /dev/null it would not look
            "diff, different": side([REPROKIT, "diff", one, other], 1),
        }
        results = in_turn(sides, runs)
    print(f"two files of {size / (1 << 30):.2f} GiB; targets: diff at most 1.5 x cmp, and 300 MiB")
    show({key: [pair[0] for pair in pairs] for key, pairs in results.items()}, "s", "cmp")
    for key, pairs in results.items():
        print(f"  {key}: at most {max(pair[1] for pair in pairs):.0f} MiB")
