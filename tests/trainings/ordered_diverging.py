"""Does in a directory with a file `other` something else than before, so that what came first then cannot come again.

Usage: ordered_diverging.py KIND
"""

import _thread
import asyncio
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


def absent():
    """Two of four threads do not come to a lock."""
    lock, done = threading.Lock(), []

    def work():
        for _ in range(20):
            with lock:
                done.append(1)
            time.sleep(0.0005)

    run(*[work] * (2 if OTHER else 4))


def blocked():
    """The thread that came first waits for a lock that nobody orders, until the second one has had its turn."""
    ordered, plain = threading.Lock(), _thread.allocate_lock()
    plain.acquire()

    def first():
        if OTHER:
            plain.acquire()
        with ordered:
            pass

    def second():
        if not OTHER:
            time.sleep(0.05)
        with ordered:
            pass
        plain.release()

    run(first, second)


def circular():
    """Each of two threads waits for the other one, at two locks, while a third one goes on."""
    one, two, ended = threading.Lock(), threading.Lock(), []

    def work(first, second, pause):
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

        async def read():
            while b"x" not in (piece := await loop.sock_recv(reading, 10)):
                for _ in piece:
                    await asyncio.sleep(0.001)

        def write():
            for number in range(20):
                writing.send(b"ab" if OTHER and number < 10 else b"a")
                time.sleep(0.004)
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
    lock = multiprocessing.get_context("fork").Lock()

    def work(number):
        for turn in range(30):
            if OTHER and number == 1 and turn == 5:
                os._exit(1)
            with lock:
                time.sleep(0.0003)

    started = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join()


def killed():
    """One of three workers of a pool is killed."""
    with multiprocessing.get_context("fork").Pool(3) as pool:
        results = [pool.apply_async(time.sleep, (0.01,)) for _ in range(30)]
        if OTHER:
            time.sleep(0.05)
            os.kill(pool._pool[0].pid, signal.SIGKILL)
        for result in results:
            try:
                result.get(1.5)
            except multiprocessing.TimeoutError:
                pass


def sleeping():
    """The thread that came first comes in a minute."""
    lock = threading.Lock()

    def first():
        time.sleep(60 if OTHER else 0)
        with lock:
            pass

    def second():
        time.sleep(0.05)
        with lock:
            pass

    threading.Thread(target=first, daemon=True).start()
    run(second)


globals()[sys.argv[1]]()
print("end")
