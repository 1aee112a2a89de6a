"""Threads that import modules when they come, some of which draw as they are imported; prints what each one drew."""

import importlib
import os
import sys
import threading
import time
import traceback

THREADS, MODULES = 4, 6
drawn = {number: [] for number in range(THREADS)}


def work(number):
    for module in range(MODULES):
        time.sleep(time.perf_counter_ns() // 1000 % 5 / 2000)
        drawn[number].append((importlib.import_module(f"outer{module}").DRAWN, os.urandom(2).hex()))


def traced(statement):
    """Return the traceback of an import that fails while a second thread is there."""
    try:
        exec(statement)
    except Exception:
        return traceback.format_exc()


sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
for module in range(MODULES):
    with open(os.path.join(sys.path[0], f"inner{module}.py"), "w") as file:
        file.write("import os\nDRAWN = os.urandom(2).hex()\n")
    with open(os.path.join(sys.path[0], f"outer{module}.py"), "w") as file:
        file.write(f"from inner{module} import DRAWN\n")
with open(os.path.join(sys.path[0], "failing.py"), "w") as file:
    file.write("import absent_altogether\n")
importlib.invalidate_caches()
threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
traces = [traced("import absent_altogether"), traced("import failing")]
for thread in threads:
    thread.join()
for number in range(THREADS):
    print(number, *drawn[number])
print(*traces, sep="")
