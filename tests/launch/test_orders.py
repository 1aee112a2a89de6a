"""Orders of threads and processes through the whole of record, replay, verify and show."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest

from tests.interpreters import interpreter
from tests.support import Reprokit, training_text


def recorded_and_replayed(reprokit: Reprokit, *command: str, exact: bool = True) -> str:
    """Record a command, replay it twice, and require the same output; returns what the last replay said of orders."""
    recorded = reprokit.run("record", "-o", "recorded", "--", *command)
    assert recorded.returncode == 0, recorded.stderr
    orders = ""
    for number in range(2):
        replayed = reprokit.run("replay", "recorded", "-o", f"replayed{number}")
        assert replayed.stdout == recorded.stdout != ""
        (orders,) = [line for line in replayed.stderr.splitlines() if line.startswith("reprokit: orders: ")]
        assert not exact or orders.endswith(" exact"), orders
    return orders


def bare_runs_differ(command: list[str]) -> bool:
    """Return whether a few runs without reprokit print something else."""
    return len({subprocess.run(command, capture_output=True, check=True).stdout for _ in range(4)}) > 1


def test_queues_of_threads(reprokit: Reprokit) -> None:
    command = [sys.executable, str(reprokit.script("train.py", training_text("ordered_queues.py"))), "torch"]
    assert bare_runs_differ(command)
    orders = recorded_and_replayed(reprokit, *command)
    assert int(orders.split()[2].replace(",", "")) > 1200
    for name in "recorded", "replayed0":
        assert (reprokit.directory / name / "orders.jsonl").exists() is (name != "recorded")
    assert stat.S_IMODE((reprokit.directory / "replayed0" / "orders.jsonl").stat().st_mode) == 0o600
    verified = reprokit.run("verify", "recorded", "replayed0", "--all")
    assert verified.returncode == 0, verified.stdout
    assert "replay of orders" in verified.stdout
    assert orders.removeprefix("reprokit: orders: ") in reprokit.run("show", "replayed0").stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8", "3.10", "3.13"])
def test_queues_in_other_pythons(reprokit: Reprokit, version: str) -> None:
    path = interpreter(version)
    if path is None:
        pytest.skip(f"no CPython {version} here")
    recorded_and_replayed(reprokit, path, str(reprokit.script("train.py", training_text("ordered_queues.py"))))


def test_no_orders(reprokit: Reprokit) -> None:
    script = str(reprokit.script("train.py", training_text("ordered_queues.py")))
    reprokit.run("record", "--no-orders", "-o", "recorded", "--", sys.executable, script)
    assert b'"k":"order"' not in (reprokit.directory / "recorded" / "metrics.jsonl").read_bytes()
    assert "orders:" not in reprokit.run("replay", "recorded").stderr
