"""Three threads fill a queue; a file beside the script tells the third not to come, to end early, or never to end."""

import os
import queue
import threading
import time

batches = queue.Queue(2)
ended = []


def produce(number):
    for item in range(10):
        if number == 2 and item == 5 and os.path.exists("ends"):
            break
        if number == 2 and item == 5 and os.path.exists("hangs"):
            ended.append(number)
            time.sleep(1000)
        time.sleep(0.001)
        batches.put((number, item))
    ended.append(number)


threads = [threading.Thread(target=produce, args=(number,), daemon=True) for number in range(3)]
count = 2 if os.path.exists("absent") else 3
for thread in threads[:count]:
    thread.start()
taken = []
while True:
    are_all = len(ended) == count
    try:
        taken.append(batches.get(timeout=0.3))
    except queue.Empty:
        if are_all:
            break
print(len(taken))
with open("taken", "w", encoding="utf-8") as file:
    file.write(str(len(taken)))
