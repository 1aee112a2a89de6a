"""Digests tensors on their device: by a CUDA kernel of reprokit on NVIDIA GPUs, else by operators of PyTorch.

Nothing here waits for a device, except now(). Digests are copied to the host asynchronously, in the stream of the step,
and are read some steps later, when they have arrived.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque

from ..core.signal_errors import pass_on
from ..core.trail_library import MULTIPLIERS, STEP, WORD_MULTIPLIERS, salt
from .tensors import dtype_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_PENDING = 8  # steps whose digests may not have arrived
BLOCK = 1 << 22  # words per call of PyTorch's operators
PART = 8192  # RKT_PART of native/trail/kernel.cu: words of a tensor for each block of threads
THREADS = 256
_SHIM = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "_shim")


# Operators of PyTorch


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _folded(words: Any, bits: int) -> Any:
    """Return x ^ (x >> bits) with a logical shift."""
    return words ^ ((words >> bits) & ((1 << (64 - bits)) - 1))


def mixed(words: Any, multipliers: tuple[int, int]) -> Any:
    """mix() or mix_word() of docs/format.md for each integer of a tensor of int64."""
    words = _folded(words, 30) * _signed(multipliers[0])
    return _folded(_folded(words, 27) * _signed(multipliers[1]), 31)


def _words(torch: Any, tensor: Any) -> Any:
    """Return the bytes of a tensor as int64, padded with zeros."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    missing = -data.numel() % 8
    if missing:
        data = torch.cat([data, data.new_zeros(missing)])
    elif data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)


def sum_of(torch: Any, tensor: Any) -> Any:
    """Return the sum that becomes a tensor's digest with its salt, as an int64 tensor on its device."""
    words = _words(torch, tensor)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for begin in range(0, words.numel(), BLOCK):
        block = words[begin : begin + BLOCK]
        positions = torch.arange(begin + 1, begin + 1 + block.numel(), dtype=torch.int64, device=words.device)
        total = total + mixed(block + positions * _signed(STEP), WORD_MULTIPLIERS).sum()
    return total


def digest(torch: Any, tensor: Any, salted: int) -> Any:
    """Return the digest of a tensor as an int64 tensor on its device."""
    return mixed(sum_of(torch, tensor) + _signed(salted), MULTIPLIERS)


class OperatorDigester:
    """Digests by PyTorch's operators: works on any device, but takes some fifteen operators per tensor."""

    every = 64  # one in this many steps is digested, from the first on

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def digests(self, tensors: list[Any], salts: list[int]) -> Any:
        """Return the digests of tensors on one device, 0 for None."""
        torch, device = self._torch, next(tensor.device for tensor in tensors if tensor is not None)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        digests = [zero if tensor is None else digest(torch, tensor, s) for tensor, s in zip(tensors, salts)]
        return torch.stack(digests)

    def add_sum(self, tensor: Any, sums: Any, position: int) -> None:
        """Add the sum that becomes a tensor's digest to an element of another tensor."""
        sums[position] += sum_of(self._torch, tensor)


# The kernel


def sources() -> tuple[bytes, bytes]:
    """Return the source of the kernel and of the header that it includes."""
    texts = []
    for name in ("kernel.cu", "digest.h"):
        with open(os.path.join(_SHIM, name), "rb") as file:
            texts.append(file.read())
    return texts[0], texts[1]


def _check(action: str, status: int) -> None:
    if status:
        raise RuntimeError(f"{action}: error {status}")


def compiled(nvrtc: Any, architecture: str) -> bytes:
    """Compile the kernel for an architecture such as sm_90 by NVRTC; needs no GPU."""
    kernel, header = sources()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    headers, names = (ctypes.c_char_p * 1)(header), (ctypes.c_char_p * 1)(b"digest.h")
    _check("nvrtc", nvrtc.nvrtcCreateProgram(ctypes.byref(program), kernel, b"kernel.cu", 1, headers, names))
    try:
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++14")
        _check("nvrtc cannot compile the kernel", nvrtc.nvrtcCompileProgram(program, 2, options))
        _check("nvrtc", nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check("nvrtc", nvrtc.nvrtcGetCUBIN(program, code))
        return code.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def load_nvrtc(torch: Any) -> Any:
    """Load NVRTC from PyTorch's wheels, or from the system."""
    major = torch.version.cuda.partition(".")[0]
    directory = os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__)))
    name = f"libnvrtc.so.{major}"
    for path in (f"nvidia/cuda_nvrtc/lib/{name}", f"nvidia/cu{major}/lib/{name}", f"torch/lib/{name}"):
        if os.path.exists(os.path.join(directory, path)):
            return ctypes.CDLL(os.path.join(directory, path))
    return ctypes.CDLL(name)


def parts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the index of the tensor and of its part for each block of threads."""
    for tensor, size in enumerate(sizes):
        for part in range(-(-size // (8 * PART))):
            yield tensor, part


class KernelDigester:
    """Digests by the fused kernel on one GPU, after it was verified against PyTorch's operators."""

    every = 1

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch, self._device = torch, device
        self._driver = ctypes.CDLL("libcuda.so.1")
        major, minor = torch.cuda.get_device_capability(device)
        code, module = compiled(load_nvrtc(torch), f"sm_{major}{minor}"), ctypes.c_void_p()
        self._tables: tuple[Any, ...] = ()
        self._values = (ctypes.c_uint64 * 3)()  # arguments of the kernel for single tensors, and their addresses
        self._addresses = (ctypes.c_void_p * 3)(*[ctypes.addressof(self._values) + 8 * n for n in range(3)])
        with torch.cuda.device(device):
            torch.zeros(1, device=device)  # creates a CUDA context if this thread has none yet
            _check("cuModuleLoadData", self._driver.cuModuleLoadData(ctypes.byref(module), code))
            names = (b"sum", b"sums", b"digests")
            self._sum, self._sums, self._digests = [self._function(module, name) for name in names]
            self._verify()

    def _function(self, module: Any, name: bytes) -> Any:
        function = ctypes.c_void_p()
        status = self._driver.cuModuleGetFunction(ctypes.byref(function), module, b"reprokit_" + name)
        _check("cuModuleGetFunction", status)
        return function

    def _verify(self) -> None:
        torch = self._torch
        whole = torch.arange(3 * 8 * PART + 5, dtype=torch.int64, device=self._device).to(torch.uint8)
        tensors, salts = [whole, None, whole[1:], whole[4:100], whole[:0]], [1, 2, 3, 4, 5]
        expected = OperatorDigester(torch).digests(tensors, salts)
        sums = torch.zeros(2, dtype=torch.int64, device=self._device)
        self.add_sum(whole[1:], sums, 1)
        if not (torch.equal(self.digests(tensors, salts), expected) and torch.equal(sums[1], sum_of(torch, whole[1:]))):
            raise RuntimeError("the kernel does not come to what it should")

    def digests(self, tensors: list[Any], salts: list[int]) -> Any:
        """Return the digests of tensors on this device, 0 for None."""
        torch = self._torch
        tensors = [tensor if tensor is None else tensor.detach().contiguous() for tensor in tensors]
        sizes = [0 if tensor is None else tensor.nbytes for tensor in tensors]
        self._prepare(sizes, salts)
        _, _, on_device, of_salts, owners, blocks = self._tables
        # A tensor without elements has no address, but a digest.
        addresses = [0 if tensor is None else tensor.data_ptr() or owners.data_ptr() for tensor in tensors]
        pointers = torch.tensor(addresses, dtype=torch.int64).pin_memory().to(self._device, non_blocking=True)
        result = torch.zeros(len(tensors), dtype=torch.int64, device=self._device)
        with torch.cuda.device(self._device):
            if blocks:
                self._launch(self._sums, blocks, pointers, on_device, owners, result)
            grid = -(-len(tensors) // THREADS)
            self._launch(self._digests, grid, pointers, of_salts, result, ctypes.c_uint32(len(tensors)))
        return result

    def add_sum(self, tensor: Any, sums: Any, position: int) -> None:
        """Add the sum that becomes a tensor's digest to an element of another tensor; one thread at a time."""
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        size = tensor.nbytes
        if size:
            self._values[:] = [tensor.data_ptr(), size, sums.data_ptr() + 8 * position]
            with self._torch.cuda.device(self._device):
                self._launch_at(self._sum, -(-size // (8 * PART)), self._addresses)

    def _prepare(self, sizes: list[int], salts: list[int]) -> None:
        """Create the tables on the device; they are reused while the sizes and salts stay the same."""
        if self._tables and self._tables[0] == sizes and self._tables[1] == salts:
            return
        torch, device = self._torch, self._device
        owners = [number for pair in parts(sizes) for number in pair]
        self._tables = (
            sizes,
            salts,
            torch.tensor(sizes, dtype=torch.int64, device=device),
            torch.tensor([_signed(number) for number in salts], dtype=torch.int64, device=device),
            torch.tensor(owners or [0], dtype=torch.int32, device=device),
            len(owners) // 2,
        )

    def _launch(self, function: Any, blocks: int, *arguments: Any) -> None:
        values = [a if isinstance(a, ctypes.c_uint32) else ctypes.c_uint64(a.data_ptr()) for a in arguments]
        self._launch_at(function, blocks, (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values]))

    def _launch_at(self, function: Any, blocks: int, addresses: Any) -> None:
        stream = ctypes.c_void_p(self._torch.cuda.current_stream(self._device).cuda_stream)
        _check(
            "cuLaunchKernel",
            self._driver.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, stream, addresses, None),
        )


def digester_of(torch: Any, device: Any) -> tuple[KernelDigester | OperatorDigester, Exception | None]:
    """Return what digests tensors of a device, and why it is not the kernel."""
    if device.type == "cuda":
        try:
            return KernelDigester(torch, device), None
        except Exception as error:  # no NVRTC, another driver, ROCm
            pass_on(error)
            return OperatorDigester(torch), error
    return OperatorDigester(torch), RuntimeError("it is for GPUs of NVIDIA")


# Digests in transfer


class PendingDigests:
    """The digests and losses of a step that are being copied from their device."""

    def __init__(self, handle: int, step: int, digests: Any, losses: list[Any], event: Any) -> None:
        self.handle, self.step, self.digests, self.losses, self.event = handle, step, digests, losses, event


class DeviceDigester:
    """Digests the tensors of steps on GPUs."""

    def __init__(self, torch: Any, warn: Any) -> None:
        self._torch, self._warn = torch, warn
        self._by_device: dict[Any, Any] = {}
        self._pending: deque[PendingDigests] = deque()

    def _digester(self, device: Any) -> Any:
        digester = self._by_device.get(device)
        if digester is None:
            digester, error = digester_of(self._torch, device)
            if error is not None:
                self._warn(
                    f"the trail has one step in {digester.every} of {device}, without a kernel: {error}",
                    "trail-in-part",
                )
            self._by_device[device] = digester
        return digester

    def is_due(self, device: Any, step: int) -> bool:
        """Return whether to digest the gradients and parameters of a step."""
        return step % int(self._digester(device).every) == 0

    def begin(self, handle: int, step: int, device: Any, tensors: list[Any], losses: list[Any]) -> None:
        """Start to digest tensors of a device and to copy losses to the host."""
        torch, has_any = self._torch, any(tensor is not None for tensor in tensors)
        digests = self._to_host(self._digests(device, tensors)) if has_any else None
        copies = [self._to_host(loss) for loss in losses]
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._pending.append(PendingDigests(handle, step, digests, copies, event))

    def now(self, device: Any, tensors: list[Any]) -> list[int]:
        """Digest tensors of a device, and wait for the result."""
        return [number & (1 << 64) - 1 for number in self._digests(device, tensors).tolist()]

    def _digests(self, device: Any, tensors: list[Any]) -> Any:
        salts = [0 if tensor is None else salt(dtype_name(tensor), tensor.shape) for tensor in tensors]
        return self._digester(device).digests(tensors, salts)

    def _to_host(self, tensor: Any) -> Any:
        copy = self._torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return copy.copy_(tensor.detach(), non_blocking=True)

    def arrived(self, all_of_them: bool = False) -> Iterator[PendingDigests]:
        """Yield the digests that have arrived; waits if more than MAX_PENDING are in transfer."""
        while self._pending:
            oldest = self._pending[0]
            if all_of_them or len(self._pending) > MAX_PENDING:
                oldest.event.synchronize()
            elif not oldest.event.query():
                return
            yield self._pending.popleft()
