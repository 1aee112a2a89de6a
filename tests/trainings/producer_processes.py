"""Takes items from several producers, which are processes, in the order in which they come.

Usage: producer_processes.py KIND [FORM]
"""

import contextlib
import hashlib
import multiprocessing
import os
import queue
import sys
import time
from multiprocessing import connection, shared_memory

PRODUCERS, ITEMS, SLOTS = 3, 20, 8


def pause():
    time.sleep(time.perf_counter_ns() // 1000 % 5 / 1000)


def produce(put, number, *rest):
    """Put items, each after a time that no replay repeats."""
    if number == 1 and os.path.exists("absent"):
        return
    for item in range(ITEMS):
        pause()
        put(number * ITEMS + item, *rest)


def started(context, *arguments):
    processes = [context.Process(target=produce, args=(arguments[0], n, *arguments[1:])) for n in range(PRODUCERS)]
    for process in processes:
        process.start()
    return processes


def put_item(item, items):
    items.put(item)


def may_come(count, processes):
    """Return whether there are further items: a producer puts all of them, or none."""
    return count < PRODUCERS * ITEMS and (count % ITEMS or any(process.is_alive() for process in processes))


def until_all_came(take, processes):
    count = 0
    while may_come(count, processes):
        with contextlib.suppress(queue.Empty):
            yield take()
            count += 1


def queued(context):
    items = context.Queue(4)
    processes = started(context, put_item, items)
    yield from until_all_came(lambda: items.get(timeout=5), processes)


def simple(context):
    items = context.SimpleQueue()
    started(context, put_item, items)
    for _ in range(PRODUCERS * ITEMS):
        yield items.get()


def polled(context):
    """Look all the time, and count the looks that found nothing."""
    items = context.Queue()
    started(context, put_item, items)
    count = looks = 0
    while count < PRODUCERS * ITEMS:
        looks += 1
        if items.empty():
            time.sleep(0.001)
            continue
        try:
            yield items.get_nowait(), looks, items.qsize()
        except queue.Empty:
            continue
        count += 1


def send(item, pipe, lock):
    with lock:
        pipe.send(item)


def piped(context):
    """One pipe, into which all write."""
    reader, writer = context.Pipe(False)
    started(context, send, writer, context.Lock())
    for _ in range(PRODUCERS * ITEMS):
        yield reader.recv()


def waited(context):
    """A pipe of each producer, and `wait` for any of them."""
    readers = []
    for number in range(PRODUCERS):
        reader, writer = context.Pipe(False)
        context.Process(target=produce, args=(send, number, writer, contextlib.nullcontext())).start()
        writer.close()
        readers.append(reader)
    while readers:
        for reader in connection.wait(readers):
            try:
                yield reader.recv()
            except EOFError:
                readers.remove(reader)


def put_in_ring(item, name, lock, head, tail):
    while True:
        with lock:
            if head.value - tail.value < SLOTS:
                ring = shared_memory.SharedMemory(name)
                ring.buf[head.value % SLOTS] = item
                ring.close()
                head.value += 1
                return
        time.sleep(0.001)


def ringed(context):
    """A ring in shared memory, at which all sides look again and again."""
    ring, lock = shared_memory.SharedMemory(create=True, size=SLOTS), context.Lock()
    head, tail = context.Value("i", 0), context.Value("i", 0)
    processes = started(context, put_in_ring, ring.name, lock, head, tail)
    looks = 0
    while may_come(tail.value, processes):
        looks += 1
        with lock:
            if head.value > tail.value:
                yield ring.buf[tail.value % SLOTS], looks
                tail.value += 1
    for process in processes:
        process.join()
    ring.close()
    ring.unlink()


def flag(item, name):
    memory = shared_memory.SharedMemory(name)
    memory.buf[item] = 1
    memory.close()


def unlocked(context):
    """A byte for each item, at which the consumer looks again and again: nothing sees who comes first."""
    memory = shared_memory.SharedMemory(create=True, size=PRODUCERS * ITEMS)
    started(context, flag, memory.name)
    came = []
    while len(came) < PRODUCERS * ITEMS:
        came += [item for item in range(PRODUCERS * ITEMS) if memory.buf[item] and item not in came]
    memory.close()
    memory.unlink()
    yield from came


def note(came, item):
    with came.get_lock():
        came[0] += 1
        came[came[0]] = item


def come(item, came, room, tokens, waiting, start, ready):
    if item % ITEMS == 0:
        note(came, start.wait())
    with room:
        note(came, item)
    with waiting:
        waiting.notify()
    tokens.release()
    if item % ITEMS == ITEMS - 1 and start.wait() == 0:
        ready.set()


def take(number, came, tokens, waiting, ready):
    for _ in range(ITEMS // 2):
        tokens.acquire()
        note(came, 100 + number)
        with waiting:
            note(came, 200 + number + 10 * waiting.wait(0.004))
    ready.wait()
    with waiting:
        while not waiting.wait(0.01) and came[0] < 0:
            pass
    note(came, 300 + number)


def synchronized(context):
    """All that multiprocessing synchronizes with: who comes when is written into an array."""
    came, room, tokens = context.Array("i", 999), context.BoundedSemaphore(2), context.Semaphore(0)
    waiting, start, ready = context.Condition(), context.Barrier(PRODUCERS), context.Event()
    processes = started(context, come, came, room, tokens, waiting, start, ready)
    for number in range(2):
        processes.append(context.Process(target=take, args=(number, came, tokens, waiting, ready)))
        processes[-1].start()
    looks = 0
    while not ready.is_set():
        looks += 1
        time.sleep(0.001)
    for process in processes:
        process.join()
    yield from [looks, *came[: came[0] + 1]]


def manage(item, queue, came, counts, lock, condition):
    came.append(item)
    counts["last"] = item
    queue.put(item)
    with lock:
        came.append(-item)
    with condition:
        condition.notify()


def managed(context):
    """What a manager's process holds: several clients ask for it."""
    with context.Manager() as manager:
        shared = [manager.Queue(), manager.list(), manager.dict(), manager.Lock(), manager.Condition()]
        queue, came, counts, _, condition = shared
        processes = started(context, manage, *shared)
        for _ in range(PRODUCERS * ITEMS):
            yield queue.get(), len(came), counts.get("last")
        with condition:
            condition.wait(0.01)
        for process in processes:
            process.join()
        yield list(came), dict(counts)


def share(item, todo, done):
    done.put((item, todo.get()))


def shared(context):
    """Producers that take from one queue, with a time-out, and put into another."""
    todo, done = context.Queue(), context.Queue()
    processes = started(context, share, todo, done)
    for item in range(PRODUCERS * ITEMS):
        todo.put(item)
    yield from until_all_came(lambda: done.get(timeout=5), processes)


def mapped(form):
    from torchdata.nodes import IterableWrapper, ParallelMapper

    source = IterableWrapper(range(PRODUCERS * ITEMS))
    yield from ParallelMapper(source, slow_square, 3, in_order=False, method=form, multiprocessing_context=None)


def slow_square(item):
    pause()
    return item * item


if __name__ == "__main__":
    kind, form = [*sys.argv[1:], "fork"][:2]
    came = list(globals()[kind](form if kind == "mapped" else multiprocessing.get_context(form)))
    print(len(came), hashlib.sha256(repr(came).encode()).hexdigest())
