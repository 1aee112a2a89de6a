"""Orders of threads and processes through the whole of record, replay, verify and show."""

from __future__ import annotations

import stat
import subprocess
import sys
import time

import pytest

from tests.interpreters import interpreter
from tests.support import Reprokit, rest_slow, training_text


def recorded_and_replayed(reprokit: Reprokit, *command: str, exact: bool = True, replays: int = 2) -> str:
    """Record a command, replay it, and require the same output; returns what the last replay said of orders."""
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert recorded.returncode == 0, recorded.stderr
    orders = ""
    for number in range(replays):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""
        (orders,) = [line for line in replayed.stderr.splitlines() if line.startswith("reprokit: orders: ")]
        assert not exact or orders.endswith(" exact"), orders
    return orders


def bare_runs_differ(command: list[str]) -> bool:
    """Return whether one of a few runs without reprokit prints something else."""
    first = subprocess.check_output(command)
    return any(subprocess.check_output(command) != first for _ in range(3))


@pytest.mark.parametrize("beside", rest_slow(["", "torch"]))
def test_queues_of_threads(reprokit: Reprokit, beside: str) -> None:
    command = [sys.executable, str(reprokit.script("train.py", training_text("ordered_queues.py")))]
    assert bare_runs_differ(command)
    orders = recorded_and_replayed(reprokit, *command, *filter(None, [beside]))
    assert int(orders.split()[2].replace(",", "")) > 1200
    for name in "recorded", "replayed0":
        assert (reprokit.directory / name / "orders.jsonl").exists() is (name != "recorded")
    assert stat.S_IMODE((reprokit.directory / "replayed0" / "orders.jsonl").stat().st_mode) == 0o600
    verified = reprokit.run("verify", "recorded", "replayed0", "--all")
    assert verified.returncode == 0, verified.stdout
    assert "replay of orders" in verified.stdout
    assert orders.removeprefix("reprokit: orders: ") in reprokit.run("show", "replayed0").stdout


@pytest.mark.parametrize(
    "script",
    [
        "ordered_futures.py",
        "ordered_locks.py",
        *(
            pytest.param(f"ordered_{name}.py", marks=pytest.mark.slow)
            for name in ("loops", "timers", "events", "imports", "callbacks", "programs", "loader")
        ),
        pytest.param("ordered_joblib.py", marks=pytest.mark.extended),
    ],
)
def test_results_of_tasks(reprokit: Reprokit, script: str) -> None:
    """Which worker takes which task is another matter: what tasks draw may be derived."""
    command = [sys.executable, str(reprokit.script("train.py", training_text(script)))]
    assert bare_runs_differ(command)
    recorded_and_replayed(reprokit, *command)


@pytest.mark.slow
def test_loops_that_are_nested_or_never_rest_go_on(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_nested.py")))
    assert subprocess.check_output([sys.executable, script], text=True) == "1 2\n100\n"
    recorded_and_replayed(reprokit, sys.executable, script, replays=1)
    assert reprokit.run("replay", "recorded").stdout == "1 2\n100\n"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", pytest.param("3.10", marks=pytest.mark.extended), "3.13"])
@pytest.mark.parametrize(
    "script",
    [
        f"ordered_{what}.py"
        for what in ("queues", "futures", "loops", "timers", "locks", "events", "imports", "callbacks", "programs")
    ],
)
def test_orders_in_other_pythons(reprokit: Reprokit, version: str, script: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    recorded_and_replayed(reprokit, path, str(reprokit.script("train.py", training_text(script))), replays=1)


def test_tracebacks_of_imports_are_those_of_bare_runs(reprokit: Reprokit) -> None:
    command = [sys.executable, str(reprokit.script("train.py", training_text("ordered_imports.py")))]
    bare = subprocess.check_output(command, text=True)
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert recorded.stdout.partition("Traceback")[1:] == bare.partition("Traceback")[1:]


def test_an_import_that_the_end_of_the_process_interrupts_is_not_missed(reprokit: Reprokit) -> None:
    reprokit.script("slow.py", "import os, time\nwhile os.path.exists('hurry'):\n    time.sleep(0.01)\n")
    script = "import os, sys, threading, time\n"
    script += "slow = threading.Thread(target=__import__, args=['slow'], daemon=True)\nslow.start()\n"
    script += (
        "while slow.is_alive() and not (os.path.exists('hurry') and 'slow' in sys.modules):\n    time.sleep(0.01)\n"
    )
    script += "print('end')\n"
    script += "both = threading.Lock()\nthread = threading.Thread(target=both.acquire)\n"
    script += "both.acquire()\nboth.release()\nthread.start()\nthread.join()\n"
    command = [sys.executable, str(reprokit.script("train.py", script))]
    assert reprokit.run("record", "-o", "recorded", "--", *command).returncode == 0
    assert '"import slow"' in (reprokit.directory / "recorded" / "metrics.jsonl").read_text()
    reprokit.script("hurry", "")
    replayed = reprokit.run("replay", "recorded")
    assert replayed.stderr.partition("reprokit: orders: ")[2].partition("\n")[0].endswith("exact")


def test_no_orders(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_queues.py")))
    reprokit.run("record", "--no-orders", "-o", "recorded", "--", sys.executable, script)
    assert b'"k":"order"' not in (reprokit.directory / "recorded" / "metrics.jsonl").read_bytes()
    assert "orders:" not in reprokit.run("replay", "recorded", "-o", "replayed").stderr
    assert "no_orders" in (reprokit.directory / "replayed" / "plan.json").read_text()  # its agents watch nothing either


@pytest.mark.parametrize(("what", "taken"), rest_slow([("ends", 25)], extended=[("hangs", 25), ("absent", 20)]))
def test_a_producer_that_does_not_come_is_not_waited_for_without_end(reprokit: Reprokit, what: str, taken: int) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_lost.py")))
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, script)
    assert recorded.stdout == "30\n"
    reprokit.script(what, "")
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == f"{taken}\n"
    assert time.monotonic() - began < 60
    assert " moved" in replayed.stderr.partition("reprokit: orders: ")[2]
    verified = reprokit.run("verify", "recorded", "replayed", "--all").stdout
    assert "threads or processes came in another order than in the recording" in verified


@pytest.mark.extended
def test_a_thread_that_does_not_come_to_a_lock_is_not_waited_for_without_end(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_locks.py")))
    assert reprokit.run("record", "-o", "recorded", "--", sys.executable, script, "locks").stdout == "36\n"
    reprokit.script("absent", "")
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == "24\n"
    assert time.monotonic() - began < 60
    assert " moved" in replayed.stderr.partition("reprokit: orders: ")[2]


@pytest.mark.extended
@pytest.mark.parametrize(("what", "total"), [("more", 20700), ("absent", 600)])
def test_the_sum_of_waits_is_bounded(reprokit: Reprokit, what: str, total: int) -> None:
    """In each of 200 queues a turn does not come, or is waited for by a thread that had no further turn itself."""
    script = str(reprokit.script("train.py", training_text("ordered_many_lost.py")))
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, script)
    assert recorded.stdout == "20500\n"
    reprokit.script(what, "")
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert replayed.stdout == f"{total}\n"
    assert time.monotonic() - began < 40
    assert " moved" in replayed.stderr.partition("reprokit: orders: ")[2]


@pytest.mark.slow
def test_altered_orders_stop_a_replay_unless_it_is_forced(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_queues.py")))
    for name in "recorded", "other":
        reprokit.run("record", "-o", name, "--", sys.executable, script)
    lines = reprokit.directory / "recorded" / "metrics.jsonl"
    whole = lines.read_bytes()
    cut, flipped = whole[: len(whole) // 2], bytearray(whole)
    flipped[whole.index(b'"turns":"') + 15] ^= 1
    for data in cut, bytes(flipped), (reprokit.directory / "other" / "metrics.jsonl").read_bytes():
        lines.write_bytes(data)
        stopped = reprokit.run("replay", "recorded", "-o", "stopped")
        assert (stopped.returncode, stopped.stdout) == (125, "")
        assert "reprokit: run-damaged: " in stopped.stderr
        forced = reprokit.run("replay", "recorded", "--force")
        assert (forced.returncode, forced.stderr.count("orders:")) == (0, 0)


@pytest.mark.slow
def test_tasks_that_never_finish_do_not_hang_a_replay(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_hanging.py")))
    recorded = reprokit.run("record", "-o", "recorded", "--", sys.executable, script)
    reprokit.script("hangs", recorded.stdout.split()[0])
    began = time.monotonic()
    replayed = reprokit.run("replay", "recorded", "-o", "replayed")
    assert len(replayed.stdout.split()) == 8
    assert time.monotonic() - began < 60


def test_a_script_may_remove_threading_from_the_modules(reprokit: Reprokit) -> None:
    script = "import sys, threading\nkept = sys.modules.pop('threading')\n"
    script += "thread = kept.Thread(target=__import__, args=('csv',))\nthread.start()\nthread.join()\nimport wave\n"
    for command in (("record", "-o", "one", "--", sys.executable, "-c", script), ("replay", "one", "-o", "two")):
        done = reprokit.run(*command)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
