"""A training whose batches and updates come in the order in which threads come to queues; prints what came out."""

import queue
import random
import sys
import threading
import time

WORKERS, ITEMS = 4, 30
unseeded = random.SystemRandom()


def produce(batches, number):
    for item in range(ITEMS):
        time.sleep(unseeded.random() / 2000)
        batches.put((number * ITEMS + item) / 100)


def train(batches, count):
    weight = 0.5
    for _ in range(count):
        weight += 0.1 * (batches.get() - weight)
    return weight


def of_producers(kind, *size):
    batches = kind(*size)
    threads = [threading.Thread(target=produce, args=(batches, number), name="same") for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    weight = train(batches, WORKERS * ITEMS)
    for thread in threads:
        thread.join()
    return weight


def of_consumers():
    """Workers that take tasks, poll, and append in the order in which they are done."""
    tasks, done = queue.Queue(), queue.Queue()
    for number in range(WORKERS * ITEMS):
        tasks.put(number)

    def work(name):
        while True:
            try:
                task = tasks.get_nowait()
            except queue.Empty:
                return
            time.sleep(unseeded.random() / 2000)
            done.put((name, task))

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    polled, results = 0, []
    while len(results) < WORKERS * ITEMS:
        if done.empty():
            polled += 1
            time.sleep(0.0001)
            continue
        results.append(done.get(timeout=1))
    for thread in threads:
        thread.join()
    return polled, results


for kind in queue.Queue, queue.LifoQueue, queue.PriorityQueue:
    print(kind.__name__, of_producers(kind, 5).hex())
print(queue.SimpleQueue.__name__, of_producers(queue.SimpleQueue).hex())
print(of_consumers())
if "torch" in sys.argv:
    import torch

    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = queue.Queue(5)
    threads = [threading.Thread(target=produce, args=(batches, number)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    for _ in range(WORKERS * ITEMS):
        optimizer.zero_grad()
        loss = (model(torch.tensor([[batches.get()]])) ** 2).sum()
        loss.backward()
        optimizer.step()
    print(model.weight.item().hex())
