"""Collects the state of a TensorFlow training for a snapshot."""

from __future__ import annotations

import sys
from array import array

from ..core.digests import tensor_digest
from ..core.signal_errors import pass_on
from ..tensorflow import private_api
from ..tensorflow.decisions import generators
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensors import name_of
from .random_states import as_values
from .store import DTYPES, Part, free_name
from .trees import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .trees import Node

FIT, SCRIPT, LOADER = "fit", "script", "loader"  # makes a call, or gives a batch
VARIABLES = "Variables"  # the class of those of no model
MAX_STRINGS = 1_000_000  # bytes of texts in a batch, which are kept in snapshot.json


class TensorCollector:
    """Collects the tensors of a snapshot while its header is made."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self._taken: set[str] = set()

    def tensor(self, wanted: str, value: Any) -> str | None:
        """Write an eager tensor, variable or array; return its name, None where that is impossible."""
        try:
            array = as_array(value)
        except Exception as error:
            self._leave_out(wanted, f"{type(error).__name__}: {error}"[:200])
            pass_on(error)
            return None
        dtype = DTYPES.get(array.dtype.name)
        if dtype is None:
            self._leave_out(wanted, f"its data type is {array.dtype.name}")
            return None
        name = free_name(wanted, self._taken)
        self.parts.append(Part(name, dtype, array.shape, array.nbytes, lambda: bytes_of(array)))
        return name

    def _leave_out(self, name: str, why: str) -> None:
        self.notes.append(f"{name} is not in the snapshot: {why}")

    def tensors(self, start: str, named: Iterable[tuple[str, Any]]) -> dict[str, str]:
        """By its name, the name in the file of each tensor."""
        found: dict[str, str] = {}
        for name, value in named:
            kept = self.tensor(start + name, value)
            if kept is not None:
                found[kept[len(start) :]] = kept
        return found

    def value(self, name: str, value: Any) -> Node:
        """Return the node of a nested value."""
        return pack(value, lambda leaf: self._put(name, leaf))

    def _put(self, name: str, leaf: Any) -> Node | None:
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
            return {"replicas": [self.value(name, one) for one in leaf.values]}
        if not isinstance(leaf, array) and not (hasattr(type(leaf), "dtype") and hasattr(type(leaf), "shape")):
            return None
        dtype = getattr(leaf, "dtype", "")
        if str(getattr(dtype, "name", dtype)).startswith(("string", "object", "str", "bytes")):
            return self._strings(name, leaf)
        kept = self.tensor(name, leaf)
        return None if kept is None else {"tensor": kept}

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


def as_array(value: Any) -> Any:
    """Return a tensor, a variable or an array as an array of NumPy, without a copy where it lies on this side."""
    value = private_api.primary(plain(value))
    if hasattr(value, "handle"):
        value = read(value)
    if private_api.has_value(value):
        return private_api.value(value)
    return sys.modules["numpy"].asarray(value)


def is_float(array: Any) -> bool:
    """Return whether an array, of a type that NumPy itself may not know, can hold what is not finite."""
    return array.dtype.kind in "fc" or "float" in array.dtype.name


def numbers(array: Any) -> Any:
    """Return an array in a type that NumPy can compute with: complex numbers by their size."""
    if array.dtype.kind == "c":
        return abs(array)
    return array.astype("float32") if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array


def is_finite(array: Any) -> bool:
    """Return whether an array holds no infinity and no NaN, or nothing that could be one."""
    return not is_float(array) or bool(sys.modules["numpy"].isfinite(numbers(array)).all())


def limits_of(array: Any) -> Any:
    """Return what the type of an array can hold; None of whole numbers."""
    if not is_float(array):
        return None
    try:
        return sys.modules["numpy"].finfo(array.dtype)
    except ValueError:
        return sys.modules["ml_dtypes"].finfo(array.dtype)


def read(variable: Any) -> Any:
    """Return the value of a variable as an eager tensor that shares its memory: a later update makes itself another."""
    variable = private_api.primary(plain(variable))
    raw = sys.modules["tensorflow"].raw_ops
    with private_api.ops().init_scope():
        return raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def bytes_of(array: Any) -> Any:
    """Return the bytes of an array in C order, little-endian."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    numpy = sys.modules["numpy"]
    return numpy.ascontiguousarray(array).reshape(-1).view("u1").data if array.size else b""


def digest(value: Any) -> str:
    """Return the digest of a tensor's bits; of gradients and losses, which a later run compares."""
    array = as_array(value)
    return tensor_digest(array.dtype.name, [int(size) for size in array.shape], bytes_of(array))


def distinct_names(variables: Iterable[Any]) -> list[str]:
    """Return the names of variables; a name that comes again gets #2, #3, ..."""
    seen: dict[str, int] = {}
    result = []
    for variable in variables:
        name = name_of(variable)
        name = name[:-2] if name.endswith(":0") else name
        count = seen[name] = seen.get(name, 0) + 1
        result.append(f"{name}#{count}" if count > 1 else name)
    return result


def besides(models: list[Any], optimizers: list[Any], variables: list[Any]) -> list[Any]:
    """Of these variables those that are no model's, no optimizer's and no random state, each once."""
    known = {resource_id(variable) for model in models for variable in model_variables(model)}
    known.update(resource_id(variable) for optimizer in optimizers for variable in optimizer_variables(optimizer))
    known.update(resource_id(private_api.state(generator)) for generator in generators())
    keras = keras_generator()
    if keras is not None:
        known.add(resource_id(keras.state))
    found = {resource_id(variable): variable for variable in variables}
    return [variable for key, variable in found.items() if key not in known]


def take_models(
    taking: TensorCollector, models: list[Any], held: dict[int, Any], trained: list[Any]
) -> list[dict[str, Any]]:
    """Return the entries of the models, and one of these variables where there is no model that has them."""
    whole = [(type(model).__name__, model_variables(model), private_api.layers(model)) for model in models]
    known = {resource_id(variable) for _, variables, _ in whole for variable in variables}
    others = [variable for variable in trained if resource_id(variable) not in known]
    return [
        {
            "name": f"model#{number}",
            "class": kind,
            "tensors": _take_variables(taking, f"model.{number}.", variables, held),
            "training": {str(layer.name): bool(getattr(layer, "trainable", True)) for layer in layers},
        }
        for number, (kind, variables, layers) in enumerate([*whole, *([(VARIABLES, others, [])] if others else [])])
    ]


def _take_variables(taking: TensorCollector, start: str, variables: list[Any], held: dict[int, Any]) -> dict[str, str]:
    """By its name, the name in the file of each of these variables, as it was at the start of the step."""
    return taking.tensors(start, zip(distinct_names(variables), [held_or_now(one, held) for one in variables]))


def take_optimizers(taking: TensorCollector, optimizers: list[Any], held: dict[int, Any]) -> list[dict[str, Any]]:
    """Return the entries of the optimizers: their variables, what they train, and their learning rates."""
    entries = []
    for number, optimizer in enumerate(optimizers):
        tensors = _take_variables(taking, f"optimizer.{number}.", optimizer_variables(optimizer), held)
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
    """Learning rate and steps as numbers, for who reads; what counts is in the variables."""
    found: dict[str, float] = {}
    for name in ("learning_rate", "iterations"):
        try:
            found[name] = float(as_array(getattr(optimizer, name)))
        except Exception as error:  # a schedule of the script's own
            pass_on(error)
            continue
    return found


def held_or_now(variable: Any, held: dict[int, Any]) -> Any:
    """Return the value at the start of the step."""
    return held.get(resource_id(variable), variable)


def resource_id(variable: Any) -> int:
    """Return the same number for a variable of Keras 3 and the one of TensorFlow in it."""
    return id(private_api.primary(plain(variable)))  # of a mirrored one, that of the first replica


def plain(variable: Any) -> Any:
    """Return the variable of TensorFlow in one of Keras 3."""
    return private_api.plain(variable) if hasattr(variable, "path") else variable


def size_of(variable: Any) -> int:
    """Return how many bytes a variable has."""
    one = plain(variable)
    return int(one.shape.num_elements() or 0) * int(one.dtype.size)


def model_variables(model: Any) -> list[Any]:
    """Return what a model of Keras, or a module of TensorFlow, keeps, with its metrics."""
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
    kept: dict[str, Any],
    held: dict[int, Any],
    drawn: list[tuple[str, Any]],
) -> dict[str, Node]:
    """The random states at the start of the step, of which ``kept`` has Python's, NumPy's and TensorFlow's "eager"."""
    states = {name: state for name, state in as_values(kept).items() if name != "eager"}
    nodes = {name: taking.value(f"random.{name}", state) for name, state in states.items()}
    value: dict[str, Any] = {}
    if kept.get("eager") is not None:
        seed, state = kept["eager"]
        value["seed"] = seed
        if state is not None:
            value["operations"] = (state[0], array("I", state[1]), state[2])
    known = [(getattr(one, "algorithm", 0), held_or_now(private_api.state(one), held)) for one in generators()]
    value["generators"] = [(int(algorithm), as_array(state)) for algorithm, state in known]
    keras = keras_generator()
    if keras is not None:
        value["keras"] = as_array(held_or_now(keras.state, held))
    if drawn:
        value["drawn"] = drawn
    nodes["tensorflow"] = taking.value("random.tensorflow", value)
    return nodes


def keras_generator() -> Any:
    """The generator that Keras 3 draws from where a layer has none of its own; None where nobody asked for it."""
    module = private_api.module("keras_state")
    return None if module is None else module.get_global_attribute("global_seed_generator")


def eager_state() -> tuple[Any, Any] | None:
    """Seed and generator of the seeds that eager operations draw."""
    if private_api.context() is None:
        return None
    generator = private_api.seed_generator()
    return private_api.eager_seed(), None if generator is None else generator.getstate()


def put_variable(variable: Any, value: Any) -> None:
    """Assign a value, outside of any graph that is being built."""
    variable = plain(variable)
    with private_api.ops().init_scope():
        variable.assign(value)


def loss_scale(optimizer: Any) -> Any:
    """Return the scale of the loss that an optimizer changes by itself, None of one that has none."""
    scale = getattr(optimizer, "dynamic_scale", None)  # Keras 3
    if scale is None and getattr(optimizer, "dynamic", False):
        scale = getattr(optimizer, "loss_scale", None)
    return scale
