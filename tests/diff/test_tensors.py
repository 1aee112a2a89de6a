"""The comparison of tensors against NumPy and ml_dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reprokit.core import dtypes, native
from reprokit.core.errors import ArtifactDamaged
from reprokit.core.numpy_comparison import NumpyComparison
from reprokit.core.tolerance import Tolerance
from reprokit.diff import tensors
from reprokit.diff.descriptions import element
from reprokit.diff.elements import Limits, TensorPart
from reprokit.diff.sources import BytesSource
from reprokit.diff.tensors import TensorStatistics, bucket_name, multi_index
from tests.support import rest_slow

LIMITS = Limits()
SMALL_FLOATS = [
    "bfloat16",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e8m0fnu",
    "float6_e2m3fn",
    "float6_e3m2fn",
    "float4_e2m1fn",
]
FLOATS = ["float64", "float32", "float16", *SMALL_FLOATS]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
TINY = ["int2", "uint2", "int4", "uint4"]


@pytest.fixture(scope="module", params=rest_slow(["native", "numpy"]), autouse=True)
def library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything is compared by the native library, and by what takes its place where nothing could be compiled."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "numpy":
            ffi, _ = native.artifacts()
            patched.setattr(native, "artifacts", lambda: (ffi, NumpyComparison(ffi)))
        yield


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name)) if name in SMALL_FLOATS or name in TINY else np.dtype(name)


def tensor(array: np.ndarray[Any, Any], name: str = "", **more: Any) -> TensorPart:
    """An array as a tensor over a copy of its bytes in C order."""
    dtype = name or array.dtype.name
    return TensorPart("t", dtype, array.shape, BytesSource(np.ascontiguousarray(array).tobytes()), **more)


def compare(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], name: str = "") -> TensorStatistics:
    return tensors.compare(tensor(left, name), tensor(right, name), LIMITS)


def codes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(f"u{array.dtype.itemsize}")


def ordered(array: np.ndarray[Any, Any], bits: int, *, unsigned: bool) -> list[int]:
    """Each float as the integer of which neighbors are one apart."""
    sign = 0 if unsigned else 1 << (bits - 1)
    return [-(int(code) & ~sign) if int(code) & sign else int(code) for code in codes(array).ravel()]


def oracle(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any], name: str) -> dict[str, Any]:
    """What differs, by NumPy: float64 holds every value of all types but the wide integers."""
    dtype = dtypes.named(name)
    mask = (1 << dtype.bits) - 1
    differs = np.flatnonzero(codes(left).ravel() != codes(right).ravel())
    wide = [side.ravel().astype(np.float64) for side in (left, right)]
    units = [ordered(side, dtype.bits, unsigned=dtype.exponents_only) for side in (left, right)]
    assert all(int(code) <= mask for side in (left, right) for code in codes(side).ravel())
    finite = [i for i in differs if all(np.isfinite(side[i]) for side in wide)]
    with np.errstate(all="ignore"):
        absolute = [abs(wide[0][i] - wide[1][i]) for i in finite]
    ulp = [abs(units[0][i] - units[1][i]) for i in finite]
    return {
        "differing": len(differs),
        "first": int(differs[0]) if len(differs) else None,
        "nan_payload": sum(all(np.isnan(side[i]) for side in wide) for i in differs),
        "nan": sum(sum(bool(np.isnan(side[i])) for side in wide) == 1 for i in differs),
        "zero_sign": sum(wide[0][i] == 0 and wide[1][i] == 0 for i in finite),
        "absolute": max(absolute, default=None),
        "absolute_at": int(finite[int(np.argmax(absolute))]) if absolute else None,
        "ulp": max(ulp, default=None),
        "ulp_at": int(finite[ulp.index(max(ulp))]) if ulp else None,
    }


def found(statistics: TensorStatistics) -> dict[str, Any]:
    absolute, ulp = statistics.absolute, statistics.ulp
    return {
        "differing": statistics.differing,
        "first": statistics.first,
        "nan_payload": statistics.nan_payload,
        "nan": statistics.nan,
        "zero_sign": statistics.zero_sign,
        "absolute": absolute.value if absolute else None,
        "absolute_at": absolute.at if absolute else None,
        "ulp": ulp.whole if ulp else None,
        "ulp_at": ulp.at if ulp else None,
    }


@st.composite
def pairs(draw: st.DrawFn, names: list[str]) -> tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A type and two arrays of arbitrary bits that agree in some places."""
    name = draw(st.sampled_from(names))
    dtype = numpy_type(name)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    top = (1 << dtypes.named(name).bits) - 1
    shape = draw(arrays.array_shapes(max_dims=3, max_side=6))
    some = st.integers(0, top) | st.sampled_from([0, 1, top, top >> 1, (top >> 1) + 1])
    left = draw(arrays.arrays(unsigned, shape, elements=some))
    other = draw(arrays.arrays(unsigned, shape, elements=some))
    return name, left.view(dtype), np.where(draw(arrays.arrays(bool, shape)), left, other).view(dtype)


@settings(max_examples=300, deadline=None)
@given(pairs(FLOATS))
def test_floats_of_any_bits_are_measured_as_numpy_does(
    pair: tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    name, left, right = pair
    statistics = compare(left, right, name)
    assert found(statistics) == oracle(left, right, name)
    special = statistics.nan + statistics.nan_payload + statistics.infinite
    counted = sum(statistics.histogram) + statistics.sign_change + statistics.zero_sign + special
    assert counted == statistics.differing


@settings(max_examples=150, deadline=None)
@given(pairs(INTEGERS))
def test_integers_have_exact_distances(pair: tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> None:
    name, left, right = pair
    statistics = compare(left, right, name)
    apart = [abs(int(a) - int(b)) for a, b in zip(left.ravel(), right.ravel(), strict=True)]
    assert statistics.differing == np.count_nonzero(left != right)
    assert (statistics.ulp.whole if statistics.ulp else 0) == max(apart)


@pytest.mark.parametrize("name", FLOATS[2:])
def test_every_value_of_the_narrow_types_is_decoded_as_ml_dtypes_does(name: str) -> None:
    dtype = dtypes.named(name)
    every = np.arange(1 << dtype.bits, dtype=f"u{dtype.size}")
    with np.errstate(invalid="ignore"):  # NaN is among them
        values = every.view(numpy_type(name)).astype(np.float64)
    texts = [dtypes.shown(dtype, code.tobytes()) for code in every]
    shown = [float(text.split()[0]) for text in texts]
    np.testing.assert_allclose(shown, values, rtol=2e-3)
    finite = [text for text, value in zip(texts, values, strict=True) if math.isfinite(value)]
    assert len(set(finite)) == len(finite)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn"])
def test_the_next_number_is_one_ulp_away(name: str) -> None:
    left = np.linspace(0.5, 2, 7).astype(numpy_type(name))
    right = left.copy()
    right[3] = np.nextafter(left[3], numpy_type(name).type(5))
    statistics = compare(left, right, name)
    assert (statistics.differing, statistics.first, statistics.histogram) == (1, 3, (1,))
    assert statistics.ulp is not None
    assert (statistics.ulp.whole, statistics.ulp.at) == (1, 3)


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_a_complex_number_differs_once_whichever_part_does(name: str) -> None:
    left = np.arange(6).reshape(2, 3).astype(name) * (1 + 2j)
    right = left.copy()
    right[1, 2] += 1j
    right[0, 1] += 1 + 1j
    statistics = compare(left, right)
    assert (statistics.differing, statistics.first) == (2, 1)
    assert statistics.absolute is not None
    assert statistics.absolute.value == 1.0


@pytest.mark.parametrize("bits", [2, 4])
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_packed_integers_are_those_of_ml_dtypes(bits: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    values = data.draw(arrays.arrays(np.uint8, (2, count), elements=st.integers(0, (1 << bits) - 1)))
    packed = [BytesSource(np.packbits(np.unpackbits(side[:, None], axis=1, bitorder="little")[:, :bits],
                          bitorder="little").tobytes()) for side in values]  # fmt: skip
    for name in (f"int{bits}", f"uint{bits}"):
        left, right = (TensorPart("t", f"{name}_packed", (count,), source) for source in packed)
        statistics = tensors.compare(left, right, LIMITS)
        wide = values.view(numpy_type(name)).astype(int)
        assert statistics.differing == np.count_nonzero(wide[0] != wide[1])
        if statistics.first is not None:
            code = values[0][statistics.first]
            assert element(left, statistics.first) == bytes([code])
        if statistics.ulp is not None:
            assert statistics.ulp.whole == np.abs(wide[0] - wide[1]).max()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_order_in_memory_and_the_order_of_bytes_do_not_matter(data: st.DataObject) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=5))
    left = data.draw(arrays.arrays(np.float32, shape))
    right = np.where(data.draw(arrays.arrays(bool, shape)), left, data.draw(arrays.arrays(np.float32, shape)))
    axes = data.draw(st.permutations(range(len(shape))))
    moved = np.ascontiguousarray(right.transpose(axes)).astype(">f4")
    strides = [0] * len(shape)
    for place, axis in enumerate(axes):
        strides[axis] = moved.strides[place] // 4
    other = TensorPart("t", "float32", shape, BytesSource(b"xx" + moved.tobytes()), 2, tuple(strides), big_endian=True)
    assert tensors.compare(tensor(left), other, LIMITS) == compare(left, right)


def test_tiles_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "TILE", 16)
    generator = np.random.default_rng(1)
    left = generator.normal(size=(7, 11, 5))
    right = np.where(generator.random(left.shape) < 0.1, left + generator.normal(size=left.shape), left)
    fortran = TensorPart("t", "float64", left.shape, BytesSource(right.tobytes("F")), strides=(1, 7, 77))
    assert tensors.compare(tensor(left), fortran, LIMITS) == compare(left, right)
    same = TensorPart("t", "float64", left.shape, BytesSource(left.tobytes("F")), strides=(1, 7, 77))
    assert tensors.compare(same, same, LIMITS).differing == 0
    assert tensors.compare(same, fortran, LIMITS) == compare(left, right)


def test_strides_with_gaps_and_of_zero_are_followed() -> None:
    base = np.arange(24.0)
    left = TensorPart("t", "float64", (4, 3), BytesSource(base.tobytes()), strides=(6, 2))
    right = tensor(base.reshape(4, 6)[:, ::2])
    assert tensors.compare(left, right, LIMITS).differing == 0
    spread = TensorPart("t", "float64", (5, 2), BytesSource(base.tobytes()), 8, strides=(0, 1))
    assert tensors.compare(spread, tensor(np.tile(base[1:3], (5, 1))), LIMITS).differing == 0


def test_tensors_of_many_blocks_are_compared_to_their_end() -> None:
    left = np.zeros(700_001, np.float32)
    right = left.copy()
    right[[65_536, 699_999, 700_000]] = [1, -2, np.nan]
    statistics = compare(left, right)
    assert (statistics.elements, statistics.differing, statistics.first) == (700_001, 3, 65_536)
    assert statistics.absolute is not None
    assert (statistics.absolute.value, statistics.absolute.at, statistics.nan) == (2.0, 699_999, 1)


def test_what_a_tolerance_accepts_is_counted_apart() -> None:
    left = np.array([1.0, 1.0, 1.0, np.nan, 0.0])
    right = np.array([1.0 + 1e-9, 1.1, np.inf, np.nan, -0.0])
    statistics = tensors.compare(tensor(left), tensor(right), LIMITS, Tolerance(relative=1e-6))
    assert (statistics.differing, statistics.beyond, statistics.first_beyond) == (4, 2, 1)


def test_the_bits_of_a_byte_that_no_number_has_count() -> None:
    left, right = (TensorPart("t", "int4", (2,), BytesSource(data)) for data in (b"\x01\x02", b"\x01\x12"))
    statistics = tensors.compare(left, right, LIMITS)
    assert (statistics.differing, statistics.ulp, statistics.histogram) == (1, None, ())
    assert tensors.compare(left, left, LIMITS).differing == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (3,)},
        {"shape": (-1,)},
        {"offset": -8},
        {"offset": 9},
        {"dtype": "float128"},
        {"dtype": "float64_packed"},
        {"dtype": "raw0"},
        {"shape": (2,), "strides": (-1,)},
        {"shape": (2,), "strides": (2,)},
        {"shape": (2,), "strides": (1, 1)},
        {"shape": (1,) * 65},
        {"shape": (1 << 62,), "strides": (0,)},
        {"shape": (1 << 40, 1 << 40), "strides": (0, 0)},
    ],
)
def test_a_tensor_that_is_not_within_its_bytes_is_refused(wrong: dict[str, Any]) -> None:
    tensor = TensorPart(**{"name": "t", "dtype": "float64", "shape": (2,), "source": BytesSource(bytes(16)), **wrong})
    with pytest.raises(ArtifactDamaged):
        tensors.check(tensor, LIMITS)


def test_indices_and_buckets_have_names() -> None:
    assert multi_index(23, (2, 3, 4)) == [1, 2, 3]
    assert [bucket_name(i) for i in range(5)] == ["1", "2", "3-4", "5-8", "9-16"]
    left = np.full(8, 1 << 20, np.int32)
    right = left + np.array([0, 1, 2, 3, 4, 5, 8, 9], np.int32)
    assert compare(left, right).histogram == (1, 1, 2, 2, 1)
