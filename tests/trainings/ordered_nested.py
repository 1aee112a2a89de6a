"""A coroutine drives its own loop until another one has ended, as notebooks do; then a loop never rests."""

import asyncio
import threading
import time


def run_nested(loop, coroutine):
    task, outer = loop.create_task(coroutine), asyncio.current_task()
    asyncio.tasks._leave_task(loop, outer)
    while not task.done():
        loop._run_once()
    asyncio.tasks._enter_task(loop, outer)
    return task.result()


async def inner(number):
    loop = asyncio.get_running_loop()
    results = [loop.run_in_executor(None, lambda: time.sleep(0.002)) for _ in range(3)]
    await asyncio.gather(*results, asyncio.sleep(0.001))
    return number


async def outer(number):
    await asyncio.sleep(0.001)
    return run_nested(asyncio.get_running_loop(), inner(number))


async def spin(done):
    while not done.is_set():
        await asyncio.sleep(0)


async def main():
    loop, done, items = asyncio.get_running_loop(), asyncio.Event(), []
    print(await outer(1), await outer(2))
    spinning = loop.create_task(spin(done))
    feed = [loop.call_soon_threadsafe, items.append]
    threads = [threading.Thread(target=lambda: [feed[0](feed[1], number) for number in range(50)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*[asyncio.sleep(0.001) for _ in range(50)])
    while len(items) < 100:
        await asyncio.sleep(0.001)
    done.set()
    await spinning
    loop.call_later(0.01, items.append, "cancelled").cancel()
    await asyncio.sleep(0.02)
    print(len(items))


asyncio.run(main())
