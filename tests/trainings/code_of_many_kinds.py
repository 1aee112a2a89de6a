"""Takes its factor from code that no list of modules has at the end, in each way that leaves none."""

import ctypes
import os
import runpy
import subprocess
import sys
from importlib import util

import forgotten

del sys.modules["forgotten"]
specified = util.spec_from_file_location("specified", "specified.py")
by_file = util.module_from_spec(specified)
specified.loader.exec_module(by_file)
executed = {}
with open("executed.py") as file:
    exec(file.read(), executed)
native = ctypes.CDLL("./lib/native.so")
factors = {
    "forgotten": forgotten.FACTOR,
    "specified": by_file.FACTOR,
    "executed": executed["FACTOR"],
    "run": runpy.run_path("run.py")["FACTOR"],
    "native": native.factor(),
    "program": int(subprocess.check_output(["sh", "-c", "./program"])),
}
with open("factors.txt", "w") as file:
    file.write(str(factors))
print(factors, flush=True)
os._exit(0)
