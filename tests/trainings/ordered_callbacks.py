"""Callbacks of futures, which append in the order in which tasks are done; some wait for a task that they submit."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

order, waited = [], []


def task(number):
    time.sleep(time.perf_counter_ns() // 1000 % 7 / 2000)
    if number == 7:
        raise ValueError(number)
    return number


def note(future):
    before = len(order)
    time.sleep(time.perf_counter_ns() // 1000 % 3 / 3000)
    order.append((before, str(future.exception() or future.result())))


def wait_for_another(future):
    waited.append(executor.submit(task, future.result() + 100).result())
    future.told.set_result(None)


with ThreadPoolExecutor(6) as executor:
    for number in range(30):
        future = executor.submit(task, number)
        time.sleep(time.perf_counter_ns() // 1000 % 5 / 2000)
        future.add_done_callback(note)
with ThreadPoolExecutor(6) as executor:
    waiting = [executor.submit(task, number) for number in range(3)]
    for future in waiting:
        future.told = Future()
        future.add_done_callback(wait_for_another)
    for future in waiting:
        future.told.result()
print(*order, *sorted(waited))  # those that wait run beside each other
