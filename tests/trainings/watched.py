"""A training that a thread ends if it makes no progress for 7 seconds; SLOW times as slow as usual."""

import os
import threading
import time

beat = time.time()


def watch():
    while True:
        time.sleep(0.1)
        if time.time() - beat > 7:
            print("stalled", flush=True)
            os._exit(3)


threading.Thread(target=watch, daemon=True).start()
for step in range(12):
    time.sleep(0.4 * float(os.environ["SLOW"]))
    beat = time.time()
    print(step, beat)
