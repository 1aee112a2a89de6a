"""A training whose children draw entropy; where a cache is empty, or full, it starts a helper before them."""

import os
import subprocess
import sys

PROGRAM = [sys.executable, "-S", "-c", "import os, sys; print(sys.argv[1], os.urandom(8).hex())"]


def fork_and_execute(arguments):
    pid = os.fork()
    if pid == 0:
        os.execv(arguments[0], arguments)
    os.waitpid(pid, 0)


def fork_alone(name):
    pid = os.fork()
    if pid == 0:
        print(name, os.urandom(8).hex(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


def start(arguments):
    subprocess.run(arguments, check=True)


if __name__ == "__main__":
    way, maker, cache = sys.argv[1:]
    was_filled = os.path.exists(cache)
    with open(cache, "w"):
        pass
    if way == ("filled" if was_filled else "empty"):
        make = {"start": start, "fork": fork_and_execute}[maker]
        make([sys.executable, "-S", "-c", "import os; os.urandom(8)"])
    names = ["one", "two", "three"]
    for name in reversed(names) if way == "reordered" and was_filled else names:
        start([*PROGRAM, name])
        fork_and_execute([*PROGRAM, f"forked-{name}"])
    for number in range(2):
        start([*PROGRAM, f"--scratch=/tmp/tmp{os.getpid()}-{number}"])
    if maker == "start":  # what is forked alone has a number before anybody knows what it will be
        fork_alone("alone")
