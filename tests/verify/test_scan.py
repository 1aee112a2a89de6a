"""Long runs are read in bounded memory and every line counts."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import pytest

from reprokit.run_files import rundir
from reprokit.verify.read.scan import natural
from reprokit.verify.runs import compare

from .runs import Building, recording, replayed

STEPS = 40_000


def write_losses(run: Building, numbers: dict[int, float]) -> Path:
    """A run of many steps in two processes that take turns, most of them alike."""
    path = run.write()
    with (path / rundir.METRICS).open("w") as file:
        for number in range(STEPS):
            step, rank = divmod(number, 2)
            value = numbers.get(number, step / 1024)
            bits = struct.pack(">d", value).hex()
            line = {"k": "loss", "p": f"rank{rank}", "n": step, "t": number, "name": "loss", "step": step}
            file.write(json.dumps({**line, "value": {"dtype": "float64", "bits": bits, "decimal": value}}) + "\n")
    return path


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_steps(tmp_path: Path) -> None:
    left = recording(tmp_path / "left")
    paths = write_losses(left, {}), write_losses(replayed(left, tmp_path / "right"), {STEPS - 3: 0.5, STEPS - 1: 0.5})
    tracemalloc.start()
    comparison = compare(*paths)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    first = comparison.tree.first()
    assert first is not None
    assert f"loss of process rank1 differs first at step {STEPS // 2 - 2}:" in first.detail
    assert peak < 4 << 20, "a whole run in memory would take tens of megabytes"


def test_lines_of_a_process_may_come_out_of_order(tmp_path: Path) -> None:
    """Threads of a process number their lines before they write them."""
    left = recording(tmp_path / "left")
    left.start()
    left.losses(1.0, 2.0)
    left.add("end")
    right = replayed(left, tmp_path / "right")
    right.lines[0], right.lines[1] = right.lines[1], right.lines[0]
    assert compare(left.write(), right.write()).identical


def test_names_are_sorted_as_people_count() -> None:
    names = ["0/10", "0/2", "0", "rank10", "rank9", "0/2:1"]
    assert sorted(names, key=natural) == ["0", "0/2", "0/2:1", "0/10", "rank9", "rank10"]
