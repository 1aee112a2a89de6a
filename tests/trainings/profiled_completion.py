"""Takes results of threads, processes and coroutines as they come."""

import asyncio
import os
import select
import selectors
import socket
import subprocess
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from multiprocessing import Pool


async def gather():
    for task in asyncio.as_completed([asyncio.sleep(0)]):
        await task
    await asyncio.sleep(0.001)


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(abs, number) for number in range(3)]
        for future in as_completed(futures):
            future.result()
        wait(futures)
        wait(futures, return_when=FIRST_COMPLETED)
    with Pool(2) as pool:
        list(pool.imap_unordered(abs, range(3)))
        pool.map(abs, range(3))
        pool.apply_async(abs, (1,), callback=print).get()
    asyncio.new_event_loop().run_until_complete(gather())
    with subprocess.Popen(["cat"], stdin=-1, stdout=-1) as child, selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        child.communicate(b"text")  # waits for one child, with a selector of its own
        if not os.fork():
            os._exit(0)
        os.wait()
        select.select([], [], [], 0)
        selector.select(0)
        with selectors.SelectSelector() as other:
            other.select(0)
        with selectors.PollSelector():
            select.poll().poll(0)

    async def run_program():
        await (await asyncio.create_subprocess_exec("true")).wait()
        left, right = socket.socketpair()
        with left, right:
            left.send(b"x")
            right.setblocking(False)
            await asyncio.get_running_loop().sock_recv(right, 1)

    asyncio.run(run_program())
