"""Signals whose handlers raise errors, again and again, amidst locks, reads and futures; prints what that came to."""

import asyncio
import gc
import os
import queue
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed

SECONDS, INTERVAL = 0.5, 0.0003


class Enough(Exception):
    pass


class Attributes(dict):
    __getattr__ = dict.__getitem__


class Named(queue.SimpleQueue):
    def __init__(self, name):
        self.name = name


class Interrupts:
    """A handler that raises once for each time that it is allowed to."""

    def __init__(self):
        self.is_allowed = False
        self.raised = self.caught = 0
        signal.signal(signal.SIGALRM, self.handle)
        signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)

    def handle(self, *_):
        if self.is_allowed:
            self.is_allowed = False
            self.raised += 1
            raise Enough

    def amidst(self, work):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            try:
                self.is_allowed = True
                for number in range(300):
                    work(number)
                self.is_allowed = False
            except Enough:
                self.caught += 1
        self.is_allowed = False


def is_free(lock):
    """Whether another thread gets the lock."""
    found = []

    def acquire():
        found.append(lock.acquire(timeout=5))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=acquire)
    thread.start()
    thread.join()
    return found[0]


def locks(interrupts):
    lock, again = threading.Lock(), threading.RLock()

    def work(_number):
        with lock:
            pass
        with again, again:
            pass

    interrupts.amidst(work)
    return is_free(lock), is_free(again)


def reads(interrupts):
    os.environ.get("INTERRUPTED"), os.listdir(".")  # what is imported for these swallows some, as every import does
    interrupts.amidst(lambda number: os.environ.get(f"INTERRUPTED_{number}"))
    interrupts.amidst(lambda _number: os.listdir("."))
    return interrupts.raised > 0, interrupts.raised - interrupts.caught


def queues():
    named = Named("a name")
    named.put(1)
    is_refused = False
    try:
        queue.SimpleQueue(1)
    except TypeError:
        is_refused = True
    annotated = sys.version_info < (3, 9) or repr(queue.SimpleQueue[int]).endswith("SimpleQueue[int]")
    return named.get(), named.name, is_refused, annotated


async def given():
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    threading.Thread(target=lambda: loop.call_soon_threadsafe(future.set_result, Attributes(a=1))).start()
    return await asyncio.wait_for(future, 10)


def kept():
    """Whether the result of a future that was given is kept while the next one is waited for."""

    class Result:
        pass

    opened = threading.Event()

    def wait():
        opened.wait()

    with ThreadPoolExecutor(2) as pool:
        given = as_completed([pool.submit(Result), pool.submit(wait)])
        result, states = weakref.ref(next(given).result()), []
        threading.Timer(0.2, lambda: (gc.collect(), states.append(result() is not None), opened.set())).start()
        next(given)
    return states


interrupts = Interrupts()
print(locks(interrupts), reads(interrupts))
signal.setitimer(signal.ITIMER_REAL, 0)
print(queues(), asyncio.run(given()), kept())
