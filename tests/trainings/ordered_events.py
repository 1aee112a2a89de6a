"""Threads that train until an event stops them, and wait for batches or each other as long as they may; prints it."""

import random
import threading
import time

SECONDS = 0.001


class Prefetcher:
    """Hands out batches that a thread makes ahead; where none comes in time, the last one again."""

    def __init__(self, batches):
        self.ready, self.batches, self.last, self.late = threading.Condition(), [], 0.0, 0
        self.thread = threading.Thread(target=self.fill, args=(batches,))
        self.thread.start()

    def fill(self, batches):
        for batch in batches:
            time.sleep(random.Random().random() * 2 * SECONDS)
            with self.ready:
                self.batches.append(batch)
                self.ready.notify()

    def next(self, by_predicate):
        with self.ready:
            if by_predicate:
                came = self.ready.wait_for(lambda: self.batches, SECONDS)
            else:
                came = self.batches or self.ready.wait(SECONDS)
            self.late += not came
            if self.batches:
                self.last = self.batches.pop(0)
            return self.last


class Model:
    """A weight that several threads train, one of them until it stops the others."""

    def __init__(self):
        self.weight, self.lock, self.stop, self.steps = 1.0, threading.Lock(), threading.Event(), {}

    def train(self, number):
        steps = 0
        while not self.stop.is_set():
            with self.lock:
                self.weight += 0.01 * (number - self.weight)
            steps += 1
            time.sleep(random.Random().random() * SECONDS)
        self.steps[number] = steps

    def watch(self):
        count = 0
        while not self.stop.wait(SECONDS):
            count += 1
        self.steps["watched"] = count


class Averaging:
    """Two threads that meet at a barrier if in time, and a timer that is cancelled about when it fires."""

    def __init__(self):
        self.broken, self.saved, self.barrier = [], [], None

    def wait(self, step):
        time.sleep(random.Random().random() * 2 * SECONDS)
        try:
            self.barrier.wait(SECONDS)
        except threading.BrokenBarrierError:
            self.broken.append(step)

    def step(self, step):
        timer = threading.Timer(SECONDS, self.saved.append, (step,))
        timer.start()
        time.sleep(SECONDS * (0.8 + 0.4 * random.Random().random()))
        timer.cancel()
        self.barrier = threading.Barrier(2)
        threads = [timer, *(threading.Thread(target=self.wait, args=(step,)) for _ in range(2))]
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()


class Flag(threading.Event):
    """An event that nobody waits for, and that has nothing to wait by."""

    def __init__(self):
        self._flag = False


model = Model()
threads = [threading.Thread(target=model.train, args=(number,)) for number in range(2)]
threads.append(threading.Thread(target=model.watch))
for thread in threads:
    thread.start()
prefetcher = Prefetcher([number / 10 for number in range(40)])
for step in range(40):
    batch = prefetcher.next(by_predicate=step % 2)
    with model.lock:
        model.weight += 0.1 * (batch - model.weight)
model.stop.set()
for thread in [*threads, prefetcher.thread]:
    thread.join()
averaging = Averaging()
for step in range(20):
    averaging.step(step)
print(averaging.saved, averaging.broken)
print(model.weight, sorted(model.steps.items(), key=str), prefetcher.late, model.stop.is_set(), Flag().is_set())
