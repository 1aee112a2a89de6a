"""Several producers that are processes: in which order their items come is as recorded, and what polls found."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interpreters import interpreter
from tests.run.test_orders import bare_runs_differ, recorded_and_replayed
from tests.support import Reprokit

TRAINING = str(Path(__file__).parent.parent / "trainings" / "producer_processes.py")
SLOW = ["polled fork", "queued spawn", "waited fork", "synchronized fork", "managed fork"]
EXTENDED = ["polled spawn", "ringed spawn", "simple fork", "piped fork", "waited forkserver", "shared fork"]
EXTENDED += ["synchronized spawn", "managed spawn"]
KINDS = [
    "queued fork",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW),
    *(pytest.param(kind, marks=pytest.mark.extended) for kind in EXTENDED),
]


@pytest.mark.parametrize("kind", KINDS)
def test_producers(reprokit: Reprokit, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(reprokit.directory)
    command = [sys.executable, TRAINING, *kind.split()]
    assert bare_runs_differ(command)
    recorded_and_replayed(reprokit, *command)
    assert reprokit.run("verify", "recorded", "replayed1").returncode == 0
    assert not reprokit.facts("recorded")["uncovered"]
    assert not list(reprokit.directory.glob("re*/turns"))


TIMED = """
import mmap, multiprocessing, os, time
is_late, came = os.path.exists("late"), mmap.mmap(-1, 1)
context = multiprocessing.get_context("fork")
lock = context.Lock()
def work():
    time.sleep(2 * is_late)
    with lock:
        came[0] = 1
process = context.Process(target=work)
process.start()
while not (is_late or came[0]):
    time.sleep(0.001)
print(lock.acquire(timeout=100), came[0])
process.join()
"""


def test_who_waits_for_a_time_takes_nobodys_turn(reprokit: Reprokit) -> None:
    """However late the other one comes to its turn, as on a busy machine."""
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, str(reprokit.script("train.py", TIMED)))
    reprokit.script("late", "")
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert (recorded.stdout, replayed.stdout) == ("True 1\n", "True 1\n")
    assert "orders: 3 exact" in replayed.stderr, replayed.stderr


@pytest.mark.slow
def test_what_managers_make_is_used_as_without_a_recording(reprokit: Reprokit) -> None:
    command = [sys.executable, str(Path(TRAINING).with_name("manager_kinds.py"))]
    bare = subprocess.run(command, capture_output=True, text=True, check=True)
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    replayed = reprokit.run("replay", "recorded")
    assert recorded.stdout == replayed.stdout == bare.stdout != ""
    assert (recorded.returncode, replayed.returncode) == (0, 0)


@pytest.mark.slow
def test_memory_without_a_lock_is_named(reprokit: Reprokit) -> None:
    command = [sys.executable, TRAINING, "unlocked"]
    assert bare_runs_differ(command)
    profiled = reprokit.run("profile", "-o", "profiled", "--", *command)
    assert "1 suspect  function multiprocessing.shared_memory.SharedMemory.__init__, 61 calls" in profiled.stdout
    assert "producer_processes.py:" in profiled.stdout
    assert "under a multiprocessing.Lock" in profiled.stdout
    named = "SharedMemory at producer_processes.py:152: memory that processes share"
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert f"reprokit: {named}" in recorded.stderr
    replays = [reprokit.run("replay", "recorded", "-o", f"replayed{number}") for number in range(4)]
    other = next(number for number, replay in enumerate(replays) if replay.stdout != recorded.stdout)
    assert named in reprokit.run("verify", "recorded", f"replayed{other}").stdout.partition("likely cause")[2]


@pytest.mark.slow
def test_arrays_and_values_without_a_lock_are_named(reprokit: Reprokit) -> None:
    training = Path(TRAINING).with_name("shared_without_a_lock.py")
    profiled = reprokit.run("profile", "-o", "profiled", "--", sys.executable, str(training))
    for number, name in enumerate(("Array", "Value"), 8):
        assert f"suspect  order multiprocessing.{name}(lock=False), 1 call" in profiled.stdout
        assert f"shared_without_a_lock.py:{number} (main)" in profiled.stdout
    assert "2 suspected" in profiled.stdout
    assert "under a multiprocessing.Lock" in profiled.stdout
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, str(training))
    ends = ("Array at shared_without_a_lock.py:8", "Value at shared_without_a_lock.py:9")
    assert [source["text"].partition(": ")[0] for source in reprokit.facts("recorded")["uncovered"]] == list(ends)
    assert all(f"reprokit: {end}: memory that processes share" in recorded.stderr for end in ends)


@pytest.mark.extended
@pytest.mark.parametrize("version", ["3.8", "3.10", "3.13"])
@pytest.mark.parametrize(
    "kind",
    ["queued fork", "polled spawn", "ringed fork", "waited spawn", "shared fork", "synchronized fork", "managed fork"],
)
def test_producers_in_other_pythons(reprokit: Reprokit, version: str, kind: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    recorded_and_replayed(reprokit, path, TRAINING, *kind.split())


@pytest.mark.extended
@pytest.mark.parametrize("form", ["thread", "process"])
def test_parallel_mapper(reprokit: Reprokit, form: str) -> None:
    pytest.importorskip("torchdata")
    recorded_and_replayed(reprokit, sys.executable, TRAINING, "mapped", form)


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["ringed", "queued"])
def test_a_producer_that_does_not_come(reprokit: Reprokit, kind: str) -> None:
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, TRAINING, kind)
    assert recorded.stdout.startswith("60 ")
    reprokit.script("absent", "")
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout.startswith("40 ")
    assert time.monotonic() - began < 60
    assert " moved" in replayed.stderr.partition("reprokit: orders: ")[2]
    assert not list(reprokit.directory.glob("re*/turns"))
