"""Starts a helper that trains, and ends it in one of several ways."""

import os
import signal
import subprocess
import sys

helper = """
import os, random, sys, reprokit
random.seed(3)
reprokit.log(loss=random.random())
print("trained", flush=True)
if sys.stdin.readline() == "die":
    os.kill(os.getpid(), 9)
"""
child = subprocess.Popen(
    [sys.executable, "-c", helper], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
)
child.stdout.readline()
end = {
    "close": child.stdin.close,
    "kill": child.kill,
    "terminate": child.terminate,
    "group": lambda: os.killpg(child.pid, signal.SIGTERM),
    "die": lambda: child.communicate("die"),
}
end[os.environ["END"]]()
child.wait()
