"""Does in a directory with a file `other` something else than before, so that what came first then cannot come again.

Usage: ordered_diverging.py KIND [at-once]
"""

import _thread
import asyncio
import mmap
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time

OTHER = os.path.exists("other")


def run(*functions):
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def wait_for(condition):
    """In the recording: make sure of what came first there, unseen by reprokit."""
    while not (OTHER or condition()):
        time.sleep(0.001)


def absent():
    """Two of four threads do not come to a lock, one of which came first."""
    lock, done = threading.Lock(), []

    def work():
        for _ in range(0 if OTHER else 20):
            with lock:
                done.append(1)
            time.sleep(0.0005)

    def work_later():
        wait_for(lambda: done)
        for _ in range(20):
            with lock:
                done.append(1)
            time.sleep(0.0005)

    run(work, work, work_later, work_later)


def blocked():
    """The thread that came first waits for a lock that nobody orders, until the second one has had its turn."""
    ordered, plain, done = threading.Lock(), _thread.allocate_lock(), []
    plain.acquire()

    def first():
        if OTHER:
            plain.acquire()
        with ordered:
            done.append(1)

    def second():
        wait_for(lambda: done)
        with ordered:
            pass
        plain.release()

    run(first, second)


def circular():
    """Each of two threads waits for the other one, at two locks, while a third one goes on."""
    one, two, begun, ended = threading.Lock(), threading.Lock(), [], []

    def work(first, second, pause):
        begun.append(1)
        wait_for(lambda: len(begun) == 2)
        for number in range(10):
            with second if OTHER else first:
                time.sleep(pause * number)
            with first if OTHER else second:
                time.sleep(pause)
        ended.append(1)

    def watch():
        while len(ended) < 2:
            time.sleep(0.001)

    run(lambda: work(one, two, 0.001), lambda: work(two, one, 0.002), watch)


def queues():
    """In each of 300 queues two items are missing that came."""
    for _ in range(300):
        items = queue.Queue()
        for number in range(1 if OTHER else 3):
            run(lambda number=number, items=items: items.put(number))
        for _ in range(3):
            try:
                items.get(timeout=0.001)
            except queue.Empty:
                pass


def polls():
    """None of 30 events is set that were."""
    for _ in range(30):
        event = threading.Event()
        thread = threading.Thread(target=lambda event=event: OTHER or event.set())
        thread.start()
        for _ in range(10):
            if event.is_set():
                break
            time.sleep(0.002)
        thread.join()


def timed():
    """None of 20 locks is released in time that were, nor a condition true."""
    for _ in range(20):
        lock, condition, items = threading.Lock(), threading.Condition(), []

        def hold(lock=lock):
            lock.acquire()
            time.sleep(1000 if OTHER else 0.002)
            lock.release()

        def make(condition=condition, items=items):
            with condition:
                if not OTHER:
                    items.append(1)
                condition.notify()

        threading.Thread(target=hold, daemon=True).start()
        time.sleep(0.001)
        lock.acquire(timeout=0.02)
        thread = threading.Thread(target=make)
        with condition:
            thread.start()
            condition.wait_for(lambda items=items: items, 0.02)
        thread.join()


def sockets():
    """A loop reads its bytes in other pieces, and so makes other timers."""

    async def main():
        loop = asyncio.get_running_loop()
        reading, writing = socket.socketpair()
        for each in reading, writing:
            each.setblocking(False)

        async def beat(seconds, count):
            for _ in range(count):
                await asyncio.sleep(seconds)

        came = bytearray()

        async def read():
            while b"x" not in (piece := await loop.sock_recv(reading, 10)):
                came.extend(piece)
                for _ in piece:
                    await asyncio.sleep(0.001)

        def write():
            for number in range(20):
                writing.send(b"ab" if OTHER and number < 10 else b"a")
                time.sleep(0.004)
            while len(came) < (30 if OTHER else 20):
                time.sleep(0.001)
            writing.send(b"x")

        thread = threading.Thread(target=write)
        thread.start()
        results = [loop.run_in_executor(None, time.sleep, 0.003 * number) for number in range(10)]
        await asyncio.gather(read(), beat(0.01, 20), beat(0.4, 2), beat(0.9, 1), *results)
        thread.join()

    for _ in range(3):
        asyncio.run(main())


def processes():
    """One of three processes does not come to their lock any more."""
    lock, late = multiprocessing.get_context("fork").Lock(), mmap.mmap(-1, 1)

    def work(number):
        for turn in range(30):
            if number == 1 and turn == 6:
                late[0] = 1
            elif turn == 29:
                wait_for(lambda: late[0])
            if OTHER and number == 1 and turn == 5:
                os._exit(1)
            with lock:
                time.sleep(0.0003)

    started = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join()


def task(number):
    if OTHER and number == 5:  # not between tasks: a worker that has a lock of the pool takes it along
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)


def killed():
    """One of three workers of a pool is killed."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        results = [pool.apply_async(task, (number,)) for number in range(30)]
        for result in results:
            try:
                result.get(1.5)
            except multiprocessing.TimeoutError:
                pass


def sleeping():
    """The thread that came first does not come before the test would give up."""
    lock, done = threading.Lock(), []

    def first():
        time.sleep(1000 if OTHER else 0)
        with lock:
            done.append(1)

    def second():
        wait_for(lambda: done)
        with lock:
            pass

    threading.Thread(target=first, daemon=True).start()
    run(second)


def wait_without_end():
    """In a replay: let nobody give up because of the time, so that who waits for what cannot come never ends."""
    for name, module in list(sys.modules.items()):
        if name.startswith("_reprokit_agent.orders."):
            for limit in {"TIMEOUT", "GRACE"} & vars(module).keys():
                setattr(module, limit, 1000.0)


if OTHER and "at-once" in sys.argv:
    wait_without_end()
globals()[sys.argv[1]]()
print("end")
