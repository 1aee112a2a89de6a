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
