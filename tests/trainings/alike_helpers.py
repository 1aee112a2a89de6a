"""A training whose helpers have the very command lines of later children; only some runs start these helpers."""

import multiprocessing
import os
import subprocess
import sys

CODE = "import os; print(os.urandom(8).hex(), flush=True)"
PROGRAM = [sys.executable, "-S", "-c", CODE]


def run(name):
    subprocess.run(PROGRAM, check=True)


def shell(name):
    os.system(f"{sys.executable} -S -c '{CODE}'")


def spawn(name):
    os.waitpid(os.posix_spawn(sys.executable, PROGRAM, os.environ), 0)


def execute(name):
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, PROGRAM)
    os.waitpid(pid, 0)


def fork(name):
    pid = os.fork()
    if pid == 0:
        draw(name)
        os._exit(0)
    os.waitpid(pid, 0)


def process(name, method="spawn"):
    child = multiprocessing.get_context(method).Process(target=draw, args=(name,))
    child.start()
    child.join()


def serve(name):
    process(name, "forkserver")


def draw(name):
    print(os.urandom(8).hex(), flush=True)


def make(way, name):
    print(f"{way.__name__}-{name}", end=" ", flush=True)
    way(name)


if __name__ == "__main__":
    when, cache = sys.argv[1:]
    was_filled = os.path.exists(cache)
    with open(cache, "w"):
        pass
    for way in (run, shell, spawn, execute, fork, process, serve):
        if when == ("filled" if was_filled else "empty"):
            make(way, "helper")
        make(way, "one")
        for number in range(2):
            make(way, f"more-{number}")
