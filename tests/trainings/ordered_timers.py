"""Coroutines that race with timers, for results of threads and with each other; prints what came out."""

import asyncio
import concurrent.futures
import random
import threading
import time

TASKS = 30
dice = random.SystemRandom()


def task(number):
    time.sleep(dice.random() / 100)
    return number


async def sleep_and_append(number, done):
    await asyncio.sleep(0.002 + number % 3 / 100_000)
    done.append(number)


def notify(loop, items):
    for number in range(TASKS):
        task(number)
        loop.call_soon_threadsafe(items.put_nowait, number)


async def main():
    loop, executor = asyncio.get_running_loop(), concurrent.futures.ThreadPoolExecutor(4)
    done = []
    await asyncio.gather(*[sleep_and_append(number, done) for number in range(TASKS)])
    print(done)

    firsts = []
    for number in range(TASKS):
        job = asyncio.ensure_future(loop.run_in_executor(executor, task, number))
        alarm = asyncio.ensure_future(asyncio.sleep(0.005))
        done, pending = await asyncio.wait({job, alarm}, return_when=asyncio.FIRST_COMPLETED)
        firsts.append((job in done, alarm in done))
        for each in pending:
            each.cancel()
    print(firsts)

    results = []
    for number in range(TASKS):
        try:
            results.append(await asyncio.wait_for(loop.run_in_executor(executor, task, number), 0.005))
        except asyncio.TimeoutError:
            results.append(None)
    print(results)

    results = []
    for number in range(TASKS):
        try:
            results.append(await asyncio.wait_for(asyncio.sleep(0, number), dice.random() / 50_000))
        except asyncio.TimeoutError:
            results.append(None)
    print(results)

    items, seen = asyncio.Queue(), []
    thread = threading.Thread(target=notify, args=(loop, items))
    thread.start()
    while len(seen) - seen.count("tick") < TASKS:
        try:
            seen.append(await asyncio.wait_for(items.get(), dice.random() / 100))
        except asyncio.TimeoutError:
            seen.append("tick")
    print(seen)
    thread.join()
    executor.shutdown()


asyncio.run(main())
asyncio.run(main())
