"""Collects the state of a TensorFlow training for a snapshot."""

from __future__ import annotations

import sys
from array import array

from ..core.digests import tensor_digest
from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.decisions import RANDOM_OPERATIONS, generators
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensor_names import distinct_names
from ..tensorflow.training_state import as_array, keras_generator, plain, resource_id
from .random_states import as_values
from .store import DTYPES, Part, free_name
from .trees import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .trees import Node

FIT, SCRIPT, LOADER = "fit", "script", "loader"  # origins of a call, or of a batch
VARIABLES = "Variables"  # "class" of the entry for variables of no model
MAX_STRINGS = 1_000_000  # bytes of texts in a batch, which are kept in snapshot.json


class TensorCollector:
    """Collects the tensors of a snapshot while its header is built."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self._taken: set[str] = set()

    def tensor(self, preferred: str, value: Any) -> str | None:
        """Add an eager tensor, variable or array; return its name in the file, None if it cannot be saved."""
        try:
            array = as_array(value)
        except Exception as error:
            self._leave_out(preferred, f"{type(error).__name__}: {error}"[:200])
            pass_on(error)
            return None
        dtype = DTYPES.get(array.dtype.name)
        if dtype is None:
            self._leave_out(preferred, f"its data type is {array.dtype.name}")
            return None
        name = free_name(preferred, self._taken)
        self.parts.append(Part(name, dtype, array.shape, array.nbytes, lambda: bytes_of(array)))
        return name

    def _leave_out(self, name: str, why: str) -> None:
        self.notes.append(f"{name} is not in the snapshot: {why}")

    def tensors(self, start: str, named: Iterable[tuple[str, Any]]) -> dict[str, str]:
        """Add named tensors; return their names in the file, without ``start``."""
        names_in_file: dict[str, str] = {}
        for name, value in named:
            name_in_file = self.tensor(start + name, value)
            if name_in_file is not None:
                names_in_file[name_in_file[len(start) :]] = name_in_file
        return names_in_file

    def value(self, name: str, value: Any) -> Node:
        """Return the node of a nested value."""
        return pack(value, lambda leaf: self._leaf_node(name, leaf))

    def _leaf_node(self, name: str, leaf: Any) -> Node | None:
        kind = type(leaf).__name__
        if kind == "RaggedTensor":
            rows = [self.value(name, row) for row in leaf.nested_row_splits]
            return {"ragged": {"values": self.value(name, leaf.flat_values), "row_splits": rows}}
        if kind in ("SparseTensor", "IndexedSlices"):
            fields = ("indices", "values", "dense_shape")
            return {
                "sparse" if kind == "SparseTensor" else "slices": {
                    f: self.value(name, getattr(leaf, f)) for f in fields
                }
            }
        if kind in ("PerReplica", "Mirrored"):
            return {"replicas": [self.value(name, value) for value in leaf.values]}
        if not isinstance(leaf, array) and not (hasattr(type(leaf), "dtype") and hasattr(type(leaf), "shape")):
            return None
        dtype = getattr(leaf, "dtype", "")
        if str(getattr(dtype, "name", dtype)).startswith(("string", "object", "str", "bytes")):
            return self._strings(name, leaf)
        name_in_file = self.tensor(name, leaf)
        return None if name_in_file is None else {"tensor": name_in_file}

    def _strings(self, name: str, leaf: Any) -> Node | None:
        array = leaf.numpy() if hasattr(leaf, "numpy") else leaf
        array = sys.modules["numpy"].asarray(array)
        texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.reshape(-1).tolist()]
        if sum(map(len, texts)) > MAX_STRINGS:
            self._leave_out(name, f"its texts have more than {MAX_STRINGS:,} bytes")
            return None
        shape = [int(size) for size in array.shape]
        try:
            return {"strings": [shape, [text.decode() for text in texts]]}
        except UnicodeDecodeError:
            return {"bytestrings": [shape, [text.hex() for text in texts]]}


def is_float(array: Any) -> bool:
    """Return whether an array's dtype, which NumPy may not know, has non-finite values."""
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def numbers(array: Any) -> Any:
    """Return an array in a dtype that NumPy can compute with; complex numbers as absolute values."""
    if array.dtype.kind == "c":
        return abs(array)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def is_finite(array: Any) -> bool:
    """Return whether an array has no infinity and no NaN."""
    return not is_float(array) or bool(sys.modules["numpy"].isfinite(numbers(array)).all())


def limits_of(array: Any) -> Any:
    """Return the limits (finfo) of an array's dtype; None for integers."""
    if not is_float(array):
        return None
    try:
        return sys.modules["numpy"].finfo(array.dtype)
    except ValueError:
        return sys.modules["ml_dtypes"].finfo(array.dtype)


def bytes_of(array: Any) -> Any:
    """Return the bytes of an array in C order, little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    numpy = sys.modules["numpy"]
    return numpy.ascontiguousarray(array).reshape(-1).view("u1").data if array.size else b""


def digest(value: Any) -> str:
    """Return the digest of a gradient's or a loss's bits, which a later run compares."""
    array = as_array(value)
    return tensor_digest(array.dtype.name, [int(size) for size in array.shape], bytes_of(array))


def variables_of_no_owner(models: list[Any], optimizers: list[Any], variables: list[Any]) -> list[Any]:
    """Return those variables that belong to no model, no optimizer and no random state, each once."""
    owned = {resource_id(variable) for model in models for variable in model_variables(model)}
    owned.update(resource_id(variable) for optimizer in optimizers for variable in optimizer_variables(optimizer))
    owned.update(resource_id(private_api.state(generator)) for generator in generators())
    keras = keras_generator()
    if keras is not None:
        owned.add(resource_id(keras.state))
    by_id = {resource_id(variable): variable for variable in variables}
    return [variable for key, variable in by_id.items() if key not in owned]


def take_models(
    taking: TensorCollector, models: list[Any], saved: dict[int, Any], trained: list[Any]
) -> list[dict[str, Any]]:
    """Return the entries of the models, and one more for trained variables of no model, if there are any."""
    owners = [(type(model).__name__, model_variables(model), private_api.layers(model)) for model in models]
    owned = {resource_id(variable) for _, variables, _ in owners for variable in variables}
    others = [variable for variable in trained if resource_id(variable) not in owned]
    return [
        {
            "name": f"model#{number}",
            "class": kind,
            "tensors": _take_variables(taking, f"model.{number}.", variables, saved),
            "training": {str(layer.name): bool(getattr(layer, "trainable", True)) for layer in layers},
        }
        for number, (kind, variables, layers) in enumerate([*owners, *([(VARIABLES, others, [])] if others else [])])
    ]


def _take_variables(taking: TensorCollector, start: str, variables: list[Any], saved: dict[int, Any]) -> dict[str, str]:
    """Add variables as of the step's start; return their names in the file by their own names."""
    return taking.tensors(start, zip(distinct_names(variables), [saved_or_current(each, saved) for each in variables]))


def take_optimizers(taking: TensorCollector, optimizers: list[Any], saved: dict[int, Any]) -> list[dict[str, Any]]:
    """Return the entries of the optimizers: variables, names of trained variables, and learning rates."""
    entries = []
    for number, optimizer in enumerate(optimizers):
        tensors = _take_variables(taking, f"optimizer.{number}.", optimizer_variables(optimizer), saved)
        entries.append(
            {
                "name": f"optimizer#{number}",
                "class": type(optimizer).__name__,
                "parameters": [distinct_names(private_api.trained(optimizer))],
                "state": {"dict": [[{"text": name}, {"tensor": tensors[name]}] for name in tensors]},
                "groups": pack(_numbers(optimizer), lambda leaf: None),
            }
        )
    return entries


def _numbers(optimizer: Any) -> dict[str, float]:
    """Return learning rate and step count as numbers, for human readers only: restoring uses the variables."""
    numbers: dict[str, float] = {}
    for name in ("learning_rate", "iterations"):
        try:
            numbers[name] = float(as_array(getattr(optimizer, name)))
        except Exception as error:  # it is a schedule of the script's own
            pass_on(error)
            continue
    return numbers


def saved_or_current(variable: Any, saved: dict[int, Any]) -> Any:
    """Return a variable's saved value; if it has none, the variable itself."""
    return saved.get(resource_id(variable), variable)


def size_of(variable: Any) -> int:
    """Return the size of a variable in bytes."""
    tensor = plain(variable)
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def model_variables(model: Any) -> list[Any]:
    """Return the variables of a Keras model or TensorFlow module, including its metrics'."""
    variables = list(model.variables)
    ids = set(map(resource_id, variables))
    for metric in getattr(model, "metrics", ()) if hasattr(model, "fit") else ():
        for variable in metric.variables:
            if resource_id(variable) not in ids:
                ids.add(resource_id(variable))
                variables.append(variable)
    return variables


def take_random(
    taking: TensorCollector,
    states_by_name: dict[str, Any],
    saved: dict[int, Any],
    drawn: list[tuple[str, Any]],
) -> dict[str, Node]:
    """Return nodes of the random states at the step's start, which are named as their entries are."""
    states = {name: state for name, state in as_values(states_by_name).items() if name != "tensorflow"}
    nodes = {name: taking.value(f"random.{name}", state) for name, state in states.items()}
    value: dict[str, Any] = dict(states_by_name.get("tensorflow") or {})
    if "operations" in value:
        version, words, following = value["operations"]
        value["operations"] = version, array("I", words), following
    pairs = [(getattr(each, "algorithm", 0), saved_or_current(private_api.state(each), saved)) for each in generators()]
    value["generators"] = [(int(algorithm), as_array(state)) for algorithm, state in pairs]
    keras = keras_generator()
    if keras is not None:
        value["keras"] = as_array(saved_or_current(keras.state, saved))
    if drawn:
        value["drawn"] = drawn
    nodes["tensorflow"] = taking.value("random.tensorflow", value)
    return nodes


def is_numeric(value: Any) -> bool:
    """Return whether a value is a tensor or an array of numbers."""
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "shape")
        and any(getattr(dtype, name, False) for name in ("is_floating", "is_integer", "is_complex"))
    ) or getattr(dtype, "kind", None) in (*"iufc",)


def random_operations(graph: Any) -> list[Any]:
    """Return a graph's operations that draw from a random state of their own, in the order of creation."""
    return [operation for operation in graph.get_operations() if operation.type in RANDOM_OPERATIONS.values()]


def nested_random_operations(graph: Any) -> list[str]:
    """Return the names of such operations in branches, loops and other functions of a graph."""
    functions = graph.as_graph_def().library.function
    names = [node.name for function in functions for node in function.node_def if node.op in RANDOM_OPERATIONS.values()]
    return list(dict.fromkeys(names))


def loss_scale(optimizer: Any) -> Any:
    """Return the dynamic loss scale of an optimizer; None if it has none."""
    scale = getattr(optimizer, "dynamic_scale", None)  # Keras 3
    if scale is None and getattr(optimizer, "dynamic", False):
        scale = getattr(optimizer, "loss_scale", None)
    return scale
