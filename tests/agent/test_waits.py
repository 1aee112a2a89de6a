"""What a replay knows of its threads: which are blocked, which have ended, and names that repeat."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.agent.core.thread_names import IDENTITY, label, without_ids
from reprokit.agent.orders.actors import Actors
from reprokit.agent.orders.blocked_threads import TASKS
from reprokit.agent.orders.recording import RecordedTracks
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
# Says whether the process is at rest: with a thread that waits for a lock, one that is held, and one that does ACTION.
REST = """
import _thread, asyncio, os, threading, time
from reprokit.agent.orders.blocked_threads import at_rest, native_id

def looked():
    "Two looks, between which no thread has run."
    before = at_rest(native_id(), {held.native_id}, {polls.native_id})
    time.sleep(0.05)
    return before is not None and before == at_rest(native_id(), {held.native_id}, {polls.native_id})

def start(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread

lock = _thread.allocate_lock()
lock.acquire()
start(lock.acquire)
start(threading.Event().wait)
held = start(threading.Event().wait, 1000)
polls = start(asyncio.new_event_loop().run_forever)
while not looked():  # until all have begun to wait
    pass
start(ACTION)
print(looked())
"""
WAKES = {
    "time.sleep, 1000": "sleeps",
    "os.read, os.pipe()[0], 1": "reads",
    "threading.Event().wait, 1000": "waits for a time",
    "asyncio.new_event_loop().run_forever": "polls",
    "(lambda: [None for _ in iter(int, 1)])": "runs",
}


@pytest.mark.parametrize("action", WAKES, ids=WAKES.values())
def test_a_process_is_at_rest_while_each_thread_waits_for_another(action: str) -> None:
    if not os.access(f"{TASKS}/{os.getpid()}/syscall", os.R_OK):
        pytest.skip("this kernel does not say in which system call a thread is")
    code = REST.replace("ACTION", action)
    looks = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert looks == "False\n"


def test_a_thread_has_ended_or_whoever_would_create_it_has() -> None:
    actors, go_on = Actors(), threading.Event()

    class Named(threading.Thread):
        """A thread whose creation the agent has seen."""

        def __init__(self, target: Callable[[], object]) -> None:
            super().__init__(target=target)

    actors.watch(threading_of(Named))
    first = Named(target=go_on.wait)
    assert getattr(first, IDENTITY) == "m.1"
    found = [(actors.acting_for(name), actors.has_ended(name)) for name in ("m", "m.1", "m.1.4", "m.2", "client m.1|x")]
    assert found == [("m", False), ("m.1", False), ("m.1", False), ("m", False), ("client m.1|x", False)]
    first.start()
    assert not actors.has_ended("m.1")
    go_on.set()
    first.join()
    wait_until(lambda: actors.has_ended("m.1") and actors.has_ended("m.1.4"), "the end of a thread")
    assert not actors.has_ended("m.2")
    lost = Named(target=print)
    assert not actors.has_ended("m.2")
    del lost
    assert actors.has_ended("m.2")


def threading_of(kind: type[threading.Thread]) -> object:
    """Stand for the module threading, so that only this class is patched."""
    return type("threading", (), {"Thread": kind})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Dask-Default-Threads-PID-0", ("Dask-Default-Threads-*-0", False)),
        ("ThreadPoolExecutor-0_12", ("ThreadPoolExecutor-0_12", False)),
        ("Thread-12345 (work 0x7f1234)", ("Thread-12345 (work 0x7f1234)", False)),
        ("worker-3", ("worker-3", False)),
        ("trainer", ("trainer", False)),
        ("beefcafe", ("beefcafe", False)),
        ("task 6fa459ea-ee8a-3ca4-894e-db77e160355e", ("task *", True)),
        ("job-deadbeef01 of 0x7f12", ("job-* of *", True)),
        ("watch 123456 at 1700000000.25", ("watch * at *.25", True)),
    ],
)
def test_names_hold_nothing_that_does_not_repeat(name: str, expected: tuple[str, bool]) -> None:
    assert without_ids(name.replace("PID", str(os.getpid()))) == expected


def test_threads_alike_but_for_what_does_not_repeat_have_names_of_their_own() -> None:
    threads = [threading.Thread(name=f"job-{number}") for number in (123456, 654321)]
    for number, thread in enumerate(threads):
        setattr(thread, IDENTITY, f"m.{number}")
    assert [label(thread) for thread in threads] == ["job-* m.0", "job-* m.1"]


@pytest.mark.parametrize(
    ("first", "seconds"),
    [("12.5", 12.5), ("", 0.0), ("x", 0.0), ("-1", 0.0), ("nan", 0.0), ("1e9", 0.0), ("9" * 30, 0.0), (".", 0.0)],
)
def test_the_recordings_time_is_a_number_or_unknown(first: str, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text(f"{first}\n")
    assert RecordedTracks(str(tmp_path)).seconds == seconds
    assert RecordedTracks(str(tmp_path / "none")).seconds == 0.0
