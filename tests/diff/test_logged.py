"""Metrics in the files of experiment trackers: read as they were logged, without times and ids, and within bounds.

digits-1.wandb and digits-2.wandb are what wandb 0.31 wrote offline in a recording and in its replay, less the records
that name the machine.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pytest

from reprokit.core.difference import Verdict
from reprokit.diff import tracker_files
from reprokit.diff.elements import Limits
from reprokit.diff.files import diff
from reprokit.diff.formats import wandb
from reprokit.diff.formats.sstable import crc32c, masked
from reprokit.diff.sources import BytesSource, open_file
from reprokit.diff.tracker_files import MLFLOW, TENSORBOARD, WANDB, WANDB_SUMMARY, Logged, LogPoint

HERE = Path(__file__).parent
GOLD = [HERE / "digits-1.wandb", HERE / "digits-2.wandb"]


def field(number: int, content: bytes) -> bytes:
    return varint(8 * number + 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def item(key: str, text: str) -> bytes:
    return field(1, field(2, key.encode()) + field(16, text.encode()))


def framed(*records: bytes) -> bytes:
    """A file of these records, cut where blocks end, as the description of LevelDB's logs has it."""
    found = bytearray(wandb.MAGIC)
    for record in records:
        place, is_first = 0, True
        while is_first or place < len(record):
            room = wandb.BLOCK - len(found) % wandb.BLOCK
            if room < wandb.HEAD:
                found += bytes(room)
                continue
            piece = record[place : place + room - wandb.HEAD]
            place += len(piece)
            kind = {(1, 1): 1, (1, 0): 2, (0, 0): 3, (0, 1): 4}[is_first, place >= len(record)]
            found += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            is_first = False
    return bytes(found)


def history(step: int, **values: str) -> bytes:
    items = b"".join(item(key, text) for key, text in {**values, "_step": str(step)}.items())
    return varint(8) + varint(step) + field(2, items)


def event(step: int, tag: str, value: bytes, wall_time: float = 1.0) -> bytes:
    """A record of TensorBoard's with one value."""
    summary = field(1, field(1, tag.encode()) + value)
    return tfrecord(b"\x09" + struct.pack("<d", wall_time) + b"\x10" + varint(step) + field(5, summary))


def version(wall_time: float = 1.0) -> bytes:
    """The first record of such a file."""
    return tfrecord(b"\x09" + struct.pack("<d", wall_time) + field(3, b"brain.Event:2"))


def tfrecord(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(crc32c(head))) + data + struct.pack("<I", masked(crc32c(data)))


def read(path: str, data: bytes) -> Logged:
    return tracker_files.read(path, BytesSource(data))


def numbers(found: Logged, name: str) -> list[tuple[int, object]]:
    return [(point.step, point.number) for point in found.series[name]]


@pytest.mark.parametrize("path", GOLD)
def test_what_wandb_wrote_is_read_by_step_and_key(path: Path) -> None:
    found = tracker_files.read(str(path), open_file(path))
    assert (found.kind, found.problem) == (WANDB, "")
    assert list(found.series) == ["loss", "nested.a", "text", "bad", "inf"]
    assert [point.step for point in found.series["loss"]] == [0, 1, 2, 3, 4]
    assert str(found.series["loss"][0]) == "1.8055637373539595 (3ffce396cd2c75ec)"
    assert [str(point) for point in found.series["nested.a"]] == ["0", "1", "2", "3", "4"]
    assert str(found.series["bad"][0]) == "nan (7ff8000000000000)"
    assert found.series["inf"][0].step == 9


def test_two_files_of_wandb_that_differ_in_times_and_ids_are_the_same() -> None:
    assert GOLD[0].read_bytes() != GOLD[1].read_bytes()
    found = diff(GOLD[0], GOLD[1])
    assert found.verdict is Verdict.IDENTICAL
    assert "_timestamp" in found.detail


def test_a_changed_value_of_a_file_of_wandb_is_named(tmp_path: Path) -> None:
    records = list(wandb.records(open_file(GOLD[0]), Limits()))
    other = tmp_path / "other.wandb"
    other.write_bytes(framed(*[one.replace(b"1.4809287638550706", b"1.4809287638550707") for one in records]))
    found = diff(GOLD[0], other)
    assert found.first() is not None
    assert str(found.first().name).endswith("step 2/loss")  # type: ignore[union-attr]


def test_records_that_blocks_cut_are_put_together() -> None:
    sizes = [1, 40_000, 7, 32_768 - 7, 32_768 - 14, 100_000, 3]
    records = [history(step, text='"' + "x" * size + '"', loss=str(size / 8)) for step, size in enumerate(sizes)]
    found = read("run-1.wandb", framed(*records))
    assert numbers(found, "loss") == [(step, size / 8) for step, size in enumerate(sizes)]
    assert not found.problem


def test_a_file_that_is_cut_short_is_read_up_to_there() -> None:
    records = [history(step, loss=f"{step}.5") for step in range(50)]
    ends = [len(framed(*records[:count])) for count in range(51)]
    for length in range(7, ends[-1], 41):
        found = read("a.wandb", framed(*records)[:length])
        whole = sum(end <= length for end in ends) - 1
        assert (len(found.series.get("loss", [])), bool(found.problem)) == (whole, length not in ends)


def test_damage_is_said_and_never_raised() -> None:
    data = bytearray(GOLD[0].read_bytes())
    generator = random.Random(1)
    for _ in range(100):
        place = generator.randrange(len(data))
        damaged = bytes(data[:place] + bytes([data[place] ^ 1 << generator.randrange(8)]) + data[place + 1 :])
        assert read("a.wandb", damaged).problem


def test_hostile_messages_within_right_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(2)
    for _ in range(200):
        read("a.wandb", framed(generator.randbytes(40), field(2, generator.randbytes(30))))
    monkeypatch.setattr(tracker_files, "MOST_SERIES", 10)
    many = read("a.wandb", framed(history(0, **{f"k{number}": "1" for number in range(20)})))
    assert (len(many.series), "series" in many.problem) == (10, True)
    monkeypatch.setattr(tracker_files, "MOST_POINTS", 5)
    long = read("a.wandb", framed(*[history(step, loss="1") for step in range(20)]))
    assert (len(long.series["loss"]), "values" in long.problem) == (5, True)


def test_numbers_count_by_their_bits_and_not_by_their_spelling() -> None:
    one, other = (read("a.wandb", framed(history(0, a=text))) for text in ("1e2", "100.0"))
    assert one.series == other.series
    whole = read("a.wandb", framed(history(0, a="100")))
    assert whole.series != one.series
    assert whole.series["a"] == [LogPoint(0, "int", struct.pack("<q", 100))]


def test_scalars_of_tensorboard_of_both_kinds() -> None:
    old = b"\x15" + struct.pack("<f", 0.25)
    content = field(8, b"\x08\x01" + field(2, b"") + field(4, struct.pack("<f", 0.5)))
    listed = field(8, b"\x08\x02" + field(6, struct.pack("<d", 0.1)))
    zero, vector = field(8, b"\x08\x01"), field(8, b"\x08\x01" + field(2, field(2, b"\x08\x02")) + field(4, bytes(8)))
    text = field(8, b"\x08\x07" + field(8, b"hello"))
    values = {"old": old, "content": content, "listed": listed, "zero": zero, "vector": vector, "text": text}
    data = b"".join(event(step, tag, value) for step, (tag, value) in enumerate(values.items()))
    found = read("events.out.tfevents.1.here.2.0", data)
    assert (found.kind, found.problem) == (TENSORBOARD, "")
    assert [(name, *numbers(found, name)) for name in found.series] == [
        ("old", (0, 0.25)),
        ("content", (1, 0.5)),
        ("listed", (2, 0.1)),
        ("zero", (3, 0.0)),
    ]
    cut = read("events.out.tfevents.1.here.2.0", data[:-5])
    assert len(cut.series) == 4
    assert cut.problem


def test_metrics_of_mlflow_s_file_store() -> None:
    name = f"mlruns/0/{'a' * 32}/metrics/val/loss"
    found = read(name, b"1795283445923 1.5 0\n1795283445924 nan 3\n1795283445925 -inf 4\n")
    assert (found.kind, list(found.series)) == (MLFLOW, ["val/loss"])
    assert [str(point).split()[0] for point in found.series["val/loss"]] == ["1.5", "nan", "-inf"]
    assert read(name, b"1 2.0 0\nbroken\n").problem == "line 2 is no time, value and step"


def test_the_summary_of_wandb_without_what_is_noise() -> None:
    found = read("wandb/files/wandb-summary.json", b'{"best": 0.5, "_runtime": 3, "_wandb": {"runtime": 3}, "n": 4}')
    assert (found.kind, list(found.series)) == (WANDB_SUMMARY, ["best", "n"])
    assert read("wandb-summary.json", b"[" * 100_000).problem


def test_other_files_hold_no_metrics() -> None:
    names = ["model.bin", "wandb.py", "events.json", "metrics/loss", f"{'g' * 32}/metrics/loss"]
    assert [tracker_files.kind_of(name) for name in names] == [""] * len(names)
