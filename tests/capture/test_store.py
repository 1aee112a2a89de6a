"""Snapshots as files: whole or not at all, bounded, readable with NumPy, and believed only when their digests fit."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as some

import reprokit.capture
from reprokit.agent.capture import (
    CaptureSession,
    Part,
    SnapshotContents,
    Store,
    StoreError,
    store,
    trees,
)
from reprokit.agent.capture.header import Trigger, in_words
from reprokit.agent.capture.settings import CaptureSettings
from reprokit.capture import BadSnapshot, files, report

TRIGGER = {"kind": "gradient", "name": "fc2.weight", "count": 12, "of": 5120, "where": [["/a/train.py", 7, "main"]]}


def part(name: str, values: Any, dtype: str) -> Part:
    array = numpy.ascontiguousarray(values)
    return Part(name, dtype, array.shape, array.nbytes, lambda: array.data.cast("B") if array.size else b"")


WEIGHT = numpy.arange(6, dtype="<f4").reshape(2, 3)


def contents(**more: Any) -> SnapshotContents:
    header = {"framework": "pytorch", "step": 1234, "rank": None, "trigger": TRIGGER, "pid": os.getpid(), **more}
    parts = [
        part("mask", [True, False, True], "BOOL"),
        part("model.weight", WEIGHT, "F32"),
        part("batch.z", numpy.array([1 + 2j, math.inf]), "C128"),
        part("empty", numpy.zeros((0, 4)), "F64"),
    ]
    return SnapshotContents(header, parts)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "run" / "snapshots"


@pytest.fixture
def snapshot(place: Path) -> Path:
    return Path(Store(str(place)).save(contents()))


def test_what_was_saved_is_read_again(snapshot: Path) -> None:
    assert snapshot.name == "step-00001234"
    assert (snapshot.stat().st_mode & 0o777, snapshot.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    assert {path.name: path.stat().st_mode & 0o777 for path in snapshot.iterdir()} == {
        "snapshot.json": 0o600,
        "tensors.safetensors": 0o600,
    }
    found = reprokit.capture.load(snapshot)
    assert (found.step, found.trigger) == (1234, "gradient of fc2.weight is not finite (12 of 5,120 elements)")
    assert set(found.tensors) == {"mask", "model.weight", "batch.z", "empty"}
    assert found.tensors["model.weight"].tobytes() == WEIGHT.tobytes()
    assert found.tensors["batch.z"].tolist() == [1 + 2j, complex(math.inf)]
    assert found.tensors["mask"].tolist() == [True, False, True]
    assert found.tensors["empty"].shape == (0, 4)
    with pytest.raises(ValueError, match="read-only"):
        found.tensors["model.weight"][0, 0] = 1


def test_other_readers_of_safetensors_take_the_file(snapshot: Path) -> None:
    data = (snapshot / "tensors.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    index = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert index["batch.z"] == {"dtype": "F64", "shape": [2, 2], "data_offsets": index["batch.z"]["data_offsets"]}
    offsets = sorted(entry["data_offsets"] for entry in index.values())
    assert [start for start, _ in offsets] == [0, *(end for _, end in offsets[:-1])], "without a hole"
    assert offsets[-1][1] == len(data) - 8 - length


def test_a_snapshot_has_the_next_free_name_and_ranks_have_their_own(place: Path) -> None:
    kept = Store(str(place), max_snapshots=2)
    names = [Path(kept.save(contents(rank=rank))).name for rank in (None, None, 0, 1)]
    assert names == ["step-00001234", "step-00001234-2", "step-00001234-rank0", "step-00001234-rank1"]
    with pytest.raises(StoreError, match="there are 2 already"):
        kept.save(contents())
    assert files.names(place) == sorted(names)


def test_two_captures_of_one_step_have_equal_digests(place: Path) -> None:
    moved = {**TRIGGER, "where": [["/b/train.py", 7, "main"]]}
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"trigger": moved, "pid": 1, "host": "other", "environment": {"a": 1}},
        {"losses": ["nan"]},
    )
    one, other, third = (store.read_header(Store(str(place)).save(contents(**more)))["digest"] for more in ways)
    assert one == other
    assert one != third


def test_the_size_is_looked_at_before_the_first_byte(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> bytes:
        raise AssertionError("it was read although there is no room")

    large = SnapshotContents({"step": 1}, [Part("w", "U8", (1 << 50,), 1 << 50, read)])
    with pytest.raises(StoreError, match=r"needs 1,125,899,906,\d+,?\d* bytes, and .* has only"):
        Store(str(place)).save(large)
    with pytest.raises(StoreError, match="1,000 are allowed"):
        Store(str(place), max_bytes=1000).save(large)
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_leaves_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here; RLIMIT_FSIZE below takes the same way")
    try:
        place = tmp_path / "snapshots"

        def fill() -> bytes:  # somebody else takes what was free a moment ago
            (tmp_path / "other").write_bytes(bytes(500 << 10))
            return bytes(300 << 10)

        parts = [Part(name, "U8", (300 << 10,), 300 << 10, fill) for name in ("first", "second")]
        with pytest.raises(StoreError, match=r"No space left .* after [0-9,]+ bytes: the tensors from second on"):
            Store(str(place)).save(SnapshotContents({"step": 1}, parts))
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_the_disk_has_no_room_for_goes_to_the_fallback(tmp_path: Path) -> None:
    place, other = tmp_path / "run" / "snapshots", tmp_path / "other"
    place.parent.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(tmp_path / "run")], check=False)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        parts = [Part("w", "U8", (300 << 10,), 300 << 10, lambda: bytes(300 << 10))]
        with pytest.raises(StoreError, match=r"[0-9,]+ bytes are missing \(--snapshot-fallback"):
            Store(str(place)).save(SnapshotContents({"step": 1}, parts))
        path = Store(str(place), fallback=str(other)).save(SnapshotContents({"step": 1}, parts))
        assert path == str(other / "run" / "step-00000001")
        assert store.SnapshotFile(path).tensors["w"].shape == (300 << 10,)
    finally:
        subprocess.run(["umount", str(tmp_path / "run")], check=True)


def test_a_limit_on_files_leaves_nothing(place: Path) -> None:
    code = f"""
import resource
from reprokit.agent.capture import Part, SnapshotContents, Store, StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
parts = [Part(name, "U8", (90_000,), 90_000, lambda: bytes(90_000)) for name in ("first", "second")]
try:
    Store({str(place)!r}).save(SnapshotContents({{"step": 1}}, parts))
except StoreError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "File too large after 100,000 bytes: the tensors from second on did not fit" in done.stdout
    assert list(place.iterdir()) == []


def test_a_tensor_that_cannot_be_read_leaves_nothing(place: Path) -> None:
    def interrupted() -> bytes:
        raise KeyboardInterrupt

    for read, wanted in ((interrupted, KeyboardInterrupt), (lambda: bytes(3), StoreError)):
        with pytest.raises(wanted):
            Store(str(place)).save(SnapshotContents({"step": 1}, [Part("w", "F32", (1,), 4, read)]))
    assert list(place.iterdir()) == []


# Snapshots from elsewhere


def rewrite(snapshot: Path, **changes: Any) -> None:
    """Change snapshot.json, and seal it again as somebody who means ill could."""
    header = json.loads((snapshot / "snapshot.json").read_text())
    header.update(changes)
    header["digest"] = store.comparable_digest(header)
    header["check"] = store.seal(header)
    (snapshot / "snapshot.json").write_text(json.dumps(header))


def index(snapshot: Path, entries: Any) -> None:
    """Another index in front of the same tensors."""
    place = snapshot / "tensors.safetensors"
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(64)
    place.write_bytes(data)
    facts = {"file": place.name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(snapshot, tensors=facts)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no header": (lambda place: (place / "snapshot.json").unlink(), "holds no snapshot.json"),
    "no tensors": (lambda place: (place / "tensors.safetensors").unlink(), "holds no tensors.safetensors"),
    "cut header": (lambda place: os.truncate(place / "snapshot.json", 99), "snapshot.json is cut short"),
    "cut tensors": (lambda place: os.truncate(place / "tensors.safetensors", 50), "tensors.safetensors is cut short"),
    "a bit of a tensor": (lambda place: flip(place / "tensors.safetensors", -1), "tensors.safetensors was altered"),
    "a word of the header": (
        lambda place: (place / "snapshot.json").write_text(
            (place / "snapshot.json").read_text().replace("1234", "1235")
        ),
        "snapshot.json was altered",
    ),
    "a newer format": (lambda place: rewrite(place, format=2), "upgrade reprokit"),
    "no format": (lambda place: rewrite(place, format="1"), "has no format"),
    "another file": (lambda place: rewrite(place, tensors={"file": "../../secret"}), "names no tensors.safetensors"),
    "a list": (lambda place: (place / "snapshot.json").write_text("[1]"), "no JSON object"),
    "deep": (lambda place: (place / "snapshot.json").write_text("[" * 100_000), "cut short or no JSON"),
    "not a number": (lambda place: (place / "snapshot.json").write_text('{"format": NaN}'), "cut short or no JSON"),
    "a long index": (lambda place: index(place, b'{"w": '), "Expecting value"),
    "no object": (lambda place: index(place, [1]), "the snapshot cannot be used"),
    "a type": (lambda place: index(place, entry(dtype="PICKLE")), "the entry of 'w'"),
    "a shape": (lambda place: index(place, entry(shape=[-2, -1])), "the entry of 'w'"),
    "a large shape": (lambda place: index(place, entry(shape=[1 << 62])), "do not fit"),
    "beyond the end": (lambda place: index(place, entry(offsets=[60, 68])), "do not fit"),
    "backwards": (lambda place: index(place, entry(offsets=[8, 0])), "do not fit"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_snapshot_is_refused_in_one_line(name: str, snapshot: Path) -> None:
    spoil, words = BAD[name]
    spoil(snapshot)
    with pytest.raises(BadSnapshot, match=words) as raised:
        reprokit.capture.load(snapshot)
    assert "\n" not in str(raised.value)


def test_no_link_and_no_pipe_is_followed(snapshot: Path, tmp_path: Path) -> None:
    header = snapshot / "snapshot.json"
    header.rename(tmp_path / "elsewhere")
    header.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadSnapshot, match="symbolic links"):
        reprokit.capture.load(snapshot)
    header.unlink()
    os.mkfifo(header)
    with pytest.raises(BadSnapshot, match="no regular file"):
        reprokit.capture.load(snapshot)
    with pytest.raises(BadSnapshot, match="is no directory"):
        reprokit.capture.load(snapshot / "tensors.safetensors")


# Nested values


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    label: Any


class Weird:
    pass


def put(value: Any) -> dict[str, Any] | None:
    return {"tensor": value.item()} if isinstance(value, numpy.ndarray) else None


def test_nested_values_come_back_as_they_were() -> None:
    odd = Weird()
    value = {
        "pair": Pair(1, [Sample(numpy.array("x"), None), b"\0\xff"]),
        ("a", 1): (True, -0.0, 2.5e-320, 10**400, 1 - 2j),
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "users": collections.UserDict({"k": "v"}),
        "text": "\udc80\u2028é",
        "odd": odd,
    }
    node = json.loads(json.dumps(trees.pack(value, put)))
    assert trees.leaf_contents(node) == ["x"]
    found = trees.unpack(node, lambda node: node["tensor"], like=value)
    assert found["pair"] == Pair(1, [Sample("x", None), b"\0\xff"])
    assert type(found["pair"]) is Pair
    assert found["ordered"] == value["ordered"]
    assert type(found["ordered"]) is collections.OrderedDict
    assert type(found["users"]) is collections.UserDict
    assert found["odd"] is odd, "what was left out is taken from the value of the same build"
    assert [str(number) for number in found[("a", 1)][:3]] == ["True", "-0.0", "2.5e-320"]
    alone = trees.unpack(node, lambda node: node["tensor"])
    assert alone["pair"].right[0]._fields == ("image", "label")
    assert alone["odd"] is None


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text() | some.integers(), inner) | some.tuples(inner),
    max_leaves=20,
)


@given(VALUES)
def test_any_plain_value_comes_back(value: Any) -> None:
    node = json.loads(json.dumps(trees.pack(value, put)))
    assert repr(trees.unpack(node, lambda node: node)) == repr(value)


def test_a_value_that_holds_itself_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "left_out" in json.dumps(trees.pack(endless, put))
    wide = trees.pack([0] * (trees.MAX_NODES + 5), put)
    assert wide["list"][-1] == {"left_out": "builtins.int"}


def hostile() -> Iterator[Any]:
    deep: Any = {"none": True}
    for _ in range(100):
        deep = {"list": [deep]}
    yield deep
    yield from (None, [], {}, {"list": 1}, {"dict": [[1]]}, {"dict": [[{"list": []}, {"none": True}]]}, {"integer": 5})
    yield from (
        {"integer": "x"},
        {"float": "1p"},
        {"bytes": "0"},
        {"complex": []},
        {"named": ["a", [[1, {"none": 1}]]]},
    )
    yield {"list": [{"none": True}], "tuple": []}


@pytest.mark.parametrize("node", list(hostile()))
def test_a_hostile_value_is_refused(node: Any) -> None:
    with pytest.raises(trees.BadTree):
        trees.unpack(node, lambda node: None)


def test_a_named_value_of_a_foreign_name_runs_nothing() -> None:
    node = {"named": ["os.system('x')", [["__class__", {"integer": "1"}], ["a b", {"integer": "2"}]]]}
    assert tuple(trees.unpack(node, lambda node: None)) == (1, 2)


# Small things


def test_small_floats_have_their_values(place: Path) -> None:
    every = bytes(range(256))
    kinds = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
    parts = [Part(kind, kind, (256,), 256, lambda: every) for kind in kinds]
    parts.append(Part("BF16", "BF16", (2,), 4, lambda: b"\xc0\x3f\x80\xff"))
    found = reprokit.capture.load(Store(str(place)).save(SnapshotContents({"step": 0}, parts))).tensors
    assert found["BF16"].tolist() == [1.5, -math.inf]
    numpy.testing.assert_array_equal(found["F8_E5M2"], (numpy.arange(256, dtype="<u2") << 8).view("<f2"))
    assert (found["F8_E4M3"][0x7E], found["F8_E4M3"][1], found["F8_E4M3"][0x38]) == (448, 2**-9, 1)
    assert numpy.isnan(found["F8_E4M3"][[0x7F, 0xFF]]).all()
    assert (found["F8_E4M3FNUZ"][0x7F], found["F8_E5M2FNUZ"][0x7F]) == (240, 57344)
    assert numpy.isnan([found["F8_E4M3FNUZ"][0x80], found["F8_E5M2FNUZ"][0x80], found["F8_E8M0"][0xFF]]).all()
    assert (found["F8_E8M0"][0], found["F8_E8M0"][127]) == (2.0**-127, 1)


@pytest.mark.parametrize("word", ["loss", "loss>", "loss>nan", "loss>1e999", "gradient-jump>x", "activation", ""])
def test_a_condition_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"condition|number"):
        CaptureSettings("d", conditions=[word])


def test_a_training_that_goes_on_is_not_drowned_in_lines(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capture = CaptureSession(CaptureSettings(str(place), action="skip"))
    for step in range(1000):
        capture.captured(step, "the loss is nan", None)
    lines = capfd.readouterr().err.splitlines()
    assert (
        lines[0] == "reprokit: captured: step 0: the loss is nan; there is no snapshot of it; the step was not applied"
    )
    assert (len(lines), lines[-1]) == (21, "reprokit: further captures are not reported (limit 20)")
    with pytest.raises(SystemExit) as raised:
        CaptureSession(CaptureSettings(str(place))).captured(1, "the loss is nan", None)
    assert raised.value.code == 123


def test_conditions_and_their_words() -> None:
    found = CaptureSettings("d", conditions=["loss\t> 10", "gradient-jump>5", " activations "]).conditions
    assert (found.loss_above, found.gradient_jump, found.activations) == (10, 5, True)
    assert in_words(Trigger.read({"kind": "loss", "what": "nan"})) == "the loss is nan"
    assert (
        in_words(Trigger.read({"kind": "condition", "what": "the loss is 11, above 10"})) == "the loss is 11, above 10"
    )
    assert in_words(Trigger.read({"kind": 5, "name": ["x"]})) == "nobody knows why"


# Whatever stands in a header that is sealed

HOSTILE: tuple[Any, ...] = (None, [], {}, [[]], "\x1b[2J", -1, 1e308, True, {"tensor": "nowhere"})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    if path:
        yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    found = json.loads(json.dumps(value))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return found


def test_any_header_is_shown_or_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = trees.pack({"x": [numpy.array("model.weight"), (1, 2.0, "t", b"b", None)]}, put)
    saved = Store(str(place)).save(
        contents(
            also=[TRIGGER],
            versions={"torch": "2"},
            models=[{"name": "m", "class": "C", "tensors": {"weight": "model.weight"}}],
            optimizers=[{"name": "o", "class": "C", "state": node}],
            batches=[{"from": "loader", "value": node, "samples": 2}],
            gradients={"weight": "model.weight"},
            gradient_digests={"weight": "00"},
            losses=["0x1p0", "nan"],
            loss={"value": "nan"},
            notes=["a note"],
        )
    )
    file = store.SnapshotFile(saved)
    header = dict(file.header)
    for path in places(header):
        for new in HOSTILE:
            file.header = replaced(header, path, new)
            report.print_snapshot(file)
            json.dumps(report.document(file))
            snapshot = reprokit.capture.Snapshot(file)
            assert isinstance(snapshot.trigger + snapshot.framework, str)
            for name in ("batches", "step", "gradients", "losses"):
                with contextlib.suppress(BadSnapshot):
                    getattr(snapshot, name)
    assert "\x1b" not in capsys.readouterr().out


def test_any_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"name": "self", "dtype": "float32", "shape": [2], "min": "0x0p0", "max": 1.0, "zeros": 1}
    result = {
        "reproduced": True,
        "trigger": TRIGGER,
        "gradients": {"equal": 1, "different": ["w"], "nonfinite_equal": True},
        "loss": {"value": "nan", "equal": False},
        "problems": ["p"],
        "samples": [1],
        "of": 2,
        "trials": 3,
        "smallest": True,
        "only_full": False,
        "phase": "forward",
        "operation": "aten::log",
        "operator": "aten::log",
        "layer": "l",
        "where": [["f", 1, "g"]],
        "inputs": [entry],
        "outputs": [entry],
        "words": "log of 0",
    }
    for path in places(result):
        for new in HOSTILE:
            for mode in ("reproduce", "minimize", "explain"):
                report.print_result(replaced(result, path, new), mode)
    assert "\x1b" not in capsys.readouterr().out
