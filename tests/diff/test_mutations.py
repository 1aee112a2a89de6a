"""Files with one bit, one piece or one member changed are found to be different, and what changed is named."""

from __future__ import annotations

import random
import re
import struct
from typing import Any

import numpy as np
import pytest

from tests.diff import samples
from tests.diff.samples import Sample, diff

pytestmark = pytest.mark.slow

FLIPS = 60  # of each file
ACCIDENT = re.compile(r"\b[A-Z]\w*(Error|Exception)\b")  # what a reader did not foresee


def content(sample: Sample, data: bytes) -> Any:
    """What a file holds, or that it is damaged."""
    try:
        return sample.read(data)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("sample", samples.samples(), ids=lambda sample: sample.name)
def test_no_flipped_bit_is_missed(sample: Sample) -> None:
    whole = sample.read(sample.data)
    generator = random.Random(sample.name)
    for place in {generator.randrange(8 * len(sample.data)) for _ in range(FLIPS)}:
        mutated = bytearray(sample.data)
        mutated[place // 8] ^= 1 << place % 8
        found = diff(sample.data, bytes(mutated), sample.name)
        assert not ACCIDENT.search(found.detail), found.detail
        if content(sample, bytes(mutated)) != whole:
            assert found.verdict.differs, f"bit {place % 8} of byte {place // 8}"


@pytest.mark.parametrize("sample", samples.samples(), ids=lambda sample: sample.name)
def test_no_cut_swapped_or_doubled_piece_is_missed(sample: Sample) -> None:
    whole = sample.read(sample.data)
    generator = random.Random(sample.name)
    data = sample.data
    for _ in range(25):
        start, end = sorted(generator.randrange(len(data) + 1) for _ in range(2))
        middle = generator.randrange(start, end + 1)
        for mutated in (
            data[:end],
            data[:start] + data[middle:end] + data[start:middle] + data[end:],
            data[:end] + data[start:],
            data[:start] + data[end:],
        ):
            if content(sample, mutated) != whole:
                found = diff(data, mutated, sample.name)
                assert found.verdict.differs
                assert not ACCIDENT.search(found.detail), found.detail


def stored(content: samples.Arrays, kind: str) -> bytes:
    if kind == "safetensors":
        return samples.safetensors(content)
    return samples.npz(content, compressed=kind == "packed")


@pytest.mark.parametrize("kind", ["safetensors", "stored", "packed"])
def test_every_bit_and_every_swap_is_named_with_its_tensor_and_index(kind: str) -> None:
    generator = np.random.default_rng(3)
    before: samples.Arrays = {"a": generator.normal(size=(2, 3)).astype(np.float32), "b/c": generator.normal(size=4)}
    whole = stored(before, kind)
    mutations = 0
    for name, array in before.items():
        for at in range(array.size):
            for bit in range(0, 8 * array.itemsize, 5):
                changed = array.copy()
                changed.reshape(-1).view(f"u{array.itemsize}")[at] ^= np.array(1 << bit, f"u{array.itemsize}")
                assert_named(whole, stored({**before, name: changed}, kind), name, at, 1, array.shape)
                mutations += 1
            swapped = array.copy()
            swapped.flat[[at, (at + 1) % array.size]] = array.flat[[(at + 1) % array.size, at]]
            assert_named(whole, stored({**before, name: swapped}, kind), name, at % (array.size - 1), 2, array.shape)
    assert mutations > 80


def assert_named(left: bytes, right: bytes, name: str, at: int, count: int, shape: tuple[int, ...]) -> None:
    [leaf] = diff(left, right, "m").leaves()
    assert leaf.name == f"m/{name}"
    first = [int(index) for index in np.unravel_index(at, shape)]
    assert (leaf.figures["differing"], leaf.figures["first"]) == (count, first)
    assert leaf.left != leaf.right


@pytest.mark.parametrize("kind", ["safetensors", "stored", "packed"])
def test_missing_renamed_reshaped_and_retyped_tensors_are_named(kind: str) -> None:
    before: samples.Arrays = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(6)}

    def leaves(after: samples.Arrays) -> list[tuple[str, str, str]]:
        found = diff(stored(before, kind), stored(after, kind), "m").leaves()
        return [(leaf.name, leaf.left, leaf.right) for leaf in found]

    assert leaves({"a": before["a"]}) == [("m/b", "float64 [6]", "")]
    assert leaves({"a": before["a"], "c": before["b"]}) == [("m/b", "float64 [6]", "float64 [6]")]
    assert leaves({**before, "a": np.zeros((3, 2), np.float32)}) == [("m/a", "float32 [2, 3]", "float32 [3, 2]")]
    assert leaves({**before, "b": np.zeros(6, int)}) == [("m/b", "float64 [6]", "int64 [6]")]


def test_signs_of_zero_and_payloads_of_nan_are_told_from_other_differences() -> None:
    left = np.array([0.0, struct.unpack("<f", b"\x01\x00\xc0\x7f")[0], 1, np.inf, 2, -1e-45], np.float32)
    right = np.array([-0.0, struct.unpack("<f", b"\x02\x00\xc0\x7f")[0], np.nan, 1, -2, 1e-45], np.float32)
    [leaf] = diff(samples.npy(left), samples.npy(right), "x.npy").leaves()
    kinds = ("zero_sign_only", "nan_payload_only", "nan", "infinite", "sign_change")
    assert [leaf.figures[kind] for kind in kinds] == [1, 1, 1, 1, 2]
    assert leaf.figures["largest_absolute"] == {"value": 4.0, "at": [4]}
    assert (leaf.left, leaf.right) == ("0", "-0")
