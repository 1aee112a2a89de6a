"""What the shim tells otherwise where a plan asks for it: listings, the host's name, processors, the hour."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.model.plan import Varied
from tests.native.harness import Shim, run
from tests.support import training_text

HOUR = 3600

LISTED = """
import os, sys
print(os.listdir(sys.argv[1]))
with os.scandir(sys.argv[1]) as entries:
    print([entry.name for entry in entries])
descriptor = os.open(sys.argv[1], os.O_RDONLY)
print(os.listdir(descriptor))
"""

POSITIONS = training_text("listing_positions.py")


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(tmp_path / "runs")


def told(shim: Shim, command: list[str], **varied: Any) -> list[str]:
    """What a program prints that is told this."""
    shim.record(["true"])
    done = shim.replay(command, plan={"varied": Varied(**varied)})
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_listings_come_backwards(count: int, shim: Shim, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for number in range(count):
        (tmp_path / "d" / f"a file with a rather long name, number {number}").touch()
    expected = os.listdir(tmp_path / "d")
    command = [sys.executable, "-c", LISTED, str(tmp_path / "d")]
    assert told(shim, command) == [repr(expected)] * 3
    assert told(shim, command, backwards=True) == [repr(expected[::-1])] * 3


def test_positions_in_a_listing(shim: Shim, tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert told(shim, [sys.executable, "-c", POSITIONS, str(tmp_path)], backwards=True) == []


def test_the_kernels_own_listings_are_left_alone(shim: Shim) -> None:
    command = [sys.executable, "-c", "import os; print([n for n in os.listdir('/proc/self') if n in ('task', 'fd')])"]
    assert told(shim, command, backwards=True) == told(shim, command)


def test_the_name_of_the_host(shim: Shim) -> None:
    code = "import os, socket; print(os.uname().nodename, socket.gethostname())"
    own = socket.gethostname()
    assert told(shim, [sys.executable, "-c", code]) == [f"{own} {own}"]
    assert told(shim, [sys.executable, "-c", code], host="other") == ["other other"]


def test_a_damaged_plan_asks_for_nothing(shim: Shim) -> None:
    environment = shim.environment("replayed", "replay", varied=Varied(host="other", backwards=True))
    plan = shim.directory / "replayed" / "shim.plan"
    data = plan.read_bytes()
    plan.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    done = run(["uname", "-n"], environment)
    assert done.stdout.decode().strip() == socket.gethostname()
    assert b"shim.plan is damaged" in done.stderr


def test_the_number_of_processors(shim: Shim) -> None:
    code = "import ctypes, os; print(os.cpu_count(), ctypes.CDLL(None).get_nprocs())"
    own = os.cpu_count()
    assert told(shim, [sys.executable, "-c", code]) == [f"{own} {own}"]
    assert told(shim, [sys.executable, "-c", code], processors=1) == ["1 1"]
    assert told(shim, [sys.executable, "-c", code], processors=4096) == [f"{own} {own}"]


@pytest.mark.parametrize("clock", [False, True])
def test_the_time_of_day(clock: bool, shim: Shim) -> None:
    """Also where the clock is replayed and the recording has no read to give."""
    shim.record(["true"], plan={"clock": clock})
    plan = {"clock": clock, "varied": Varied(later=5 * HOUR)}
    done = shim.replay(["date", "+%s"], plan=plan)
    later = int(done.stdout) - time.time()
    assert (5 * HOUR - 60 < later < 5 * HOUR + 60) is not clock


def test_deadlines_by_a_later_time_are_kept(shim: Shim, build: Callable[..., str]) -> None:
    expected = [line + " in time" for line in ("semaphore", "condition", "c11", "mutex", "futex", "sleep")]
    assert told(shim, [build("clock.c"), "deadlines"], later=5 * HOUR) == expected
