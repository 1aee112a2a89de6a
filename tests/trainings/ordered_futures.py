"""Tasks of threads and processes whose results are used in the order in which they are done; prints what came out."""

import concurrent.futures
import multiprocessing
import multiprocessing.pool
import random
import time

TASKS = 40


def task(number):
    time.sleep(random.SystemRandom().random() / 100)
    return number


def of_as_completed(executor):
    futures = {executor.submit(task, number): number for number in range(TASKS)}
    return [futures[future] for future in concurrent.futures.as_completed(set(futures))]


def of_wait(executor):
    pending, order = {executor.submit(task, number) for number in range(TASKS)}, []
    while pending:
        done, pending = concurrent.futures.wait(pending, timeout=5, return_when=concurrent.futures.FIRST_COMPLETED)
        order.append([future.result() for future in done])
    everything = concurrent.futures.wait([executor.submit(task, number) for number in range(TASKS)]).done
    return order, [future.result() for future in everything]


if __name__ == "__main__":
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        print(of_as_completed(threads))
        print(of_wait(threads))
        print(of_as_completed(threads))
    with concurrent.futures.ProcessPoolExecutor(2) as processes:
        print(of_as_completed(processes))
    with multiprocessing.Pool(3) as pool:
        print(list(pool.imap_unordered(task, range(TASKS))))
        print(list(pool.imap_unordered(task, range(TASKS), chunksize=3)))
    with multiprocessing.pool.ThreadPool(3) as pool:
        print(list(pool.imap_unordered(task, range(TASKS))))
