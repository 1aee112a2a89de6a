"""Runs so many scripts, each in a forked child and a directory of its own."""

import atexit
import os
import pathlib
import sys
import traceback

import torch
import torch._dynamo  # noqa: F401 - which the first optimizer would bring in each child
from torch.utils.data import DataLoader  # noqa: F401

for number in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        case = f"case{number}"
        os.mkdir(case)
        os.chdir(case)
        status = 0
        try:
            exec(compile(pathlib.Path(f"../{case}.py").read_text(), case, "exec"), {})
        except BaseException:
            traceback.print_exc()
            status = 1
        atexit._run_exitfuncs()  # an exit but for the end of the interpreter, which takes a second after a fork
        os._exit(status)
    print(os.waitpid(pid, 0)[1], flush=True)
