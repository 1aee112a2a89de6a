"""The state of a PyTorch training: as a snapshot holds it, and back into a training."""

from __future__ import annotations

import itertools
import sys
from array import array

from ..pytorch.series import size_of
from ..pytorch.state import named_tensors, parts_of
from ..pytorch.tensors import bytes_of, components_of, dtype_name, entry, is_nested, is_plain, is_tensor
from . import trees
from .random_states import as_values, put_back
from .store import DTYPES, NAMES, Part, SavedTensor, SnapshotError, free_name
from .torch_batches import leaf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    Node = dict[str, Any]

IMPLEMENTATION = frozenset(["capturable", "differentiable", "foreach", "fused", "params", "param_names"])


# ---- into a snapshot -------------------------------------------------------------------------------------------------


class SnapshotTensors:
    """The tensors that a snapshot will hold. They are read while it is written, one after the other."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self.has_shards = False  # of tensors that several processes have a part of
        self._names: dict[int, str] = {}
        self._taken: set[str] = set()
        self._kept: list[Any] = []  # as ids are only worth something as long as their objects live

    def put(self, wanted: str, tensor: Any) -> str | None:
        """Return the name under which the tensor is kept; None, and a note, for one that has no bytes to read."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        is_shard = hasattr(tensor, "to_local")
        self.has_shards = self.has_shards or is_shard
        local = tensor.to_local() if is_shard else tensor
        is_whole = is_plain(local) and not hasattr(local, "__tensor_flatten__") and not components_of(local)
        if not is_whole or dtype_name(local) not in DTYPES:
            self.notes.append(f"{wanted} was left out: it is a {type(tensor).__name__} of {dtype_name(tensor)}")
            return None
        if not has_memory(local):
            self.notes.append(f"{wanted} was left out: its memory was freed")
            return None
        return self._add(wanted, tensor, dtype_name(local), local.shape, size_of(local), lambda: bytes_of(local))

    def _add(self, wanted: str, owner: Any, dtype: str, shape: Any, size: int, read: Callable[[], Any]) -> str:
        name = free_name(wanted, self._taken)
        self.parts.append(Part(name, DTYPES[dtype], shape, size, read))
        self._names[id(owner)] = name
        self._kept.append(owner)
        return name

    def pack(self, prefix: str, value: Any) -> Node:
        """Return the node of a nested value, whose tensors are kept under names that begin with the prefix."""
        return self.fill(prefix, trees.pack(value, leaf))

    def fill(self, prefix: str, node: Node) -> Node:
        """Return the node of a value that was packed with its tensors, which are kept now."""
        numbers = itertools.count()

        def put(value: Any) -> Node | None:
            return (self._tensor if is_tensor(value) else self._array)(value, prefix, numbers)

        found: Node = trees.filled(node, put)
        return found

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
        """Return the node of an array of NumPy's or of the standard library."""
        kind = value.dtype.name if hasattr(value, "dtype") else "uint32"
        if kind.startswith(("str", "bytes")):
            return {"strings": [list(value.shape), [_text(item) for item in value.reshape(-1).tolist()]]}
        name = self._names.get(id(value))
        if name is None and kind in DTYPES:
            data, wanted = value.tobytes(), f"{prefix}.{next(numbers)}"
            shape = value.shape if hasattr(value, "shape") else (len(value),)
            name = self._add(wanted, value, kind, shape, len(data), lambda: data)
        return None if name is None else {"array": name}


def _text(item: Any) -> str:
    return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)


def on_this_side(tensor: Any) -> Any:
    """Return the tensor on the CPU with its elements in order; itself where it is so."""
    tensor = tensor.detach()
    for resolve in ("resolve_conj", "resolve_neg"):
        tensor = getattr(tensor, resolve)() if hasattr(tensor, resolve) else tensor
    return tensor.cpu().contiguous()


def digest(tensor: Any) -> str:
    """Return the digest of a gradient or a loss."""
    return entry("", tensor)[3]


def take_model(tensors: SnapshotTensors, number: int, module: Any, replaced: Mapping[int, Any]) -> Node:
    """Return a model's parameters, buffers and flags; `replaced` has other contents for some of its tensors, by id."""
    found = {}
    for part, tensor in named_tensors(parts_of(module)):
        if part not in found:
            kept = tensors.put(f"model.{number}.{part}", replaced.get(id(tensor), tensor))
            if kept is not None:
                found[part] = kept
    flags = {part: bool(child.training) for part, child in module.named_modules()}
    return {"name": f"model#{number}", "class": type(module).__name__, "tensors": found, "training": flags}


def take_optimizer(tensors: SnapshotTensors, number: int, optimizer: Any, names: Sequence[str]) -> Node:
    """Return an optimizer's state, parameter by parameter, and its groups."""
    remaining = iter(names)
    by_group = [[next(remaining) for _ in group["params"]] for group in optimizer.param_groups]
    groups = [{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups]
    prefix = f"optimizer.{number}"
    return {
        "name": f"optimizer#{number}",
        "class": type(optimizer).__name__,
        "parameters": by_group,
        "state": tensors.pack(f"{prefix}.state", _state_of(optimizer)),
        "groups": tensors.pack(f"{prefix}.groups", groups),
    }


def parameters_of(optimizer: Any) -> list[Any]:
    """Return all parameters, group by group."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _state_of(optimizer: Any) -> dict[str, Any]:
    """Without the parameters that it is kept under."""
    state, parameters = optimizer.state, parameters_of(optimizer)
    known = set(map(id, parameters))
    others = {key: state[key] for key in state if id(key) not in known and isinstance(key, (str, int))}
    of_parameters = [dict(state[p]) if p in state else None for p in parameters]
    return {"parameters": of_parameters, "other": others}


def take_all(tensors: SnapshotTensors, kind: str, owners: Sequence[Any]) -> tuple[Node, ...]:
    """GradScalers or schedules."""
    states = [tensors.pack(f"{kind}.{number}", owner.state_dict()) for number, owner in enumerate(owners)]
    named = enumerate(zip(owners, states))
    return tuple([{"name": f"{kind}#{n}", "class": type(one).__name__, "state": state} for n, (one, state) in named])


def take_random(tensors: SnapshotTensors, states: Mapping[str, Any], prefix: str = "random") -> Node:
    """Return the states of generators, as these give them."""
    found: Node = {}
    for name, state in as_values(states).items():
        if name == "torch.cuda":
            found[name] = [tensors.pack(f"{prefix}.cuda.{n}", part) for n, part in enumerate(state)]
        else:
            found[name] = tensors.pack(f"{prefix}.{name}", state)
    return found


def has_memory(tensor: Any) -> bool:
    """Return whether a tensor has any to be read: a script may free it for a while (untyped_storage().resize_(0))."""
    try:
        return tensor is not None and (not tensor.numel() or bool(tensor.data_ptr()))
    except RuntimeError:  # a sparse one
        return True


# ---- back into a training --------------------------------------------------------------------------------------------


class SnapshotReader:
    """Makes tensors and other values of what a snapshot holds."""

    def __init__(self, torch: Any, tensors: Mapping[str, SavedTensor]) -> None:
        self._torch = torch
        self._tensors = tensors

    def saved(self, name: str) -> SavedTensor:
        """Return the snapshot's tensor of this name as it lies in the file."""
        found = self._tensors.get(name)
        if found is None:
            raise SnapshotError(f"the snapshot names a tensor {name!r}, and has none of that name")
        return found

    def tensor(self, name: str) -> Any:
        """Return a copy of the snapshot's tensor of this name, on the CPU."""
        found = self.saved(name)
        kind = getattr(self._torch, NAMES.get(found.dtype, ""), None)
        if kind is None:
            raise SnapshotError(f"a tensor has the data type {found.dtype}, which this PyTorch does not know")
        tensor = self._torch.empty(found.shape, dtype=kind)
        if size_of(tensor):
            from ctypes import memmove

            memmove(tensor.data_ptr(), bytes(found.data), size_of(tensor))
        return tensor

    def value(self, node: Node, like: Any = None, cut: trees.PartTaker | None = None) -> Any:
        """Return what was packed into a node."""
        try:
            return trees.unpack(node, self.get, like, cut)
        except trees.BadTree as error:
            raise SnapshotError(f"the snapshot cannot be used: {error}") from None

    def get(self, node: Node) -> Any:
        """Return the value of a node that trees does not know."""
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
        found, numpy = self._tensors[name], sys.modules.get("numpy")
        if numpy is not None:
            kind = NAMES[found.dtype]
            return numpy.frombuffer(bytes(found.data), kind).reshape(found.shape).copy()
        return array("I", bytes(found.data)) if found.dtype == "U32" else self.tensor(name)

    def _sparse(self, layout: str, shape: Sequence[int], nodes: Sequence[Sequence[Any]]) -> Any:
        parts = {name: self.get(node) for name, node in nodes}
        torch = self._torch
        if layout == "torch.sparse_coo":
            return torch.sparse_coo_tensor(parts["indices"], parts["values"], tuple(shape))
        rows, columns = (parts[name] for name in (("crow", "col") if "crow" in parts else ("ccol", "row")))
        return getattr(torch, layout.rpartition(".")[2] + "_tensor")(rows, columns, parts["values"], tuple(shape))


def _shape(tensor: Any) -> str:
    return "x".join([str(int(size)) for size in tensor.shape]) or "()"


def put_optimizer(optimizer: Any, saved: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Make an optimizer's state and groups what they were, each tensor on the device of its parameter."""
    groups = reader.value(saved["groups"], [dict(group) for group in optimizer.param_groups])
    sizes = [len(names) for names in saved["parameters"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != here or len(groups) != len(here):
        raise SnapshotError(f"the optimizer has groups of {here} parameters here, and of {sizes} in the snapshot")
    parameters = parameters_of(optimizer)
    state = reader.value(saved["state"], _state_of(optimizer))
    if len(state["parameters"]) != len(parameters):
        raise SnapshotError("the optimizer's state is of another number of parameters than the optimizer")
    names = [name for group in saved["parameters"] for name in group]
    for name, parameter, part in zip(names, parameters, state["parameters"]):
        _require_fit(name, parameter, part or {})
    optimizer.state.clear()
    for parameter, part in zip(parameters, state["parameters"]):
        if part is not None:
            optimizer.state[parameter] = _moved(part, parameter)
    optimizer.state.update(state["other"])
    for group, values in zip(optimizer.param_groups, groups):
        group.update({key: values[key] for key in values if key not in IMPLEMENTATION})


def _require_fit(name: str, parameter: Any, part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        if is_tensor(value) and value.dim() == parameter.dim() and value.dim():
            if value.shape != parameter.shape:
                raise SnapshotError(f"{key} of {name} has the shape {_shape(value)}, the parameter {_shape(parameter)}")


def _moved(value: Any, parameter: Any) -> Any:
    """Return the state of a parameter where the parameter is; counts of steps stay where they are."""
    if isinstance(value, dict):
        return {key: part if key == "step" else _moved(part, parameter) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(part, parameter) for part in value)
    return value.to(parameter.device) if is_tensor(value) else value


def put_stateful(owner: Any, saved: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Make a GradScaler or a schedule what it was."""
    state = reader.value(saved["state"], owner.state_dict())
    if state:
        owner.load_state_dict(state)


def put_random(torch: Any, random: Mapping[str, Any], reader: SnapshotReader) -> None:
    """Put generators back to where they were; those of GPUs only where there are as many."""
    put_back({name: reader.value(random[name]) for name in ("python", "numpy") if name in random})
    if "torch" in random:
        torch.default_generator.set_state(reader.value(random["torch"]))
    states = random.get("torch.cuda") or []
    if states and torch.cuda.is_available() and torch.cuda.device_count() >= len(states):
        torch.cuda.init()
        for generator, state in zip(torch.cuda.default_generators, states):
            generator.set_state(reader.value(state))
