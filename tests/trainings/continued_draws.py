"""Draws in its process, its threads and its children, reads the time of day, and appends all of it to a log."""

import os
import subprocess
import sys
import threading
import time

STEPS = int(sys.argv[1])
CHILD = "import os; print(os.urandom(4).hex())"

with open("log.txt", "a") as log:
    for step in range(STEPS):
        drawn = [os.urandom(8 + step % 3).hex()]
        thread = threading.Thread(target=lambda drawn=drawn: drawn.append(os.urandom(4).hex()))
        thread.start()
        thread.join()
        if step % 12 == 1:
            child = subprocess.run([sys.executable, "-ISc", CHILD], stdout=subprocess.PIPE, text=True, check=True)
            drawn.append(child.stdout.strip())
        print(step, *drawn, time.time(), file=log, flush=True)
        while os.path.exists(f"hold-{step + 1}"):  # until it is killed
            time.sleep(0.01)
