"""Values and digests of PyTorch tensors, read in place."""

from __future__ import annotations

import ctypes
import sys

from ..core.digests import digest_behind, object_digest, tensor_digest, tensor_head, text_entry
from . import private_api

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ..core.digests import Tensor

MAX_DEPTH = 16  # nested containers in arguments and results
MAX_DESCRIBED = 10_000
_names: dict[Any, str] = {}


def dtype_name(tensor: Any) -> str:
    """Return NumPy's name of a tensor's dtype: float32 for torch.float32."""
    name = _names.get(tensor.dtype)
    if name is None:
        name = _names[tensor.dtype] = str(tensor.dtype).rpartition(".")[2]
    return name


def is_tensor(value: Any) -> bool:
    """Return whether a value is a PyTorch tensor, by its class: other objects may have any attribute, or fail.

    Batches are often dictionaries whose ``__getattr__`` is ``dict.get`` or ``dict.__getitem__``. A storage is none.
    """
    return issubclass(type(value), sys.modules["torch"].Tensor)


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors nested in arguments or results."""
    if is_tensor(value):
        yield value
    elif depth < MAX_DEPTH and isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part, depth + 1)


def is_plain(tensor: Any) -> bool:
    """Return whether a tensor has readable shape and values, unlike nested tensors and those of tracers."""
    torch = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        if hasattr(tensor, "to_local") or not isinstance(tensor, torch.Tensor):
            return False
        if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor") or not has_memory(tensor):
            return False
    wrapped = private_api.is_functorch_wrapped(torch, tensor)
    return not (wrapped or is_nested(tensor)) and not tensor.is_meta


def here(tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors; of each that is shared out among ranks (a DTensor) the part that this rank has."""
    with sys.modules["torch"].no_grad():  # else autograd would make another tensor of the part
        parts = [part.to_local() if hasattr(part, "to_local") else part for part in tensors]
    return [part.wait() if hasattr(part, "wait") else part for part in parts]  # a collective may be computing it


def placement(tensor: Any) -> list[str]:
    """Return which part of a DTensor this rank has, by dimension of its mesh, as one text; nothing for other tensors.

    Ranks with the same text have the same part.
    """
    if not hasattr(tensor, "to_local"):
        return []
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()  # None of a rank that has no part
    places = [] if coordinate is None else zip(tensor.placements, coordinate, mesh.shape)
    return [", ".join(repr(p) if p.is_replicate() else f"{p!r} {n + 1} of {size}" for p, n, size in places)]


def has_memory(tensor: Any) -> bool:
    """Return whether a tensor's memory can be read: wrappers of other tensors, and freed storages, have none."""
    try:
        return tensor is not None and (not tensor.numel() or bool(tensor.data_ptr()))
    except RuntimeError:  # a sparse one
        return True


def numbers(tensor: Any) -> Any:
    """Return the values of any tensor in a dtype for computations: complex numbers by their absolute value."""
    torch, tensor = sys.modules["torch"], tensor.detach()
    if private_api.is_opaque(torch, tensor):
        tensor = tensor.to_dense()
    elif tensor.layout is not torch.strided:
        tensor = private_api.sparse_parts(tensor)["values"] if tensor.layout is torch.sparse_coo else tensor.values()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        return tensor.abs()
    if tensor.dtype is torch.bool:
        return tensor.to(torch.uint8)
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 4 else tensor


def is_finite(tensor: Any) -> bool:
    """Return whether a tensor has neither infinities nor NaNs."""
    torch = sys.modules["torch"]
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta or not tensor.numel():
        return True
    if tensor.layout is not torch.strided or tensor.element_size() < 2:
        tensor = numbers(tensor)
    return bool(torch.isfinite(tensor.detach()).all())


def is_nested(tensor: Any) -> bool:
    """Return whether a tensor is nested: several tensors of different shapes."""
    return bool(getattr(tensor, "is_nested", False))  # PyTorch before 1.10 has none


def number(tensor: Any) -> tuple[str, Any] | None:
    """Return dtype and value of a one-element tensor on any device; None for others."""
    return (dtype_name(tensor), tensor.item()) if tensor.numel() == 1 else None


def later(tensor: Any) -> Any:
    """Return a copy on the same device; None during the capture of a CUDA graph, which must not contain it."""
    if tensor.device.type == "cuda" and sys.modules["torch"].cuda.is_current_stream_capturing():
        return None
    return tensor.detach().clone()


compiled: Any = None  # the compiled module that finds the bytes of tensors, set by the adapter
_descriptions: dict[tuple[Any, Any], tuple[str, list[int], bytes]] = {}  # by dtype and shape; see _simple_entry


def entry(name: str, tensor: Any) -> Tensor:
    """Return the entry of a tensor in metrics.jsonl: its digest, or a note if its bytes cannot be read."""
    torch: Any = sys.modules["torch"]
    data = None
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        data = None if compiled is None else compiled.bytes_of(tensor)
        if data is None and lies_in_order(tensor) and tensor.numel():
            data = bytes_here(tensor)
    return _any_entry(name, tensor) if data is None else _simple_entry(name, tensor, data)


def lies_in_order(tensor: Any) -> bool:
    """Return whether a plain tensor is dense and contiguous in CPU memory, with its values as stored."""
    torch = sys.modules["torch"]
    return (
        tensor.layout is torch.strided
        and not (is_nested(tensor) or private_api.is_functorch_wrapped(torch, tensor))
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_complex() or tensor.is_neg())
    )


def _simple_entry(name: str, tensor: Any, data: Any) -> Tensor:
    """Return the entry of a simple tensor ten times faster than _any_entry: each epoch needs all weights."""
    key = tensor.dtype, tensor.shape
    description = _descriptions.get(key)
    if description is None:
        if len(_descriptions) >= MAX_DESCRIBED:
            _descriptions.clear()
        dtype, shape = dtype_name(tensor), [int(size) for size in tensor.shape]
        description = _descriptions[key] = dtype, shape, tensor_head(dtype, shape)
    dtype, shape, head = description
    return name, dtype, shape, digest_behind(head, data)


def bytes_here(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor as a view, valid while the tensor lives."""
    size, address = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    if not address:
        raise ValueError("a tensor without storage")
    return (ctypes.c_char * size).from_address(address)


def _any_entry(name: str, tensor: Any) -> Tensor:
    (tensor,) = here([tensor])
    if not is_plain(tensor) or type(tensor).__name__.startswith("Uninitialized"):
        return text_entry(name, f"not read: {type(tensor).__name__}")
    shape, dtype = [int(size) for size in tensor.shape], dtype_name(tensor)
    components = components_of(tensor)
    if components:
        return name, dtype, shape, object_digest(sorted(entry(part, components[part]) for part in components))
    return name, dtype, shape, tensor_digest(dtype, shape, bytes_of(tensor))


def components_of(tensor: Any) -> dict[str, Any]:
    """Return the component tensors of a sparse or quantized tensor; empty for others."""
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
    """Return the bytes of a tensor in C order, without a copy if it is contiguous in CPU memory."""
    tensor = tensor.detach()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    if not size:
        return b""
    if not tensor.data_ptr():
        raise ValueError("a tensor without storage")
    # The view does not keep the tensor alive by itself, so it gets the tensor as an attribute.
    view = (ctypes.c_char * size).from_address(tensor.data_ptr())
    view._tensor = tensor
    return view


def size_of(tensor: Any) -> int:
    """Return the size of a tensor in bytes; PyTorch before 2.0 has no nbytes."""
    return tensor.numel() * tensor.element_size()  # type: ignore[no-any-return]


def storage_of(tensor: Any) -> Any:
    """Return the storage of a tensor, which views of it share."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
