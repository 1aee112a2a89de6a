"""Hands steps whose gradients are not finite to the agent of this process; words of the command are options."""

import os
import resource
import signal
import sys

from _reprokit_agent import capture as captures

TRIGGER = {}


def read():
    if "killed" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    if "full" in sys.argv:  # no file of the first directory may become as large
        was_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 100
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1 if was_limited else 100, -1))
    return bytes(64)


for step in range(3, 4 if "once" in sys.argv else 6):
    header = {"framework": "pytorch", "step": step, "trigger": TRIGGER, "random": {"seed": os.environ.get("SEED")}}
    if "limited" in sys.argv:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, -1))
    path = captures.running.save(header, [captures.Part("w", "F32", (16,), 64, read)])
    captures.running.captured(step, "gradient of fc2.weight is not finite", path)
open("went-on", "w").close()
