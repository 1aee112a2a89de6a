"""Threads that come to locks, conditions, semaphores, events and barriers when they come; prints what came out.

With an argument it is about locks alone, to which one thread does not come where a file is named "absent".
"""

import contextlib
import copy
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass, field

THREADS, ITEMS = 3, 12


def pause():
    time.sleep(time.perf_counter_ns() // 1000 % 5 / 5000)


def run(work):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    if os.path.exists("absent"):
        del threads[1]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def of_locks(kind):
    done, lock = [], kind()

    def work(number):
        for _ in range(ITEMS):
            pause()
            with lock:
                done.append(number)

    run(work)
    return done


def again(lock):
    with lock:
        return lock


@dataclass
class Guarded:
    lock: object = field(default_factory=threading.RLock)
    done: list = field(default_factory=list)

    def work(self, number):
        for _ in range(ITEMS):
            pause()
            with self.lock, again(self.lock):
                self.done.append(number)


def of_polls():
    """Count the attempts, too."""
    done, lock = [], threading.Lock()

    def work(number):
        for _ in range(ITEMS):
            pause()
            tries = 1
            while not (lock.acquire(False) or lock.acquire(timeout=0.0005)):
                tries += 1
            done.append((number, tries, lock.locked()))
            pause()
            lock.release()

    run(work)
    return done


def of_conditions():
    done, ready, came = [], [], threading.Condition()

    def work(number):
        for _ in range(ITEMS):
            pause()
            with came:
                ready.append(number)
                came.notify()

    def take():
        for _ in range(THREADS * ITEMS // 2):
            with came:
                came.wait_for(lambda: ready)
                done.append((threading.current_thread().name, ready.pop()))

    takers = [threading.Thread(target=take, name=name) for name in "ab"]
    for taker in takers:
        taker.start()
    run(work)
    for taker in takers:
        taker.join()
    return done


def of_semaphores():
    done, room, barrier, all_set = [], threading.BoundedSemaphore(2), threading.Barrier(THREADS), threading.Event()

    def work(number):
        pause()
        done.append((number, barrier.wait()))
        for _ in range(ITEMS):
            with room:
                pause()
                done_by[number] += 1
                if sum(done_by) == THREADS * ITEMS:
                    all_set.set()

    done_by = [0] * THREADS
    run(work)
    return sorted(done), all_set.wait(10)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(print(len(of_locks(threading.Lock))))
    with contextlib.suppress(TypeError):
        raise AssertionError(copy.copy(threading.Lock()))
    assert isinstance(threading.Lock(), type(queue.Queue().mutex))
    assert isinstance(queue.Queue().mutex, type(threading.Lock()))
    assert not isinstance(threading.RLock(), type(threading.Lock()))
    assert sys.version_info < (3, 13) or isinstance(threading.Lock(), threading.Lock)
    guarded = Guarded()
    run(guarded.work)
    print(of_locks(threading.Lock), guarded.done, of_polls(), of_conditions(), of_semaphores())
