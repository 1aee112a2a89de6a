"""Losses and logged numbers as records: exact, whole after a kill, and the same from compiled code and Python."""

from __future__ import annotations

import json
import math
import mmap
import random
import signal
import struct
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from reprokit.agent.core.exact_values import from_number
from reprokit.agent.core.journal import Journal
from reprokit.core.native import trail_path
from tests import number_files
from tests.agent.training import Training

FORMS = {"float32": ">f", "float64": ">d"}
SPECIAL = [0.0, -0.0, 1.0, -0.1, 0.5, 2.0**-149, 5e-324, 3.4028234663852886e38, 1e15, 1e16, 1e-5, 9.9e-6, 123456792.0]
NOT_FINITE = [math.inf, -math.inf, math.nan]
IN_WINDOW = (64 << 10) // 32  # records
LOG = """
import ctypes, os, signal, sys
import reprokit
def log(first, last):
    for step in range(first, last):
        reprokit.log(step=step, loss=step / 8)
"""


def numbers(dtype: str) -> list[float]:
    """Some that matter, and any bits at all."""
    form, size = FORMS[dtype], struct.calcsize(FORMS[dtype])
    drawn = random.Random(7)
    found = [struct.unpack(form, drawn.randbytes(size))[0] for _ in range(IN_WINDOW)]
    return [*[struct.unpack(form, struct.pack(form, number))[0] for number in SPECIAL], *NOT_FINITE, *found]


def journal_of(path: Path, plan: dict[str, str]) -> Journal:
    """A journal whose process can, or cannot, load compiled code."""
    path.mkdir()
    (path / "plan.json").write_text(json.dumps(plan))
    return Journal(str(path), '0/"1"')


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize("name", ["loss", 'loss@"ü"'])
def test_compiled_code_and_python_write_the_same(tmp_path: Path, dtype: str, name: str) -> None:
    written = []
    for place, plan in (("compiled", {"library": str(trail_path())}), ("plain", {})):
        journal = journal_of(tmp_path / place, plan)
        for step, number in enumerate(numbers(dtype)):
            journal.write_loss(name, step, dtype, number)
        journal.close()
        (file,) = (tmp_path / place / "numbers").iterdir()
        written.append(file.read_bytes())
    assert written[0] == written[1]
    process, lines = number_files.read(written[0])
    assert process == '0/"1"'
    assert [line["value"]["bits"] for _, line in lines] == [from_number(dtype, one)["bits"] for one in numbers(dtype)]
    assert [(line["name"], line["step"]) for _, line in lines] == [(name, step) for step in range(len(lines))]


def test_numbers_of_every_type_come_back_exactly_and_in_order(training: Training) -> None:
    script = """import ctypes, numpy as np, reprokit
values = [True, -7, 2**63, 1.5, float("nan"), np.float16(0.1), np.float32(0.1), np.uint8(3), "text", -0.0]
for step, value in enumerate(values): reprokit.log(step=step, epoch=step // 3, value=value)
for step in (-1, 2**63): reprokit.log(other=1, step=step)"""
    lines = training.run(script).of("log")
    assert [(line["name"], line["step"], line["epoch"]) for line in lines] == [
        *(("value", step, step // 3) for step in range(10)),
        ("other", -1, None),
        ("other", 1 << 63, None),
    ]
    values = [line["value"] for line in lines]
    assert [value.get("bits") for value in values[3:8]] == [
        "3ff8000000000000", "7ff8000000000000", "2e66", "3dcccccd", None,
    ]  # fmt: skip
    assert [value["dtype"] for value in values[:3]] == ["bool", "int", "str"]
    assert [value.get("decimal") for value in (*values[:2], values[7], values[10])] == [True, -7, 3, 1]
    in_lines = {json.loads(line)["step"] for line in _text(training).splitlines() if '"k":"log"' in line}
    assert in_lines == {2, 8, 1 << 63}  # texts, and a step that no record has room for


def _text(training: Training) -> str:
    return (training.run_directory / "metrics.jsonl").read_text()


def steps(training: Training) -> list[int]:
    return [line["step"] for line in training.lines() if line["k"] == "log"]


@pytest.mark.parametrize("count", [5, 2 * IN_WINDOW + 5])
def test_a_kill_loses_nothing(training: Training, count: int) -> None:
    outcome = training.run(LOG + f"log(0, {count})\nos.kill(os.getpid(), signal.SIGKILL)")
    assert outcome.status == -signal.SIGKILL
    assert steps(training) == list(range(count))


def test_no_descriptor_stays_open_and_closed_ones_take_nothing_away(training: Training) -> None:
    script = "before = os.listdir('/proc/self/fd')\nlog(0, 9)\nprint(os.listdir('/proc/self/fd') == before)\n"
    count = 2 * IN_WINDOW
    outcome = training.run(LOG + script + f"sys.stdout.flush()\nos.closerange(3, 1000)\nlog(9, {count})")
    assert outcome.output == "True\n"
    assert steps(training) == list(range(count))
    (file,) = (training.run_directory / "numbers").iterdir()
    assert file.stat().st_size < 32 * (count + 20)  # what was not used is cut off


def test_a_forked_child_has_a_file_of_its_own(any_training: Training) -> None:
    script = "log(0, 2)\nif os.fork() == 0:\n    log(10, 13)\n    os._exit(0)\nos.wait()\nlog(2, 4)\n"
    any_training.run(LOG + script)
    files = [number_files.read(file.read_bytes()) for file in (any_training.run_directory / "numbers").iterdir()]
    by_process = {process: [line["step"] for _, line in lines] for process, lines in files}
    assert sorted(by_process.values()) == [[0, 1, 2, 3], [10, 11, 12]]


def test_without_room_for_a_file_numbers_are_lines(training: Training) -> None:
    training.environment()
    training.run_directory.joinpath("numbers").write_text("in the way")
    training.run(LOG + "log(0, 9)")
    assert steps(training) == list(range(9))
    assert _text(training).count('"k":"log"') == 9


def test_a_finalizer_may_write_at_any_moment(training: Training) -> None:
    script = """
import gc
class Ends:
    def __del__(self):
        reprokit.log(step=-1, ended=1)
gc.set_threshold(1, 1, 1)
for step in range(300):
    cycle = Ends()
    cycle.itself = cycle
    log(step, step + 1)
"""
    outcome = training.run(LOG + script)
    assert [line["step"] for line in outcome.of("log", name="loss")] == list(range(300))


class Enough(Exception):
    pass


@pytest.mark.parametrize("line", range(1, 40))
def test_an_interrupt_while_numbers_are_written_damages_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    """A handler's exception comes at each line of Python in turn, also where the file grows and a series begins."""
    monkeypatch.setattr("reprokit.agent.core.journal.WINDOW", mmap.PAGESIZE)  # so few records that it soon grows
    left = line

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        left -= event == "line" and frame.f_code.co_filename.endswith("core/journal.py")
        if left == 0:
            left = -1
            raise Enough
        return trace

    import sys

    journal = journal_of(tmp_path / "run", {})
    value = from_number("float64", 0.5)
    full = (mmap.PAGESIZE - 288) // 32 - 2  # behind the head and one series
    for step in range(full):
        journal.write_value("log", "a", step, None, value)
    sys.settrace(trace)
    try:
        journal.write_value("log", "b" if line % 2 else "a", full, None, value)
    except Enough:
        pass
    finally:
        sys.settrace(None)
    journal.write_value("log", "b", full + 1, None, value)
    journal.write_value("log", "a", full + 2, None, value)
    journal.close()
    lines = [one for one in number_files.of_run(tmp_path / "run") if one["step"] != full]
    assert [one["step"] for one in lines] == [*range(full), full + 1, full + 2]
    assert [one["name"] for one in lines[full:]] == ["b", "a"]
