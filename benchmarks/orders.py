"""What orders cost queue.Queue's put and get, a lock and an event's is_set() of the script, and asyncio's timers."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import REPROKIT, in_turn, scratch, show

ITEMS = 50_000
SCRIPT = f"""
import asyncio, queue, threading, time
items = queue.Queue()
def fill(count):
    for number in range(count):
        items.put(number)
helper = threading.Thread(target=fill, args=(10,))
helper.start()
helper.join()
started = time.process_time()
fill({ITEMS})
filled = time.process_time()
for _ in range({ITEMS}):
    items.get()
ended = time.process_time()
lock = threading.Lock()
def lock_often(count):
    for _ in range(count):
        with lock:
            pass
lock_often({ITEMS})
locked = time.process_time()
event = threading.Event()
for _ in range({ITEMS}):
    event.is_set()
polled = time.process_time()
thread = threading.Thread(target=items.get)
thread.start()
items.put(0)
thread.join()
thread = threading.Thread(target=lock_often, args=(1,))
thread.start()
thread.join()
async def wait_for_timers():
    ended = asyncio.get_running_loop().create_future()
    for _ in range({ITEMS}):
        asyncio.get_running_loop().call_later(0, int)
    asyncio.get_running_loop().call_later(0, ended.set_result, None)
    await ended
waited = time.process_time()
asyncio.run(wait_for_timers())
moments = started, filled, ended, locked, polled, polled + time.process_time() - waited
print(*((after - before) / {ITEMS} * 1e6 for before, after in zip(moments, moments[1:])))
"""


def _cost(command: list[str], directory: Path, which: int) -> float:
    """Microseconds of a put, a get, an acquisition, an is_set(), or a timer."""
    done = subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[which])


def main(runs: int) -> None:
    """Print the microseconds of a put, a get, a lock, an is_set() and a timer: bare, recorded and replayed."""
    bare = [sys.executable, "-c", SCRIPT]
    with scratch() as directory:
        subprocess.run([REPROKIT, "record", "-o", "kept", "--", *bare], cwd=directory, check=True, capture_output=True)
        commands = {
            "bare": bare,
            "recorded": [REPROKIT, "record", "-o", "run", "--overwrite", "--", *bare],
            "replayed": [REPROKIT, "replay", "kept", "-o", "again", "--overwrite"],
        }
        for which, call in enumerate(("put", "get", "lock", "is_set()", "timer")):
            sides = {name: partial(_cost, command, directory, which) for name, command in commands.items()}
            print(f"{call}, of {ITEMS:,}")
            results = in_turn(sides, runs)
            show(results, "us", "bare")
