"""Uses the first two of three results, and ends without the third; a file beside the script names a task that hangs."""

import asyncio
import concurrent.futures
import multiprocessing.pool
import os
import pathlib
import random
import time

hangs = int(pathlib.Path("hangs").read_text(encoding="utf-8")) if os.path.exists("hangs") else -1


def task(number):
    time.sleep(1000 if number == hangs else random.SystemRandom().random() / 10)
    return number


def taken(results):
    results = iter(results)
    print(next(results), next(results), flush=True)


async def of_loop():
    loop, executor = asyncio.get_running_loop(), concurrent.futures.ThreadPoolExecutor(3)
    tasks = [loop.run_in_executor(executor, task, number) for number in range(3)]
    results = asyncio.as_completed(tasks)
    print(await next(results), await next(results), flush=True)
    os._exit(0)


executor = concurrent.futures.ThreadPoolExecutor(3)
futures = [executor.submit(task, number) for number in range(3)]
taken(future.result() for future in concurrent.futures.as_completed(futures))
pending = {executor.submit(task, number) for number in range(3)}
done = []
while len(done) < 2:
    finished, pending = concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED)
    done += [future.result() for future in finished]
taken(done)
taken(multiprocessing.pool.ThreadPool(3).imap_unordered(task, range(3)))
asyncio.run(of_loop())
