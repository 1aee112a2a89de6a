"""The digest of trails: the same by every implementation, and told apart what bad digests do not."""

from __future__ import annotations

import ctypes
import hashlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reprokit.agent.core.trail_library import Library
from reprokit.agent.operators import device_digests
from reprokit.agent.operators.device_digests import DeviceSums, PendingDigest
from reprokit.agent.pytorch import devices
from reprokit.agent.pytorch.content_digests import PytorchContents
from reprokit.agent.pytorch.generators import DefaultGenerator
from reprokit.core.native import trail_path
from tests import trails
from tests.interpreters import ROOT

pytestmark = pytest.mark.torch

Digest = Callable[[Any], int]


@pytest.fixture(scope="module")
def library() -> Library:
    """What digests on this side."""
    return Library(str(trail_path()))


@pytest.fixture
def by_library(library: Library) -> Digest:
    """The digest of any tensor by the library."""
    import torch

    contents = PytorchContents(library, torch)

    def digest(tensor: Any) -> int:
        folded = contents.tensor(0, tensor)
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        found = library.digest(plain.data_ptr(), plain.nbytes, contents.salt(plain))
        assert folded == trails.mix(found)
        return int(found)

    return digest


def raw(tensor: Any) -> bytes:
    """The tensor's bytes in C order."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain) if plain.is_complex() else plain
    return bytes(plain.contiguous().reshape(-1).view(torch.uint8).tolist())


def salt_of(tensor: Any) -> int:
    return trails.salt(str(tensor.dtype).partition(".")[2], tuple(tensor.shape))


def dtypes() -> list[Any]:
    import torch

    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    names += ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
    return [getattr(torch, name) for name in names]


def tensors_of(dtype: Any) -> list[Any]:
    """Shapes and layouts that matter, filled with anything at all."""
    import torch

    generator = torch.Generator().manual_seed(3)

    def filled(*shape: int) -> Any:
        count = 1
        for size in shape:
            count *= size
        data = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        data = data % 2 if dtype is torch.bool else data
        return data.view(dtype).reshape(shape)

    matrix = filled(13, 37)
    return [filled(), filled(0), filled(3, 0, 2), filled(1), filled(7), matrix, matrix.t(), matrix[1:, 3::2],
            filled(501)[1:], filled(4, 3, 5, 6).permute(0, 2, 3, 1)]  # fmt: skip


def test_library_operations_and_definition_agree_on_every_dtype_and_layout(by_library: Digest) -> None:
    import torch

    for dtype in dtypes():
        for tensor in tensors_of(dtype):
            expected = trails.digest_of_bytes(raw(tensor), salt_of(tensor))
            assert by_library(tensor) == expected, (dtype, tensor.shape)
            found = int(devices.digest(torch, tensor, salt_of(tensor)))
            assert found & trails.MASK == expected, (dtype, tensor.shape)
    conjugate = torch.randn(5, dtype=torch.complex64).conj()
    for tensor in (conjugate, conjugate.imag):
        assert by_library(tensor) == trails.digest_of_bytes(raw(tensor), salt_of(tensor))


def test_operations_take_long_tensors_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    tensor = torch.arange(1001, dtype=torch.float32)
    expected = trails.digest_of_bytes(raw(tensor), 5)
    monkeypatch.setattr(devices, "BLOCK", 64)
    assert int(devices.digest(torch, tensor, 5)) & trails.MASK == expected
    found = devices.OperatorDigester(torch).digests([tensor, None, tensor[1:]], [5, 6, 7]).tolist()
    assert [value & trails.MASK for value in found] == [expected, 0, trails.digest_of_bytes(raw(tensor[1:]), 7)]


def norm_hash(tensor: Any) -> Any:
    """PyTorch's DebugMode, norm_hash_fn: the sum of absolute values."""
    import torch
    from torch.utils import _debug_mode

    ours: Any = getattr(_debug_mode, "norm_hash_fn", None)
    return ours(tensor) if ours is not None else torch.linalg.vector_norm(tensor.double(), ord=1).item()


def xor_hash(tensor: Any) -> Any:
    """PyTorch's hash_tensor: the XOR of all elements."""
    import torch

    return torch.hash_tensor(tensor).item()


def pairs() -> dict[str, tuple[Any, Any, tuple[str, ...]]]:
    """Two tensors that are not the same, and which digests take them for it."""
    import torch

    x = torch.randn(64, generator=torch.Generator().manual_seed(1))
    ones, swapped, nan = torch.ones(64), x.clone(), torch.full((4,), float("nan"))
    ones[3] = ones[9] = 2.0
    swapped[2], swapped[50] = x[50], x[2]
    other_nan = nan.clone()
    other_nan.view(torch.int32)[1] ^= 5
    ulp = x.clone()
    ulp[7] = torch.nextafter(ulp[7], torch.tensor(9.0))
    flipped = x.clone()
    flipped[3], flipped[9] = -x[3], -x[9]
    zeros = torch.zeros(8)
    negative = -zeros
    return {
        "all signs": (x, -x, ("norm", "xor")),
        "two signs": (x, flipped, ("norm", "xor")),
        "sorted": (x, x.sort().values, ("xor",)),
        "two elements swapped": (x, swapped, ("xor",)),
        "equal pairs": (torch.ones(64), ones, ("xor",)),
        "negative zeros": (zeros, negative, ("norm", "xor")),
        "bits of NaN": (nan, other_nan, ()),
        "one ULP": (x * 1e-3, (ulp - x) + x * 1e-3 if torch.equal(x, ulp) else ulp * 1e-3, ()),
        "shape": (x, x.reshape(8, 8), ("norm", "xor")),
        "dtype": (zeros, zeros.to(torch.int32), ("norm", "xor")),
        "length of zeros": (zeros, torch.zeros(16), ("norm", "xor")),
    }


def test_what_bad_digests_take_for_the_same_is_told_apart(by_library: Digest) -> None:
    import torch

    bad: dict[str, Digest] = {"norm": norm_hash, "xor": xor_hash}
    fooled = set()
    for name, (left, right, fools) in pairs().items():
        assert by_library(left) != by_library(right), name
        for digest in fools:
            if not hasattr(torch, "hash_tensor") and digest == "xor":
                continue
            assert bad[digest](left) == bad[digest](right), (name, digest)
            fooled.add(digest)
    assert "norm" in fooled


def test_every_single_bit_counts(library: Library) -> None:
    generator = random.Random(7)
    data = bytearray(generator.randbytes(805))  # read by vectors and word by word
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    found = {library.digest(ctypes.addressof(buffer), len(data), 0)}
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        found.add(library.digest(ctypes.addressof(buffer), len(data), 0))
        data[bit // 8] ^= 1 << bit % 8
    assert len(found) == 8 * len(data) + 1


def test_the_digest_of_a_list_and_of_text_are_those_of_the_definition(library: Library) -> None:
    digests = [5, 0, (1 << 64) - 1]
    assert library.of_list(digests) == trails.list_digest(digests)
    assert library.text("größe") == trails.digest("größe".encode(), "text", ())


SHARES = """
#include <cstdio>
#include <cstdlib>
#include "digest.h"
int main(int, char **arguments) {
    unsigned char bytes[4096 + 16];
    for (int i = 0; i < 4096 + 16; i++) bytes[i] = (unsigned char)(i * 131 + i / 7);
    uint64_t size = strtoull(arguments[1], nullptr, 10), offset = strtoull(arguments[2], nullptr, 10);
    uint64_t part = strtoull(arguments[3], nullptr, 10), lanes = strtoull(arguments[4], nullptr, 10), sum = 0;
    unsigned char *aligned = bytes + (16 - (uint64_t)bytes % 16) % 16 + offset;
    for (uint64_t first = 0; 8 * first < size; first += part)
        for (uint64_t lane = 0; lane < lanes; lane++)
            sum += rkt_share(aligned, size, first, first + part, lane, lanes);
    printf("%llu\\n", (unsigned long long)rkt_mix(sum + 77));
    for (uint64_t i = 0; i < size; i++) printf("%02x", aligned[i]);
}
"""


def test_the_shares_of_the_kernels_threads_come_to_the_digest(tmp_path: Path) -> None:
    source, program = tmp_path / "shares.cpp", tmp_path / "shares"
    source.write_text(SHARES)
    include = f"-I{ROOT / 'native' / 'trail'}"
    command = [
        "g++",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined",
        include,
        "-o",
        str(program),
        str(source),
    ]
    subprocess.run(command, check=True)
    for size, offset, part, lanes in [
        (4000, 0, 64, 32), (4000, 4, 64, 32), (4000, 1, 64, 8), (4001, 0, 64, 7), (4007, 8, 128, 3),
        (7, 0, 64, 32), (8, 0, 64, 2), (1024, 0, 128, 256), (1032, 0, 128, 5), (0, 0, 64, 4),
    ]:  # fmt: skip
        arguments = [str(program), *map(str, (size, offset, part, lanes))]
        output = subprocess.run(arguments, capture_output=True, text=True, check=True)
        found, _, data = output.stdout.partition("\n")
        assert output.stderr == ""
        assert int(found) == trails.digest_of_bytes(bytes.fromhex(data), 77), (size, offset, part, lanes)


def test_the_kernel_s_blocks_cover_every_tensor() -> None:
    sizes = [0, 1, 8 * devices.PART, 8 * devices.PART + 1, 30 * devices.PART]
    assert list(devices.parts(sizes)) == [(1, 0), (2, 0), (3, 0), (3, 1), *((4, part) for part in range(4))]
    kernel, header = devices.sources()
    assert f"#define RKT_PART {devices.PART}ull".encode() in kernel
    assert b"rkt_share" in header


def test_the_kernel_compiles_by_nvrtc_which_needs_no_gpu() -> None:
    nvrtc = next((path for path in nvrtc_paths() if path.exists()), None)
    if nvrtc is None:
        pytest.skip("NVRTC is not installed (nvidia-cuda-nvrtc-cu12)")
    code = devices.compiled(ctypes.CDLL(str(nvrtc)), "sm_90")
    assert code.startswith(b"\x7fELF")
    assert b"reprokit_sums" in code
    assert b"reprokit_digests" in code


def nvrtc_paths() -> list[Path]:
    return [path for place in sys.path for path in Path(place or ".").glob("nvidia/*/lib/libnvrtc.so.*")]


@pytest.mark.gpu
def test_the_kernel_and_operations_on_a_gpu_come_to_what_the_processor_comes_to() -> None:
    import torch

    kernel = devices.KernelDigester(torch, torch.device("cuda", 0))
    for dtype in dtypes():
        here = tensors_of(dtype)
        there = [tensor.cuda() for tensor in here]
        salts = [salt_of(tensor) for tensor in here]
        expected = [trails.digest_of_bytes(raw(tensor), salted) for tensor, salted in zip(here, salts, strict=True)]
        for digester in (kernel, devices.OperatorDigester(torch)):
            assert [value & trails.MASK for value in digester.digests(there, salts).tolist()] == expected, dtype


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_digests_of_a_device_are_fetched_together_and_come_to_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(device_digests, "PAGE_SIZE", 16)
    sums, pending, expected = DeviceSums(torch), [], []
    for number, dtype in enumerate(dtypes()):
        digest = PendingDigest(number)
        expected.append(number)
        for tensor in tensors_of(dtype):
            sums.begin(digest, tensor.to(device), salt_of(tensor))
            value = trails.digest_of_bytes(raw(tensor), salt_of(tensor))
            expected[-1] = trails.mix(expected[-1] + value & trails.MASK)
        pending.append(digest)
        if number == 7:
            assert int(digest) == expected[-1]
    assert list(map(int, pending)) == expected


def test_the_salt_is_the_beginning_of_a_sha256(library: Library) -> None:
    text = ctypes.create_string_buffer(b"abc")
    assert library.digest(ctypes.addressof(text), 3, trails.salt("uint8", (3,))) == trails.digest(b"abc", "uint8", [3])
    head = b"reprokit-tensor-1\0float32\x002,3\0"
    assert trails.salt("float32", [2, 3]).to_bytes(8, "little") == hashlib.sha256(head).digest()[:8]


def test_a_change_of_pytorch_s_random_state_is_seen_however_it_came_about() -> None:
    import torch

    kept = torch.get_rng_state()
    state = DefaultGenerator(torch)
    changes: list[Callable[[], object]] = [lambda: torch.manual_seed(5), lambda: torch.set_rng_state(kept)]
    changes += [lambda: torch.rand(1), lambda: torch.rand(1000), lambda: torch.randperm(7)]
    changes += [lambda: torch.randn(1)] * 4 + [lambda: torch.ones(1).exponential_(), lambda: torch.empty(3).normal_()]
    try:
        for change in changes * 2:
            change()
            for _ in range(2):
                assert ctypes.string_at(state.state(), state.size) == raw(torch.get_rng_state())
    finally:
        torch.set_rng_state(kept)
    unchanged = state.state()
    assert [state.state(), state.state()] == [unchanged] * 2
    assert state._memory is not None
