"""Three threads put into each of 200 queues; a file tells the first not to come, or the second to put once more."""

import os
import queue
import threading


def put(items, item):
    thread = threading.Thread(target=items.put, args=(item,))
    thread.start()
    thread.join()


total = 0
for number in range(200):
    items = queue.Queue()
    if not os.path.exists("absent"):
        put(items, number)
    for _ in range(2 if os.path.exists("more") else 1):
        items.put(1)
    put(items, 2)
    total += sum(items.get() for _ in range(items.qsize()))
print(total)
