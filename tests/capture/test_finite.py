"""Numbers that are not finite, told by their bits: the same as PyTorch says."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest

from reprokit.agent.core import trail_library as trail
from reprokit.core.native import trail_path

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def library() -> trail.Library:
    """What tests where tensors lie."""
    return trail.Library(str(trail_path()))


def first_at(addresses: list[int], sizes: list[int], dtypes: list[str]) -> int | None:
    """The place of the first tensor that is not finite; an address of 0 is no tensor."""
    count = len(addresses)
    numbers = [
        number for size, dtype in zip(sizes, dtypes, strict=True) for number in (size, trail.FORMATS.get(dtype, 0))
    ]
    test = ctypes.CDLL(str(trail_path())).reprokit_trail_finite
    test.restype, test.argtypes = ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
    found: int = test((ctypes.c_uint64 * count)(*addresses), (ctypes.c_uint64 * (2 * count))(*numbers), count)
    return found if found < count else None


def first(*tensors: Any) -> int | None:
    return first_at([t.data_ptr() for t in tensors], [t.nbytes for t in tensors], [str(t.dtype)[6:] for t in tensors])


def not_finite(library: trail.Library, tensor: Any) -> tuple[int, int]:
    return library.not_finite(tensor.data_ptr(), tensor.nbytes, str(tensor.dtype)[6:])


def patterns(dtype: Any) -> Any:
    """Each pattern of bits of small formats; of large ones those at the edges, and some of any kind."""
    import torch

    size = dtype.itemsize // (2 if dtype.is_complex else 1)
    if size <= 2:
        whole = torch.arange(1 << 8 * size, dtype=torch.int32).to(torch.uint8 if size == 1 else torch.int16)
        return whole.view(torch.uint8).view(dtype)
    kind, bits, sign = (torch.int32, 23, 31) if size == 4 else (torch.int64, 52, 63)
    top = ((1 << sign - bits) - 1) << bits
    edges = [0, 1, top - 1, top, top + 1, top | 1 << bits - 1, (1 << sign) - 1]
    signed = [edge - negative * (1 << sign) for edge in edges for negative in (0, 1)]
    some = torch.randint(-(1 << sign), (1 << sign) - 1, (4098,), dtype=torch.int64).to(kind)
    return torch.cat([torch.tensor(signed, dtype=kind), some]).view(torch.uint8).view(dtype)


@pytest.mark.parametrize("name", [*trail.FORMATS, "int32", "bool"])
def test_each_pattern_of_bits_is_what_pytorch_says(library: trail.Library, name: str) -> None:
    import torch

    if not hasattr(torch, name):
        assert name == "float8_e4m3b11fnuz"  # TensorFlow's, through ml_dtypes
        return
    torch.manual_seed(1)
    dtype = getattr(torch, name)
    numbers = patterns(dtype) if name in trail.FORMATS else torch.ones(77, dtype=dtype)
    values = numbers if numbers.is_complex() or name in ("int32", "bool") else numbers.to(torch.float64)
    is_finite = torch.isfinite(values)
    assert not numbers.dtype.is_floating_point or (not is_finite.all() and is_finite.any())
    parts = torch.isfinite(torch.view_as_real(values).reshape(-1)) if values.is_complex() else is_finite
    bad = (~parts).nonzero().reshape(-1).tolist()
    found, place = not_finite(library, numbers)
    assert (found, place) == (len(bad), bad[0] if bad else 0)
    assert first(numbers) == (0 if bad else None)
    good = numbers[is_finite]
    assert first(good) is None
    for number in numbers[~is_finite][:300]:
        assert first(good[:200], number.reshape(1)) == 1


def test_one_bad_number_is_found_at_any_place_length_and_address(library: trail.Library) -> None:
    import torch

    for dtype in (torch.float8_e5m2, torch.float16, torch.float32, torch.float64):
        for length in (1, 2, 3, 7, 31, 32, 33, 64, 100, 257):
            bytes_of = torch.zeros(length * dtype.itemsize + 8, dtype=torch.uint8)
            for shift in (0, 1, 3) if length < 100 else (1,):
                room = (ctypes.c_char * (length * dtype.itemsize)).from_address(bytes_of.data_ptr() + shift)
                for place in range(length):
                    values = torch.zeros(length, dtype=torch.float64)
                    values[place] = -math.inf if place % 2 else math.nan
                    room.raw = bytes(values.to(dtype).view(torch.uint8).tolist())
                    address, size, name = ctypes.addressof(room), len(room), str(dtype)[6:]
                    assert first_at([address], [size], [name]) == 0
                    assert library.not_finite(address, size, name) == (1, place)
                room.raw = bytes(len(room))
                assert first_at([address], [size], [name]) is None


def test_several_tensors_of_which_some_are_not_there() -> None:
    import torch

    good, bad = torch.ones(1000), torch.tensor([1.0, math.inf])
    sizes, dtypes = [0, 4000, 8, 8], ["float32"] * 4
    assert first_at([0, good.data_ptr(), bad.data_ptr(), bad.data_ptr()], sizes, dtypes) == 2
    assert first_at([0, good.data_ptr(), 0, bad.data_ptr()], sizes, dtypes) == 3
    assert first_at([0, good.data_ptr(), 0, 0], sizes, dtypes) is None
    assert first_at([], [], []) is None
    large = torch.ones(trail.SMALL)
    assert first(good, large) is None
    large[-1] = math.nan
    assert first(good, large) == 1
