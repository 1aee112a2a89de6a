"""Starts two ranks and merges what they print, as mpirun does: in pieces, whose order is another in each run.

FIRST is the rank whose text comes first; OTHER the rank that prints its lines in another order.
"""

import os
import subprocess
import sys

RANK = """
import os, sys
rank = os.environ["RANK"]
lines = [f"rank {rank} begins", f"rank {rank} loss 0.5", "took 0.%d s" % os.getpid()]
for line in lines if os.environ.get("OTHER") != rank else [lines[1], lines[0], lines[2]]:
    print(line, flush=True)
print("a warning", file=sys.stderr, flush=True)
"""
first = int(os.environ.get("FIRST", "0"))
order = [str(first), str(1 - first)]
texts = [
    subprocess.run([sys.executable, "-u", "-c", RANK], env={**os.environ, "RANK": rank}, capture_output=True).stdout
    for rank in order
]
halves = [text[: len(text) // 2] for text in texts] + [text[len(text) // 2 :] for text in texts]
for piece in halves:
    os.write(1, piece)
os.write(1, b"launcher: all ranks ended\n" if "ENDS" in os.environ else b"")
