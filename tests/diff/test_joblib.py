"""joblib's files: arrays within the stream, however it is compressed, and the formats that cannot be read."""

from __future__ import annotations

import io
import random
from typing import Any

import joblib
import numpy as np
import pytest

from reprokit.core.errors import ArtifactDamaged
from reprokit.diff.elements import Limits
from reprokit.diff.formats import compressed
from reprokit.diff.formats.pickle import read
from reprokit.diff.sources import BytesSource
from tests.diff.objects import meaning, named, same, shown

WAYS = [0, ("zlib", 3), ("gzip", 3), ("bz2", 3), ("lzma", 3), ("xz", 3)]


def content() -> dict[str, Any]:
    return {
        "x": np.arange(300.0).reshape(3, 100),
        "f": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "big": np.arange(4, dtype=">f8"),
        "objects": np.array([1, "a", [2.5]], dtype=object),
        "dates": np.array(["2020-01-01"], dtype="M8[D]"),
        "empty": np.zeros((0, 3)),
        "scalar": np.float32(2),
        "text": "text",
    }


def dumped(item: object, way: Any = 0, protocol: int | None = None) -> bytes:
    file = io.BytesIO()
    joblib.dump(item, file, compress=way, protocol=protocol)
    return file.getvalue()


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("x", None, "x"),
        ("f", np.arange(6, dtype=np.int16).reshape(2, 3), ""),
        ("big", np.arange(4, dtype="<f8"), ""),
        ("objects", np.array([1, "a", [2.25]], dtype=object), "objects/2"),
        ("dates", np.array(["2020-01-02"], dtype="M8[D]"), "dates"),
        ("empty", np.zeros((3, 0)), "empty"),
        ("text", "test", "text"),
    ],
)
def test_what_changes_is_named(way: Any, key: str, value: Any, name: str) -> None:
    if value is None:
        value = content()[key]
        value[1, 2] = np.nextafter(value[1, 2], 900)
    found = named(dumped(content(), way), dumped({**content(), key: value}, way), "a.joblib")
    assert {other.removeprefix("content/") for other in found} == ({name} if name else set())
    if key == "x":
        assert "first at [1, 2]" in next(iter(found.values()))


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_compression_is_noise(way: Any) -> None:
    assert same(dumped(content()), dumped(content(), way), "a.joblib")
    other = {**content(), "x": content()["x"] + 1}
    assert named(dumped(content(), way), dumped(other), "a.joblib").keys() == {"x"}
    assert not same(dumped(content(), way)[:-9], dumped(content()), "a.joblib")


@pytest.mark.parametrize("protocol", range(6))
def test_protocols_and_alignment_mean_the_same(protocol: int) -> None:
    assert same(dumped(content()), dumped(content(), protocol=protocol), "a.joblib")


def test_no_flipped_bit_or_cut_is_missed() -> None:
    data = dumped({"x": np.arange(3.0), "o": np.array([1, "a"], dtype=object)})
    right = shown(read, data)
    generator = random.Random(1)
    begin = data.index(np.arange(3.0).tobytes())
    for place in {generator.randrange(8 * len(data)) for _ in range(400)}:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        if meaning(read, bytes(flipped)) == right:
            assert not begin <= place // 8 < begin + 24
    for length in range(len(data)):
        assert meaning(read, data[:length]) is None


def test_what_cannot_be_read_says_so() -> None:
    for data, words in ((b"\x04\x22\x4d\x18abc", "lz4"), (b"ZF0x3 ", "before 0.10")):
        with pytest.raises(ArtifactDamaged, match=words):
            list(compressed.joblib(BytesSource(data), Limits()))
        assert not same(data, data + b"x", "a.joblib")


def test_a_claim_of_more_than_there_is() -> None:
    data = dumped(np.arange(3.0))
    shape = data.index(b"K\x03\x85")
    with pytest.raises(ArtifactDamaged, match="bytes are to follow"):
        list(read(BytesSource(data[: shape + 1] + b"\x09" + data[shape + 2 :]), Limits()))


def test_a_bomb_within_is_refused() -> None:
    bomb = dumped(np.zeros(1 << 16), ("zlib", 9))
    [within] = [part for part in compressed.joblib(BytesSource(bomb), Limits(unpacked=1000)) if hasattr(part, "source")]
    with pytest.raises(ArtifactDamaged, match="unpacks to more than"):
        within.source.read(0, within.source.size)
