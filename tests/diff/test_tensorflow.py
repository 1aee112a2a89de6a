"""TensorFlow's and Keras' files: what differs is named, what they hold besides is noise, and damage is found."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprokit.core.difference import Difference, Verdict
from reprokit.diff import tracker_files
from reprokit.diff.elements import Limits
from reprokit.diff.files import diff
from reprokit.diff.formats import checkpoint, messages, tensorflow_messages, tfrecord
from reprokit.diff.formats.sstable import crc32c, masked
from reprokit.diff.sources import BytesSource, open_file
from tests.diff.objects import leaves, meaning, same

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]
SCRIPT = Path(__file__).parent / "tensorflow_files.py"
TF114 = os.environ.get("REPROKIT_TF114_PYTHON")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training's files, and those of another training."""
    root = tmp_path_factory.mktemp("tensorflow")
    write(f"{root / 'a'}", f"{root / 'c'}=changed")
    return root


def write(*directories: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(SCRIPT), *directories], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def named(found: Difference) -> dict[str, str]:
    return {leaf.name: f"{leaf.left} | {leaf.right} | {leaf.detail}" for leaf in leaves(found)}


@pytest.mark.extended
def test_two_processes_write_the_same_but_for_noise(written: Path) -> None:
    write(f"{written / 'b'}")
    found = diff(written / "a", written / "b")
    assert named(found) == {}
    assert found.verdict is Verdict.IDENTICAL
    notes = {child.name: child.detail for child in found.children}
    assert notes["ckpt/model.data-00000-of-00001"] == "compared as part of ckpt/model.index"
    assert "all_model_checkpoint_timestamps/0" in notes["manager/checkpoint"]
    assert "uuid" in notes["saved/fingerprint.pb"]
    [events] = [detail for name, detail in notes.items() if name.startswith("logs/")]
    assert "step 1/wall_time" in events


FIRST = {
    "ckpt": ("model/optimizer/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE", "first at [1, 2]", "1 ULP"),
    "model.keras": ("model.weights.h5/layers/dense/vars/0", "first at [1, 2]", "1 ULP"),
    "model.h5": ("model_weights/d1/model/d1/kernel", "first at [1, 2]", "1 ULP"),
    "sliced": ("v/w[50:100, 0:3]", "first at [49, 1]", "1 of 150"),
    "first/model.ckpt-3": ("model.ckpt-3", "cannot be read as TensorFlow checkpoint V1", "save it again as V2"),
    "logs": ("step 1/summary/value/loss/tensor", "1.5", "1.000001"),
    "old_logs": ("step 4/summary/value/weights/histo/bucket", "first at [70]", "71"),
    "examples.tfrecord": ("1/features/feature/numbers/int64_list/value", "[1, 2]", "[1, 3]"),
    "packed.tfrecord": ("packed.tfrecord/0", "5 bytes", "7 bytes"),
}


@pytest.mark.parametrize("place", FIRST)
def test_what_differs_is_named(written: Path, place: str) -> None:
    [(name, text)] = named(diff(written / "a" / place, written / "c" / place)).items()
    end, *pieces = FIRST[place]
    assert name.endswith(end)
    for piece in pieces:
        assert piece.replace("1.000001", "1.500001") in text


def test_a_constant_of_a_saved_model_is_named(written: Path) -> None:
    found = named(diff(written / "a" / "saved", written / "c" / "saved"))
    constants = [name for name in found if name.endswith("/attr/value/tensor")]
    assert constants
    for name in constants:
        assert "/node_def/Const" in name
        assert "first at [7]" in found[name]
    assert {name.partition("/")[0] for name in found} == {"saved_model.pb"}


def test_scalars_of_events_are_read_as_metrics(written: Path) -> None:
    found = [
        tracker_files.read(str(path), open_file(path))
        for path in sorted((written / "a").rglob("events.out.tfevents.*"))
    ]
    assert {one.problem for one in found} == {""}
    series = {name: points for one in found for name, points in one.series.items()}
    assert [(point.step, point.dtype, point.number) for point in series["accuracy"]] == [(4, "float32", 0.5)]
    assert [(point.step, point.number) for point in series["loss"]] == [(step, step + 0.5) for step in range(3)]
    assert set(series) == {"accuracy", "loss"}


def copied(written: Path, tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(written / "a" / "ckpt", tmp_path / "left")
    shutil.copytree(written / "a" / "ckpt", tmp_path / "right")
    return tmp_path / "left", tmp_path / "right"


def test_equal_indices_over_other_data_are_told_apart(written: Path, tmp_path: Path) -> None:
    """Both by the tensor, and also where only the index was named."""
    left, right = copied(written, tmp_path)
    shard = right / "model.data-00000-of-00001"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    for one, other in ((left, right), (left / "model.index", right / "model.index")):
        found = diff(one, other)
        assert found.verdict is Verdict.DIFFERENT
        assert list(named(found)) != []


def test_a_missing_shard_is_said(written: Path, tmp_path: Path) -> None:
    left, right = copied(written, tmp_path)
    (right / "model.data-00000-of-00001").unlink()
    found = named(diff(left, right))
    assert found["model.data-00000-of-00001"].endswith("only the left directory has it")
    assert any("which is not there" in text for text in found.values())
    (left / "model.data-00000-of-00001").unlink()
    assert diff(left, right).verdict is Verdict.IDENTICAL


def test_a_wrong_sum_is_damage(written: Path, tmp_path: Path) -> None:
    """The same damage on both sides, in files that differ in nothing else, is no reason to call them equal."""
    left, right = copied(written, tmp_path)
    for side in (left, right):
        shard = side / "model.data-00000-of-00001"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    found = diff(left / "model.index", right / "model.index")
    assert found.verdict is Verdict.DIFFERENT
    assert "CRC-32C" in found.detail


@pytest.mark.extended
def test_every_cut_and_many_flips_of_an_index_are_found(written: Path) -> None:
    data = (written / "a" / "sliced" / "model-3.index").read_bytes()
    right = meaning(checkpoint.read, data)
    assert right is not None
    for length in range(len(data)):
        assert meaning(checkpoint.read, data[:length]) is None
    for damaged in flipped(data, 300):
        assert meaning(checkpoint.read, damaged) in (None, right)  # the padding of the footer is nobody's
        if meaning(checkpoint.read, damaged) == right:
            assert damaged[:-48] == data[:-48]


def flipped(data: bytes, count: int) -> Iterator[bytes]:
    generator = random.Random(1)
    for place in sorted({generator.randrange(8 * len(data)) for _ in range(count)}):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)


@pytest.mark.parametrize("name", ["saved/saved_model.pb", "examples.tfrecord", "model.keras", "sliced/model-3.meta"])
def test_no_flipped_bit_is_missed(written: Path, name: str) -> None:
    data = (written / "a" / name).read_bytes()
    for damaged in flipped(data, 6 if name.endswith(".keras") else 25):
        if same(data, damaged, name.rpartition("/")[2]):
            assert name.endswith(".keras")  # time stamps of the zip


def test_records_are_checked_at_every_byte(written: Path) -> None:
    data = (written / "a" / "examples.tfrecord").read_bytes()
    for length in range(len(data)):
        assert (meaning(tfrecord.read, data[:length]) is None) == (length % (len(data) // 3) != 0)
    for damaged in flipped(data, 200):
        assert meaning(tfrecord.read, damaged) is None


def test_only_minus_one_is_an_unknown_length() -> None:
    def shown(last: bytes) -> str:
        shape = b"\x12\x0b\x08" + b"\xff" * 8 + last + b"\x01"
        walker = tensorflow_messages.walker(BytesSource(b"\x12\x0d" + shape), Limits())
        return "".join(str(part) for part in walker.message("", "TensorSpecProto"))

    assert "[?]" in shown(b"\xff")
    assert len({shown(bytes([last])) for last in (0xFF, 0xFE, 0xBF)}) == 3


def test_absurd_lengths_and_deep_messages_are_refused() -> None:
    def record(data: bytes) -> bytes:
        head = struct.pack("<Q", len(data))
        return head + sums(head) + data + sums(data)

    def sums(data: bytes) -> bytes:
        return struct.pack("<I", masked(crc32c(data)))

    huge = struct.pack("<Q", 1 << 62)
    assert meaning(tfrecord.read, huge + sums(huge) + bytes(100)) is None
    version = b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2"
    assert meaning(tfrecord.read, record(version)) is not None
    nested = b""
    for _ in range(3000):
        nested = field(2, nested)  # types of types
    nested = field(4, field(1, field(7, nested)))
    long_length, long_text = b"\x2a" + varint(1 << 40), b"\x2a\x05\x0a\xff\xff\xff\x7f"
    for data in (b"\x80" * 11, b"\x0b", b"\xff" * 9 + b"\x7f", long_length, long_text, nested):
        assert meaning(tfrecord.read, record(version) + record(data)) is None


def field(number: int, content: bytes) -> bytes:
    return varint(8 * number + 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.slow
@pytest.mark.skipif(TF114 is None, reason="REPROKIT_TF114_PYTHON is not set")
@pytest.mark.tf114
def test_checkpoints_of_tensorflow_1(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "trainings" / "tensorflow1_saved.py"
    for name, number in (("a", "4"), ("b", "4"), ("c", "5")):
        (tmp_path / name).mkdir()
        command = [str(TF114), str(script), str(tmp_path / name), number]
        environment = {name: value for name, value in os.environ.items() if name != "TF2_BEHAVIOR"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
    assert named(diff(tmp_path / "a", tmp_path / "b")).keys() <= {"checkpoint/model_checkpoint_path/0"} | {
        "checkpoint/all_model_checkpoint_paths/0"
    }
    found = named(diff(tmp_path / "a", tmp_path / "c"))
    assert "first at [1, 1]" in found["model-7.index/v"]
    assert any(name.startswith("model-7.meta/graph_def/node/v/initial_value") for name in found)


def test_the_schema_is_that_of_tensorflow(written: Path) -> None:
    """Every field by its number and name."""
    theirs = {tuple(line.split()) for line in (written / "a.schema").read_text().splitlines()}
    schema = tensorflow_messages.SCHEMA
    ours = {(name, str(number), kind.name) for name, kinds in schema.items() for number, kind in kinds.items()}
    assert len(theirs) > 200
    assert theirs <= ours
    types = {kind.type for kinds in schema.values() for kind in kinds.values()}
    assert types <= {*messages.NUMBERS, "string", "bytes", *schema}
