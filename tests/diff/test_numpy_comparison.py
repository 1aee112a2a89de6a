"""What NumPy compares where nothing was compiled is what the library compares, in every field."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from reprokit.core import dtypes, native
from reprokit.core.errors import ExtraMissing
from reprokit.core.numpy_comparison import NumpyComparison

NAMES = [*dict.fromkeys(dtype.name for dtype in dtypes._NAMED.values()), "raw3", "raw16"]
TOLERANCES = [(0.0, 0.0, 0), (1e-3, 0.0, 0), (0.0, 1.0, 0), (0.0, 0.0, 3), (1e300, 1e300, (1 << 64) - 1)]


@pytest.fixture(scope="module")
def libraries() -> tuple[Any, Any, Any]:
    ffi, library = native.artifacts()
    return ffi, library, NumpyComparison(ffi)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same bytes with few or many bits changed."""
    new = bytearray(data)
    for _ in range(chance.choice((0, 1, 20, len(new)))):
        new[chance.randrange(len(new))] ^= 1 << chance.randrange(8)
    return bytes(new)


@pytest.mark.parametrize("name", NAMES)
def test_both_measure_the_same(libraries: tuple[Any, Any, Any], name: str) -> None:
    ffi, *both = libraries
    dtype, chance = dtypes.named(name), random.Random(name)
    form = dtypes.native_format(dtype)
    size = dtype.element_size
    for tolerance in TOLERANCES * 3:
        results = []
        count = chance.randrange(1, 700)
        left = bytes(chance.choice((0, 1, 127, 128, 255, chance.randrange(256))) for _ in range(count * size))
        right, orders = mutated(left, chance), (chance.random() < 0.5, chance.random() < 0.5)
        for library in both:
            measured, limits = ffi.new("struct rka_measured *"), ffi.new("struct rka_tolerance *", tolerance)
            for base in (0, count):  # twice: what is measured is added to
                buffers = ffi.from_buffer(left), orders[0], ffi.from_buffer(right), orders[1]
                library.rka_compare(form, limits, *buffers, count, base, measured)
            results.append(bytes(ffi.buffer(measured)))
        assert results[0] == results[1]


def test_both_copy_and_find_the_same(libraries: tuple[Any, Any, Any]) -> None:
    ffi, *both = libraries
    chance = random.Random(4)
    for _ in range(50):
        data = chance.randbytes(chance.randrange(1, 400))
        other = mutated(data, chance)
        pieces = [ffi.from_buffer(side) for side in (data, other)]
        bits = chance.choice((2, 4))
        first = chance.randrange(len(data))
        count = chance.randrange(len(data) * 8 // bits - first)
        shape = [chance.randrange(1, 4) for _ in range(chance.randrange(4))]
        strides = [chance.randrange(1, 5) for _ in shape]
        outcomes = []
        for library in both:
            codes, box = ffi.new("unsigned char[]", count + 1), ffi.new("unsigned char[]", 200)
            library.rka_unpack(bits, first, count, pieces[0], codes)
            source = ffi.from_buffer(bytes(range(200)))
            lengths, steps = ffi.new("uint64_t[]", shape or [1]), ffi.new("int64_t[]", strides or [0])
            packed = ffi.new("int64_t[]", [4 * 4, 4, 1][3 - len(shape) :] or [0])
            library.rka_gather(3, len(shape), lengths, steps, packed, source, box)
            sums = library.rka_first_other(*pieces, len(data)), library.rka_count_other(*pieces, len(data))
            outcomes.append((bytes(codes), bytes(box), *sums, library.rka_crc32c(7, pieces[0], len(data))))
        assert outcomes[0] == outcomes[1]


def test_without_the_library_and_numpy_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert isinstance(native.artifacts.__wrapped__()[1], NumpyComparison)
    monkeypatch.delitem(sys.modules, "reprokit.core.numpy_comparison")
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ExtraMissing, match=r"needs numpy: pip install numpy$"):
        native.artifacts.__wrapped__()
