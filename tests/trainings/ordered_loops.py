"""Coroutines that use results and items in the order in which threads bring them; prints what came out."""

import asyncio
import concurrent.futures
import random
import threading
import time

TASKS = 40


def task(number):
    time.sleep(random.SystemRandom().random() / 100)
    return number


def feed(loop, items, name):
    for number in range(TASKS):
        task(number)
        loop.call_soon_threadsafe(items.put_nowait, (name, number))


async def main():
    loop, executor = asyncio.get_running_loop(), concurrent.futures.ThreadPoolExecutor(4)
    tasks = [loop.run_in_executor(executor, task, number) for number in range(TASKS)]
    print([await each for each in asyncio.as_completed(tasks)])

    async def append(number, done):
        done.append(await loop.run_in_executor(executor, task, number))

    async def begin(number, begun):
        begun.append(number)

    begun = []
    for each in asyncio.as_completed([begin(number, begun) for number in range(TASKS)]):
        await each
    print(begun)  # of coroutines, of which a set is made

    done = []
    await asyncio.gather(*[append(number, done) for number in range(TASKS)])
    print(done)

    items = asyncio.Queue()
    threads = [threading.Thread(target=feed, args=(loop, items, name)) for name in "abc"]
    for thread in threads:
        thread.start()
    print([await items.get() for _ in range(3 * TASKS)])
    for thread in threads:
        thread.join()
    executor.shutdown()


asyncio.run(main())
asyncio.run(main())
