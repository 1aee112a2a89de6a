"""Threads whose results come in the order in which they end; with "pool" a pool runs them, with "one" there is one."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy

done = []


def work(number):
    time.sleep(time.perf_counter_ns() % 997 / 50_000)  # which nothing gives again
    done.append(number * 1.5)


async def together():
    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(8)))


def main(how):
    if how == "asyncio":
        asyncio.run(together())
    elif how == "pool":
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
    else:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1 if how == "one" else 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    result = 0.0
    for number in done:
        result = result * 0.9 + number
    numpy.save("result.npy", numpy.array([result, time.time() > 0]))


if __name__ == "__main__":
    main(sys.argv[1])
