"""Converts a PyTorch training's state to a snapshot's nodes and tensors, and restores it from there."""

from __future__ import annotations

import itertools
import sys
from array import array

from ..core.state_entries import StateKind, put_back
from ..pytorch.tensor_names import named_tensors, parts_of
from ..pytorch.tensors import (
    bytes_of,
    components_of,
    dtype_name,
    entry,
    has_memory,
    is_nested,
    is_plain,
    is_tensor,
    size_of,
)
from ..pytorch.training_state import optimizer_entries, stateful_entry
from . import trees
from .random_states import as_values
from .store import DTYPES, NAMES, Part, SavedTensor, SnapshotError, free_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.state_entries import StateEntry

    Node = dict[str, Any]

# ---- into a snapshot -------------------------------------------------------------------------------------------------


class SnapshotTensors:
    """The tensors that a snapshot will hold. Their bytes are read while it is written, one after the other."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self.has_shards = False  # a tensor is one rank's shard of a distributed one
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._owners: list[Any] = []  # the tensors themselves, so that their ids stay unique

    def put(self, preferred: str, tensor: Any) -> str | None:
        """Add a tensor and return its name in the snapshot; None, and a note, if its bytes cannot be read."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        is_shard = hasattr(tensor, "to_local")
        self.has_shards = self.has_shards or is_shard
        local = tensor.to_local() if is_shard else tensor
        is_whole = is_plain(local) and not hasattr(local, "__tensor_flatten__") and not components_of(local)
        if not is_whole or dtype_name(local) not in DTYPES:
            self.notes.append(f"{preferred} was left out: it is a {type(tensor).__name__} of {dtype_name(tensor)}")
            return None
        if not has_memory(local):
            self.notes.append(f"{preferred} was left out: its memory was freed")
            return None
        return self._add(preferred, tensor, dtype_name(local), local.shape, size_of(local), lambda: bytes_of(local))

    def _add(self, preferred: str, owner: Any, dtype: str, shape: Any, size: int, read: Callable[[], Any]) -> str:
        name = free_name(preferred, self._taken)
        self.parts.append(Part(name, DTYPES[dtype], shape, size, read))
        self._names[id(owner)] = name
        self._owners.append(owner)
        return name

    def pack(self, prefix: str, value: Any) -> Node:
        """Return the node of a nested value; add its tensors under names that begin with the prefix."""
        return self.fill(prefix, trees.pack(value, leaf))

    def fill(self, prefix: str, node: Node) -> Node:
        """Return the node of a value that was packed with tensors in it; add these tensors under names."""
        numbers = itertools.count()

        def put(value: Any) -> Node | None:
            return (self._tensor if is_tensor(value) else self._array)(value, prefix, numbers)

        packed: Node = trees.with_leaves(node, put)
        return packed

    def _tensor(self, tensor: Any, prefix: str, numbers: Iterator[int]) -> Node | None:
        parts = components_of(tensor) if is_plain(tensor) else {}
        if parts and not tensor.is_quantized:
            nodes = [[name, self._tensor(parts[name], prefix, numbers)] for name in sorted(parts)]
            return {"sparse": [str(tensor.layout), [int(size) for size in tensor.shape], nodes]}
        if is_nested(tensor):
            return {"ragged": [self._tensor(part, prefix, numbers) for part in tensor.unbind()]}
        name = self.put(f"{prefix}.{next(numbers)}", tensor)
        return None if name is None else {"tensor": name}

    def _array(self, value: Any, prefix: str, numbers: Iterator[int]) -> Node | None:
        """Return the node of a NumPy array or of an array of words."""
        kind = value.dtype.name if hasattr(value, "dtype") else "uint32"
        if kind.startswith(("str", "bytes")):
            return {"strings": [list(value.shape), [_text(item) for item in value.reshape(-1).tolist()]]}
        name = self._names.get(id(value))
        if name is None and kind in DTYPES:
            data, preferred = value.tobytes(), f"{prefix}.{next(numbers)}"
            shape = value.shape if hasattr(value, "shape") else (len(value),)
            name = self._add(preferred, value, kind, shape, len(data), lambda: data)
        return None if name is None else {"array": name}


def _text(item: Any) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def leaf(value: Any) -> Node | None:
    """Return a node that holds a tensor or an array; None for any other value."""
    cls = type(value)
    is_words = isinstance(value, array) and value.typecode == "I"  # of Python's generator
    is_array = is_words or (hasattr(cls, "__array_interface__") and hasattr(cls, "dtype"))
    return {"held": value} if is_array or is_tensor(value) else None


def as_dense_cpu(tensor: Any) -> Any:
    """Return the tensor as a contiguous one on the CPU, without lazy conjugation or negation."""
    tensor = tensor.detach()
    for resolve in ("resolve_conj", "resolve_neg"):
        tensor = getattr(tensor, resolve)() if hasattr(tensor, resolve) else tensor
    return tensor.cpu().contiguous()


def digest(tensor: Any) -> str:
    """Return the digest of a gradient or a loss."""
    return entry("", tensor)[3]


def take_model(tensors: SnapshotTensors, number: int, module: Any, replaced: Mapping[int, Any]) -> Node:
    """Return the node of a model: parameters, flags. `replaced` has other values for tensors, by id."""
    names = {}
    for part, tensor in named_tensors(parts_of(module)):
        if part not in names:
            name = tensors.put(f"model.{number}.{part}", replaced.get(id(tensor), tensor))
            if name is not None:
                names[part] = name
    flags = {part: bool(child.training) for part, child in module.named_modules()}
    return {"name": f"model#{number}", "class": type(module).__name__, "tensors": names, "training": flags}


def take_optimizer(tensors: SnapshotTensors, number: int, optimizer: Any, names: Sequence[str]) -> Node:
    """Return the node of an optimizer: its state, parameter by parameter, and its groups."""
    remaining = iter(names)
    by_group = [[next(remaining) for _ in group["params"]] for group in optimizer.param_groups]
    prefix, (state, groups) = f"optimizer.{number}", _values_of(optimizer_entries(number, optimizer, names))
    return {
        "name": f"optimizer#{number}",
        "class": type(optimizer).__name__,
        "parameters": by_group,
        "state": tensors.pack(f"{prefix}.state", state),
        "groups": tensors.pack(f"{prefix}.groups", groups),
    }


def _values_of(entries: Iterable[StateEntry]) -> tuple[dict[str, Any], list[Any]]:
    """Return an optimizer's state, as snapshots have it, and the settings of its groups."""
    *states, others = [entry.read() for entry in entries if entry.kind is StateKind.OPTIMIZER]
    groups = [entry.read() for entry in entries if entry.kind is StateKind.SETTINGS]
    return {"parameters": states, "other": others}, groups


def take_all(tensors: SnapshotTensors, kind: str, owners: Sequence[Any]) -> tuple[Node, ...]:
    """Return the nodes of GradScalers or schedules."""
    states = [tensors.pack(f"{kind}.{number}", owner.state_dict()) for number, owner in enumerate(owners)]
    named = enumerate(zip(owners, states))
    return tuple([{"name": f"{kind}#{n}", "class": type(each).__name__, "state": state} for n, (each, state) in named])


def take_random(tensors: SnapshotTensors, states: Mapping[str, Any], prefix: str = "random") -> Node:
    """Return the nodes of the generators' states."""
    nodes: Node = {}
    for name, state in as_values(states).items():
        if name == "torch.cuda":
            nodes[name] = [tensors.pack(f"{prefix}.cuda.{n}", part) for n, part in enumerate(state)]
        else:
            nodes[name] = tensors.pack(f"{prefix}.{name}", state)
    return nodes


# ---- back into a training --------------------------------------------------------------------------------------------


class SnapshotReader:
    """Builds tensors and other values from a snapshot's nodes."""

    def __init__(self, torch: Any, tensors: Mapping[str, SavedTensor]) -> None:
        self._torch = torch
        self._tensors = tensors

    def saved(self, name: str) -> SavedTensor:
        """Return the snapshot's tensor of this name, mapped from the file; raises SnapshotError if there is none."""
        saved = self._tensors.get(name)
        if saved is None:
            raise SnapshotError(f"the snapshot names a tensor {name!r}, and has none of that name")
        return saved

    def tensor(self, name: str) -> Any:
        """Return a copy of the snapshot's tensor of this name, on the CPU."""
        saved = self.saved(name)
        dtype = getattr(self._torch, NAMES.get(saved.dtype, ""), None)
        if dtype is None:
            raise SnapshotError(f"a tensor has the data type {saved.dtype}, which this PyTorch does not know")
        tensor = self._torch.empty(saved.shape, dtype=dtype)
        if size_of(tensor):
            from ctypes import memmove

            memmove(tensor.data_ptr(), bytes(saved.data), size_of(tensor))
        return tensor

    def value(self, node: Node, like: Any = None, cut: trees.PartTaker | None = None) -> Any:
        """Return the value that was packed into a node; ``like`` and ``cut`` as for trees.unpack()."""
        try:
            return trees.unpack(node, self.get, like, cut)
        except trees.BadTree as error:
            raise SnapshotError(f"the snapshot cannot be used: {error}") from None

    def get(self, node: Node) -> Any:
        """Return the value of a node of a kind that trees.py leaves to the framework."""
        ((kind, content),) = node.items()
        try:
            if kind == "tensor":
                return self.tensor(content)
            if kind == "array":
                return self._array(content)
            if kind == "strings":
                return sys.modules["numpy"].array(content[1], dtype=str).reshape(content[0])
            if kind == "ragged":
                return self._torch.nested.nested_tensor([self.get(part) for part in content])
            if kind == "sparse":
                return self._sparse(*content)
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise SnapshotError(f"a value of the snapshot, {kind}, cannot be made: {error}") from None
        raise SnapshotError(f"the snapshot holds a value of kind {kind!r}, which is not known here")

    def _array(self, name: str) -> Any:
        saved, numpy = self._tensors[name], sys.modules.get("numpy")
        if numpy is not None:
            dtype = NAMES[saved.dtype]
            return numpy.frombuffer(bytes(saved.data), dtype).reshape(saved.shape).copy()
        return array("I", bytes(saved.data)) if saved.dtype == "U32" else self.tensor(name)

    def _sparse(self, layout: str, shape: Sequence[int], nodes: Sequence[Sequence[Any]]) -> Any:
        parts = {name: self.get(node) for name, node in nodes}
        torch = self._torch
        if layout == "torch.sparse_coo":
            return torch.sparse_coo_tensor(parts["indices"], parts["values"], tuple(shape))
        rows, columns = (parts[name] for name in (("crow", "col") if "crow" in parts else ("ccol", "row")))
        return getattr(torch, layout.rpartition(".")[2] + "_tensor")(rows, columns, parts["values"], tuple(shape))


def put_optimizer(optimizer: Any, saved: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Restore an optimizer's state and groups, each tensor on the device of its parameter."""
    names = [str(name) for group in saved["parameters"] for name in group]
    entries = optimizer_entries(0, optimizer, names)
    own_state, own_groups = _values_of(entries)
    groups = reader.value(saved["groups"], own_groups)
    sizes = [len(names) for names in saved["parameters"]]
    own_sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own_sizes or len(groups) != len(own_sizes):
        raise SnapshotError(f"the optimizer has groups of {own_sizes} parameters here, and of {sizes} in the snapshot")
    state = reader.value(saved["state"], own_state)
    if len(state["parameters"]) != len(names):
        raise SnapshotError("the optimizer's state is of another number of parameters than the optimizer")
    try:
        for entry, value in zip(entries, [*state["parameters"], state["other"], *groups]):
            entry.put_back(value)
    except ValueError as error:
        raise SnapshotError(str(error)) from None


def put_stateful(owner: Any, saved: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Restore the state of a GradScaler or a schedule."""
    entry = stateful_entry(StateKind.SCHEDULE, "", owner)
    entry.put_back(reader.value(saved["state"], entry.read()))


def put_random(entries: Iterable[StateEntry], random: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Restore the states of generators."""

    def value_of(node: Any) -> Any:
        return list(map(reader.value, node)) if isinstance(node, list) else reader.value(node)  # a list: of GPUs

    put_back(entries, random, value_of)
