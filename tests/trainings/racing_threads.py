"""Threads whose results come in the order in which they end; with "pool" a pool runs them, with "one" there is one."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy

done, together = [], threading.Barrier(8)


def work(number):
    if threading.current_thread().name.startswith("beside"):
        together.wait()  # so that none ends before the last one starts
    time.sleep(time.perf_counter_ns() % 997 / 50_000)  # which nothing gives again
    done.append(number * 1.5)


async def gathered():
    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(8)))


def main(how):
    if how == "asyncio":
        asyncio.run(gathered())
    elif how == "pool":
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
    else:
        names = ["one"] if how == "one" else [f"beside{number}" for number in range(8)]
        threads = [threading.Thread(target=work, args=(number,), name=name) for number, name in enumerate(names)]
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
