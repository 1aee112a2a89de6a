"""Values go through a bounded buffer into shards, whatever their sizes; a full disk ends the saving alone."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import math
import operator
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reprokit.agent.state.keyframes import Keyframes
from reprokit.agent.tensors.tensor_rules import Choice, TensorMatcher
from reprokit.agent.tensors.tensor_writer import COPIED, HAND_OVER, REDUCTIONS, NumberArray, TensorLibrary, TensorWriter
from reprokit.core.native import trail_path
from tests.questions.test_tensors import Saved

ROOM = 1 << 20
FULL = Choice([TensorMatcher({"collections": [], "patterns": [], "modes": [], "reductions": [], "steps": []})])


def writer_in(run: Path) -> Any:
    run.mkdir()
    (run / "plan.json").write_text(json.dumps({"library": str(trail_path())}))
    said: list[str] = []
    journal = SimpleNamespace(identity="rank3/1")
    agent: Any = SimpleNamespace(run=str(run), journal=journal, warn=lambda text, _code: said.append(text))
    writer = TensorWriter(agent, "torch", ROOM)
    return writer, said


def put(writer: TensorWriter, step: int, data: bytes) -> None:
    room = ctypes.create_string_buffer(data, max(len(data), 1))
    place = ctypes.addressof(room), len(data)
    writer.put((step, "train", "x", 0), FULL, "uint8", (len(data),), place, lambda: NumberArray(0, 0, True, None))


def test_values_of_all_sizes_pass_a_small_buffer(tmp_path: Path) -> None:
    writer, said = writer_in(tmp_path / "run")
    sizes = [0, 1, 7, 4096, 300_000, 500_000, ROOM // 2, ROOM // 2 + 1, 3 * ROOM + 5, 12, 520_000, 520_001] * 5
    values = [os.urandom(size) for size in sizes]
    for step, data in enumerate(values):
        put(writer, step, data)
        writer.end_step(step, ["train"])
        if step == 30:  # as before a fork: the thread ends, and is made again
            writer._settle()
    writer.finish()
    writer.finish()
    saved = Saved(tmp_path / "run")
    assert [saved.of(saved.by_place[step, "train", "x", 0, False]) for step in range(len(values))] == values
    assert saved.lines[0]["rank"] == "3"
    assert saved.lines[-1]["end"]
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert not said
    assert os.stat(tmp_path / "run/tensors").st_mode & 0o777 == 0o700


def test_a_shard_that_fills_the_ring_to_its_end_does_not_go_on_at_its_start(tmp_path: Path) -> None:
    block, lines = 4096, 1 << 22
    ring = 4 * block
    room = ctypes.create_string_buffer(ring)
    data = ctypes.addressof(room)
    while True:
        library, error = TensorLibrary(str(trail_path())), ctypes.c_int()
        saver = library.saver(os.fsencode(tmp_path), b"0", b"", ring, ctypes.byref(error))
        index = Path(os.fsdecode(library.saver_path(saver)) + ".jsonl")
        assert library.put(saver, data, block) == COPIED
        library.shard(saver, struct.pack("<4Q", block, 0, 0, 0), 1, b"{}", 2, b" " * lines, lines, 0)
        assert library.put(saver, data, block) == COPIED
        if index.stat().st_size < lines:  # the first shard was being written: the second one begins behind it
            break
        library.settle(saver)
        lines *= 2
    assert library.put(saver, data, 2 * block) == COPIED
    library.settle(saver)  # so that the ring is free up to the second shard
    assert library.put(saver, data, block) == HAND_OVER


def test_a_keyframe_that_is_dropped_before_it_is_written_is_removed_at_the_end(tmp_path: Path) -> None:
    keyframes: Any = object.__new__(Keyframes)
    keyframes._writer, said = writer_in(tmp_path / "run")
    put(keyframes._writer, 0, b"first")
    keyframes._writer.complete({"keyframe": 0})
    put(keyframes._writer, 1, b"second")
    keyframes._dropped = [0]
    keyframes._finish()
    assert [path.name[-18:] for path in (tmp_path / "run").rglob("*.safetensors")] == ["000001.safetensors"]
    assert not said


def test_each_process_of_a_name_has_files_of_its_own(tmp_path: Path) -> None:
    first, _ = writer_in(tmp_path / "run")
    put(first, 0, b"first")
    first.finish()
    first.forget()
    put(first, 0, b"second")
    first.finish()
    stems = sorted(path.name.rpartition("-")[2] for path in (tmp_path / "run/tensors").glob("*.jsonl"))
    assert stems == ["0.jsonl", "1.jsonl"]


FILLING = """
import resource, sys
from pathlib import Path
from tests.agent.test_tensor_writer import put, writer_in
writer, said = writer_in(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
for step in range(6):
    put(writer, step, bytes(300_000 if step == 3 else 1000))
    writer.end_step(step, ["train"])
    writer._hand_over() if not writer.has_ended else None
    writer._settle()
writer.finish()
print(said)
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_saving_and_nothing_else(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run([sys.executable, "-c", FILLING, run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no further tensors are saved: File too large" in done.stdout
    saved = Saved(run)
    assert {place[0] for place in saved.by_place} == {0, 1, 2}
    assert saved.lines[-1]["why"] == "disk-full"
    assert not list(run.rglob("*.partial"))


def reduced(array: Any) -> dict[str, float]:
    numbers = NumberArray(array.ctypes.data, array.size, array.dtype == "float64", array)
    return dict(zip(REDUCTIONS, TensorLibrary(str(trail_path())).reduce(numbers, REDUCTIONS), strict=True))


def test_reductions_are_those_of_the_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    names = ["min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2"]
    for dtype, size in itertools.product(("float32", "float64"), (1, 15, 16, 1003)):
        array = numpy.random.default_rng(3).normal(size=size).astype(dtype)
        found = reduced(array)
        for prefix, exact in (("", array.astype("float64")), ("abs_", abs(array.astype("float64")))):
            expected = {"l1": abs(exact).sum(), "l2": numpy.sqrt((exact**2).sum()), "variance": exact.var()}
            for name in names:
                wanted = expected.get(name, getattr(exact, name, lambda: None)())
                assert found[prefix + name] == pytest.approx(wanted, rel=1e-12, abs=1e-300), (dtype, prefix, name)
    found = reduced(numpy.array([1.0, numpy.nan, 3.0]))
    assert all(math.isnan(found[name]) for name in ("min", "max", "mean"))


def test_sums_are_added_in_the_documented_order() -> None:
    """Sixteen partial sums, each of every sixteenth number, for any alignment: the same bits on each machine."""
    numpy = pytest.importorskip("numpy")
    numbers = (numpy.random.default_rng(4).normal(size=5003) * 10.0 ** numpy.arange(5003).clip(0, 30)).astype("float32")
    for shift in range(4):
        room = numpy.zeros(4 * numbers.size + 4, dtype="uint8")
        array = room[shift : shift + 4 * numbers.size].view("float32")
        array[:] = numbers
        lanes, squares = [0.0] * 16, [0.0] * 16
        for place, number in enumerate(map(float, numbers)):
            lanes[place % 16] += number
            squares[place % 16] += number * number
        found = reduced(array)
        assert found["sum"] == functools.reduce(operator.add, lanes, 0.0)
        assert found["l2"] == math.sqrt(functools.reduce(operator.add, squares, 0.0))
