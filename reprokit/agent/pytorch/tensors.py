"""Values and digests of PyTorch tensors, read where they lie."""

from __future__ import annotations

import ctypes
import sys

from ..core.digests import digest_behind, object_digest, tensor_digest, tensor_head, text_entry
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.digests import Tensor

MAX_DEPTH = 16  # of what functions are given and return
MAX_DESCRIBED = 10_000
_names: dict[Any, str] = {}


def dtype_name(tensor: Any) -> str:
    """NumPy's name of the tensor's dtype: torch.float32 is float32."""
    name = _names.get(tensor.dtype)
    if name is None:
        name = _names[tensor.dtype] = str(tensor.dtype).rpartition(".")[2]
    return name


def is_tensor(value: Any) -> bool:
    """Return whether it is one of PyTorch's. Its class is asked: what is no tensor may have any name, or fail at it.

    Batches are often dictionaries whose ``__getattr__`` is ``dict.get`` or ``dict.__getitem__``.
    """
    return hasattr(type(value), "data_ptr")


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in arguments or results."""
    if is_tensor(value):
        yield value
    elif depth < MAX_DEPTH and isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part, depth + 1)


def is_plain(tensor: Any) -> bool:
    """Return whether the tensor has a shape and values of its own to read, unlike nested ones and those of tracers."""
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(tensor, "to_local") or not isinstance(tensor, torch.Tensor):
            return False
        if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
            return False
    wrapped = private_api.is_functorch_wrapped(torch, tensor)
    return not (wrapped or is_nested(tensor)) and not tensor.is_meta


def numbers(tensor: Any) -> Any:
    """Return the values of any tensor in a type that can be computed with: complex numbers by their size."""
    torch, tensor = sys.modules["torch"], tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = private_api.sparse_parts(tensor)["values"] if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        return tensor.abs()
    if tensor.dtype is torch.bool:
        return tensor.to(torch.uint8)
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def is_finite(tensor: Any) -> bool:
    """Return whether a tensor holds no infinity and no NaN, or nothing that could be one."""
    torch = sys.modules["torch"]
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return True
    if tensor.layout is not torch.strided or tensor.element_size() < 2:
        tensor = numbers(tensor)
    return bool(torch.isfinite(tensor.detach()).all())


def is_nested(tensor: Any) -> bool:
    """Return whether it is several tensors of other sizes, which have no shape together."""
    return bool(getattr(tensor, "is_nested", False))  # PyTorch before 1.10 has none


def number(tensor: Any) -> tuple[str, Any] | None:
    """Dtype and value of a tensor of one element, wherever it lies; None of more."""
    return (dtype_name(tensor), tensor.item()) if tensor.numel() == 1 else None


def later(tensor: Any) -> Any:
    """Return a copy where it lies; None while a CUDA graph is being recorded, into which nothing of ours may get."""
    if tensor.device.type == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing():
        return None
    return tensor.detach().clone()


compiled: Any = None  # code that says where the bytes of tensors lie, once the adapter has it
_described: dict[tuple[Any, Any], tuple[str, list[int], bytes]] = {}  # by dtype and shape; see _simple_entry


def entry(name: str, tensor: Any) -> Tensor:
    """Return what metrics.jsonl holds of a tensor: a digest, or a note where it has no bytes to read."""
    torch: Any = sys.modules["torch"]
    data = None
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        data = None if compiled is None else compiled.bytes_of(tensor)
        if data is None and lies_in_order(tensor) and tensor.numel():
            data = bytes_here(tensor)
    return _any_entry(name, tensor) if data is None else _simple_entry(name, tensor, data)


def lies_in_order(tensor: Any) -> bool:
    """Return whether the bytes of a tensor of no subclass lie here, as they are meant."""
    torch = sys.modules["torch"]
    return (
        tensor.layout is torch.strided
        and not (is_nested(tensor) or private_api.is_functorch_wrapped(torch, tensor))
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_complex() or tensor.is_neg())
    )


def _simple_entry(name: str, tensor: Any, data: Any) -> Tensor:
    """As _any_entry, in a tenth of its time: each epoch asks for all weights."""
    key = tensor.dtype, tensor.shape
    known = _described.get(key)
    if known is None:
        if len(_described) >= MAX_DESCRIBED:
            _described.clear()
        dtype, shape = dtype_name(tensor), [int(size) for size in tensor.shape]
        known = _described[key] = dtype, shape, tensor_head(dtype, shape)
    dtype, shape, head = known
    return name, dtype, shape, digest_behind(head, data)


def bytes_here(tensor: Any) -> Any:
    """Return the bytes of a tensor that lies in order, as long as it lives."""
    size, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    if not address:
        raise ValueError("a tensor without storage")
    return (ctypes.c_char * size).from_address(address)


def _any_entry(name: str, tensor: Any) -> Tensor:
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if not is_plain(tensor) or type(tensor).__name__.startswith("Uninitialized"):
        return text_entry(name, f"not read: {type(tensor).__name__}")
    shape, dtype = [int(size) for size in tensor.shape], dtype_name(tensor)
    components = components_of(tensor)
    if components:
        return name, dtype, shape, object_digest(sorted(entry(part, components[part]) for part in components))
    return name, dtype, shape, tensor_digest(dtype, shape, bytes_of(tensor))


def components_of(tensor: Any) -> dict[str, Any]:
    """Return the plain tensors that a sparse or quantized tensor is made of."""
    layout = str(tensor.layout).rpartition(".")[2]
    if layout == "sparse_coo":
        return private_api.sparse_parts(tensor)
    if layout in ("sparse_csr", "sparse_bsr"):
        return {"crow": tensor.crow_indices(), "col": tensor.col_indices(), "values": tensor.values()}
    if layout in ("sparse_csc", "sparse_bsc"):
        return {"ccol": tensor.ccol_indices(), "row": tensor.row_indices(), "values": tensor.values()}
    if tensor.is_quantized:
        return {"values": tensor.int_repr(), **_quantization(tensor)}
    return {}


def _quantization(tensor: Any) -> dict[str, Any]:
    torch: Any = sys.modules["torch"]
    if "per_channel" in str(tensor.qscheme()):
        return {"scales": tensor.q_per_channel_scales(), "zero_points": tensor.q_per_channel_zero_points()}
    return {
        "scales": torch.tensor(tensor.q_scale(), dtype=torch.float64),
        "zero_points": torch.tensor(tensor.q_zero_point()),
    }


def bytes_of(tensor: Any) -> Any:
    """Return the tensor's bytes in C order, without a copy where they lie so in memory."""
    tensor = tensor.detach()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    if not size:
        return b""
    if not tensor.data_ptr():
        raise ValueError("a tensor without storage")
    # The view does not keep the tensor alive by itself, so the tensor goes along as an attribute.
    view = (ctypes.c_char * size).from_address(tensor.data_ptr())
    view._tensor = tensor
    return view
