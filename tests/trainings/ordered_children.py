"""Starts children that end in another order in each run, and prints in which one they are found to have ended."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time

CHILDREN = 6
dice = random.SystemRandom()


def fork(number):
    delay = dice.random() / 20
    pid = os.fork()
    if not pid:
        while hangs(number):
            time.sleep(0.01)
        time.sleep(delay)
        os._exit(number)
    return pid


def hangs(number):
    """Whether this is the child that a file names, and none was found before it."""
    try:
        with open("hangs", encoding="utf-8") as file:
            return file.read() == str(number)
    except FileNotFoundError:
        return False


def forked():
    return {fork(number): number for number in range(CHILDREN)}


def until_none_is_left(wait):
    children = forked()
    while True:
        try:
            result = wait()
        except ChildProcessError:
            return
        pid = result[0] if result else 0
        if pid and os.path.exists("hangs"):
            os.unlink("hangs")
        yield children.get(pid)
        if not pid:
            time.sleep(0.001)


def waited():
    return [
        list(until_none_is_left(wait))
        for wait in (
            os.wait,
            lambda: os.waitpid(-1, 0),
            lambda: os.wait3(0),
            lambda: os.wait4(-1, 0),
            lambda: os.waitid(os.P_ALL, 0, os.WEXITED),
        )
    ]


def polled():
    return [
        list(until_none_is_left(wait))
        for wait in (
            lambda: os.waitpid(-1, os.WNOHANG),
            lambda: os.wait3(os.WNOHANG),
            lambda: os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG),
        )
    ]


def signaled():
    ended, children = [], {}

    def handle(*_):
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            ended.append(pid)

    signal.signal(signal.SIGCHLD, handle)
    for number in range(CHILDREN):
        children[fork(number)] = number
    while len(ended) < CHILDREN:
        time.sleep(0.001)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return [children[pid] for pid in ended]


def in_threads():
    """Each thread forks one child, and waits for any."""
    ended = {}

    def run(number):
        fork(number)
        ended[number] = os.wait()[1] >> 8

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CHILDREN)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(ended.items())


def ended_processes(processes, has_ended):
    while processes:
        for number, process in list(processes.items()):
            if has_ended(process):
                yield number
                del processes[number]
        time.sleep(0.001)


def wait_briefly(process):
    try:
        return process.wait(0.005) == 0
    except subprocess.TimeoutExpired:
        return False


def started():
    return {
        number: subprocess.Popen(["sleep", str(dice.random() / 20)], preexec_fn=os.getpid if number % 2 else None)  # noqa: PLW1509
        for number in range(CHILDREN)
    }


def programs():
    children = started()
    by_pid = {child.pid: number for number, child in children.items()}
    first = by_pid[os.waitpid(-1, 0)[0]]
    children.pop(first)
    return [
        first,
        list(ended_processes(children, lambda child: child.poll() is not None)),
        list(ended_processes(started(), wait_briefly)),
    ]


def processes():
    context, results = multiprocessing.get_context("fork"), []
    for has_ended in lambda child: not child.is_alive(), lambda child: child.exitcode is not None:
        children = {}
        for number in range(CHILDREN):
            children[number] = context.Process(target=time.sleep, args=(dice.random() / 20,))
            children[number].start()
        results.append(list(ended_processes(children, has_ended)))
    return results


if __name__ == "__main__":
    print(globals()[sys.argv[1]]())
