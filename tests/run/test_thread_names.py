"""Series of threads whose names hold a process id, a time or an address: they are the same series in a replay."""

from __future__ import annotations

import sys

import pytest

from tests.support import Reprokit

SCRIPT = """
import os, random, threading, time
import reprokit

def judge(number):
    random.seed(number)
    reprokit.log_predictions([0, 1, 1], [0, number % 2, 1])

for number, name in enumerate([f"judge-{os.getpid()}-0", f"judge-{os.getpid()}-1", *["job-%x" % time.time_ns()] * 2]):
    thread = threading.Thread(target=judge, args=(number,), name=name)
    thread.start()
    thread.join()
"""


@pytest.mark.slow
def test_names_of_threads_that_do_not_repeat_name_no_series(reprokit: Reprokit) -> None:
    command = [sys.executable, str(reprokit.script("train.py", SCRIPT))]
    for options in ([], ["--no-orders"]):
        assert reprokit.run("record", "-o", "one", *options, "--", *command).returncode == 0
        assert reprokit.run("replay", "one", "-o", "two").returncode == 0
        verified = reprokit.run("verify", "one", "two", "--all")
        assert verified.returncode == 0, verified.stdout
        assert "@judge-*-0" in verified.stdout
        assert "@judge-*-1" in verified.stdout
        assert ("@job-* m.3" in verified.stdout) is not bool(options)
        for name in "one", "two":
            (reprokit.directory / name).rename(reprokit.directory / f"{name}{len(options)}")
