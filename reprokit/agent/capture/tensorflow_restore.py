"""Puts the state of a snapshot back into a TensorFlow training."""

from __future__ import annotations

import re
import sys
import weakref

from ..tensorflow import private_api
from ..tensorflow.decisions import generators
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensors import name_of
from .random_states import put_back
from .store import DTYPES, NAMES, SnapshotError, saved_optimizers
from .tensorflow_graphs import drawing
from .tensorflow_snapshot import all_owners
from .tensorflow_state import (
    VARIABLES,
    besides,
    distinct_names,
    keras_generator,
    model_variables,
    plain,
    put_variable,
    resource_id,
)
from .trees import BadTree, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .redo import RedoDriver
    from .store import SavedTensor, SnapshotFile
    from .tensorflow_steps import OutermostCall, TrainingState
    from .trees import Node


def restore(file: SnapshotFile, model: Any, optimizers: Sequence[Any]) -> list[str]:
    """Put a snapshot's state into a model and its optimizers; what could not be put, in words."""
    models = list(model) if isinstance(model, (list, tuple)) else [] if model is None else [model]
    put_models(file, models)
    if optimizers:
        _put_entries(file, saved_optimizers(file.facts, len(optimizers)), optimizers)
    put_random(file)
    return list(file.facts.notes)


def put_moved(file: SnapshotFile, moved: list[Any]) -> None:
    """Put what a step wrote to besides models and optimizers, as far as the snapshot has it."""
    entries = [entry for entry in file.facts.models if entry.get("class") == VARIABLES]
    names = distinct_names(moved)
    for entry in entries:
        tensors = entry.get("tensors")
        kept = tensors if isinstance(tensors, dict) else {}
        found = [variable for name, variable in zip(names, moved) if name in kept]
        put_variables(file, kept, found, "a variable of the script")


def put_models(file: SnapshotFile, models: list[Any]) -> None:
    """Put the variables of models; a list of variables may stand for a model."""
    entries = file.facts.models
    if len(models) > len(entries):
        raise SnapshotError(f"the snapshot has {len(entries)} models, not {len(models)}")
    for entry, model in zip(entries, models):
        if isinstance(model, list):  # the last in both, where the script may have fewer models now
            kept = next((one for one in reversed(entries) if one.get("class") == VARIABLES), entry)
            put_variables(file, kept.get("tensors"), model, str(kept.get("name", "model")))
        else:
            put_variables(file, entry.get("tensors"), model_variables(model), str(entry.get("name", "model")))


def _put_entries(file: SnapshotFile, entries: Sequence[dict[str, Any]], optimizers: Sequence[Any]) -> None:
    for entry, optimizer in zip(entries, optimizers):
        put_variables(file, state_tensors(entry), optimizer_variables(optimizer), str(entry.get("name", "optimizer")))


def state_tensors(entry: dict[str, Any]) -> dict[str, str]:
    """By its name, the name in the file of each variable of an optimizer."""
    try:
        return {name["text"]: node["tensor"] for name, node in entry["state"]["dict"]}
    except (KeyError, TypeError, ValueError):
        raise SnapshotError("the snapshot's optimizer has no state of TensorFlow") from None


def put_variables(file: SnapshotFile, tensors: Any, variables: list[Any], whose: str) -> None:
    """Put tensors into variables of the same names, or in their order where the names are all others."""
    pairs = _matched(file, tensors, variables, whose)
    for variable, tensor in pairs:
        _check(variable, tensor, whose)
    for variable, tensor in pairs:
        put_variable(variable, array_of(tensor))


def _matched(file: SnapshotFile, tensors: Any, variables: list[Any], whose: str) -> list[tuple[Any, SavedTensor]]:
    """Return which tensor goes into which variable: by names, or in their order where the names are all others."""
    if not isinstance(tensors, dict):
        raise SnapshotError(f"the snapshot's {whose} has no tensors")
    names = distinct_names(variables)
    found = {name: file.tensors.get(kept) for name, kept in tensors.items() if isinstance(kept, str)}
    missing = [name for name in names if found.get(name) is None]
    if not missing:
        return [(variable, found[name]) for name, variable in zip(names, variables)]  # type: ignore[misc]
    in_order = [tensor for tensor in found.values() if tensor is not None]
    are_all_others = len(missing) == len(names) or list(map(_ending, names)) == list(map(_ending, found))
    if len(in_order) == len(variables) and are_all_others:
        return list(zip(variables, in_order))
    raise SnapshotError(f"{whose} has a variable {missing[0]}, which the snapshot lacks")


def _ending(name: str) -> str:
    """Return what a variable is for: its name begins with its layer's, which counts the layers of the process."""
    return re.split("[/_]", name.rpartition("#")[0] or name)[-1]


def _check(variable: Any, tensor: SavedTensor, whose: str) -> None:
    shape = tuple(int(size) for size in variable.shape)
    dtype = DTYPES.get(str(getattr(variable.dtype, "name", variable.dtype)))
    if shape != tensor.shape:
        raise SnapshotError(f"{whose}: {name_of(variable)} has shape {shape}, in the snapshot it has {tensor.shape}")
    if dtype != tensor.dtype:
        raise SnapshotError(f"{whose}: {name_of(variable)} is {dtype}, in the snapshot it is {tensor.dtype}")


def array_of(tensor: SavedTensor) -> Any:
    """Return a tensor of a snapshot as an array of NumPy of its own."""
    numpy = sys.modules["numpy"]
    name = NAMES[tensor.dtype]
    dtype = getattr(sys.modules["tensorflow"], name).as_numpy_dtype if "float" in name else numpy.dtype(name)
    return numpy.frombuffer(bytes(tensor.data), dtype).reshape(tensor.shape)


def value_of(file: SnapshotFile, node: Any, like: Any = None, *, has_arrays: bool = False) -> Any:
    """Return the value of a node, whose tensors become eager tensors, or arrays."""
    tensorflow = sys.modules["tensorflow"]

    def get(leaf: Node) -> Any:
        ((kind, content),) = leaf.items()
        if kind == "tensor":
            array = array_of(_tensor(file, content))
            return array if has_arrays else tensorflow.constant(array)
        if kind in ("strings", "bytestrings"):
            shape, texts = content
            values = [bytes.fromhex(text) if kind == "bytestrings" else text.encode() for text in texts]
            return tensorflow.reshape(tensorflow.constant(values, tensorflow.string), shape)
        if kind == "ragged":
            splits = [value_of(file, row) for row in content["row_splits"]]
            return tensorflow.RaggedTensor.from_nested_row_splits(value_of(file, content["values"]), splits)
        if kind in ("sparse", "slices"):
            made = tensorflow.SparseTensor if kind == "sparse" else tensorflow.IndexedSlices
            fields = {field: value_of(file, content[field]) for field in ("indices", "values", "dense_shape")}
            return made(**fields)
        if kind == "replicas":
            return [value_of(file, one) for one in content]
        raise BadTree(f"there is no node {kind!r}")

    try:
        return unpack(node, get, like)
    except (BadTree, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"a value of the snapshot cannot be read: {error}") from None


def _tensor(file: SnapshotFile, name: Any) -> SavedTensor:
    found = file.tensors.get(name) if isinstance(name, str) else None
    if found is None:
        raise SnapshotError(f"the snapshot lacks the tensor {str(name)[:100]}")
    return found


def batches(file: SnapshotFile, likes: Sequence[Any] = ()) -> list[Any]:
    """Return the batches as the step was given them."""
    entries = file.facts.batches
    known = list(likes) + [None] * len(entries)
    return [value_of(file, entry.get("value"), like) for entry, like in zip(entries, known)]


def put_random(file: SnapshotFile) -> None:
    """Put the random states of the start of the step."""
    random = {name: value_of(file, node, has_arrays=True) for name, node in file.facts.random.items()}
    try:
        put_back(random)
        _put_tensorflow(random.get("tensorflow") or {})
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise SnapshotError(f"a random state of the snapshot cannot be put: {error}") from None


def drawn(file: SnapshotFile) -> list[tuple[str, Any]]:
    """Return what operations drew whose random states nobody can read: their types, and arrays."""
    node = file.facts.random.get("tensorflow")
    value = value_of(file, node, has_arrays=True) if node is not None else {}
    try:
        return [(str(kind), sys.modules["numpy"].asarray(numbers)) for kind, numbers in value.get("drawn") or ()]
    except (AttributeError, TypeError, ValueError):
        raise SnapshotError("the random numbers of the snapshot cannot be read") from None


def _put_tensorflow(value: Mapping[str, Any]) -> None:
    put_eager(value)
    for generator, (_, state) in zip(generators(), value.get("generators") or ()):
        put_variable(private_api.state(generator), state)
    keras = keras_generator()
    if keras is not None and value.get("keras") is not None:
        put_variable(keras.state, value["keras"])


def put_eager(value: Mapping[str, Any]) -> None:
    """Put the seed of eager TensorFlow, and the generator of the seeds that its operations draw."""
    operations = value.get("operations")
    if private_api.context() is not None and operations is not None:
        generator = private_api.set_eager_seed(value.get("seed"))
        generator.setstate((operations[0], tuple(map(int, operations[1])), operations[2]))


class StateRestorer:
    """Puts the state before a captured step into what the script has built."""

    def __init__(self, driver: RedoDriver, training: TrainingState) -> None:
        self._driver = driver
        self._training = training

    def put(self, model: Any, calls: Sequence[OutermostCall]) -> None:
        """Put the state before the step into all that it reads, and into what these calls of it wrote to."""
        optimizers, variables = self._trained(model)
        known = [plain(variable) for entry in self._training.order for variable in entry.alive]
        models = [model] if model is not None else _models(variables, known)
        file = self._driver.file
        put_models(file, models)
        put_moved(file, self._moved(models, optimizers, [*variables, *known], calls))
        _put_entries(file, self._entries(len(optimizers)), optimizers)
        put_random(file)

    def _moved(self, models: list[Any], optimizers: list[Any], trained: list[Any], calls: Any) -> list[Any]:
        """Variables that the step writes to and that nothing else puts."""
        whole = [model for model in models if not isinstance(model, list)]
        moved = [variable for known in self._training.order for variable in known.moved.values()]
        moved += [variable for call in calls for variable in call.traced.written.values()]
        ids = set(map(resource_id, trained))
        return [one for one in besides(whole, optimizers, moved) if resource_id(one) not in ids]

    def _trained(self, model: Any) -> tuple[list[Any], list[Any]]:
        """Return the optimizers, and the variables of the one whose step was captured."""
        known = [entry for entry in self._training.order if entry.optimizer() is not None]
        if not known:
            return [model.optimizer], []
        number = _number(self._driver.file)
        entry = known[number] if number < len(known) else known[-1]
        return [one.optimizer() for one in known], [plain(variable) for variable in entry.variables]

    def _entries(self, count: int) -> list[dict[str, Any]]:
        """Of so many optimizers, as the script may have fewer now: that of the step, and those before it."""
        known = list(self._driver.file.facts.optimizers)
        first = max(0, _number(self._driver.file) - count + 1)
        found = known[first : first + count] or known[:count]
        if count > len(found):
            raise SnapshotError(f"the snapshot has {len(found)} optimizers, not {count}")
        return found

    def is_wanted(self, optimizer: Any) -> bool:
        """Return whether this optimizer's step is the one that was captured."""
        optimizers = self._trained(None)[0]
        number = min(_number(self._driver.file), len(optimizers) - 1)
        return optimizers[number] is optimizer


def _number(file: SnapshotFile) -> int:
    """Return which optimizer's step was captured."""
    name = next(iter(file.facts.trigger.optimizers), "").partition("#")[2]
    return int(name) if name.isdecimal() else 0


def _models(variables: list[Any], others: list[Any]) -> list[Any]:
    """Return the models that have these variables, and a list of those that are in none, as a snapshot has them."""
    models = all_owners(variables, others)
    others = besides(models, [], [*variables, *others])
    return [*models, *([others] if others else [])]


class RandomReplay:
    """Gives the operations of a step that is done again what they drew before."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()  # those of steps
        self._kept: Sequence[tuple[str, Any]] | None = None  # types, and what each drew; None: the script's own step
        self._samples: Sequence[int] | None = None
        self._of = 0
        self._eager = 0  # operations executed so far, one after the other

    def belongs(self, graph: Any) -> None:
        """A step's update is in this graph."""
        self._graphs.add(graph)

    def begins(self, kept: Sequence[tuple[str, Any]] | None, samples: Sequence[int] | None, of: int) -> None:
        """From now on these are given, of a part of the batch the rows of its samples."""
        self._kept, self._samples, self._of, self._eager = kept, samples, of, 0

    def given(self, kind: str, drawn: Any) -> Any:
        """Return what is known in the place of what an operation drew just now."""
        if private_api.has_value(drawn):
            return drawn if self._kept is None else self._in_eager_code(kind, drawn)
        return drawn if private_api.in_xla() else self._in_graph(kind, drawn)

    def _in_eager_code(self, kind: str, drawn: Any) -> Any:
        """Of a loop in eager code, or of a function that is executed operation by operation."""
        self._eager += 1
        return sys.modules["tensorflow"].convert_to_tensor(self._given(kind, self._eager - 1, private_api.value(drawn)))

    def _in_graph(self, kind: str, drawn: Any) -> Any:
        graph = weakref.ref(drawn.graph)
        place = len(drawing(drawn.graph)) - 1

        def given(drawn: Any) -> Any:
            return self._given(kind, place, drawn) if graph() in self._graphs else drawn

        tensorflow = sys.modules["tensorflow"]
        result = tensorflow.numpy_function(given, [drawn], drawn.dtype)
        return tensorflow.ensure_shape(result, drawn.shape)  # what optimizes the graph is to know it as before

    def _given(self, kind: str, place: int, drawn: Any) -> Any:
        """Return what is known of this place, where it is of the same type and shape."""
        kept = self._kept or ()
        if place >= len(kept):
            return drawn
        kind_then, then = kept[place]
        if self._samples is not None and then.shape[:1] == (self._of,) and then.shape != drawn.shape:
            then = then[list(self._samples)]
        return then if (kind_then, then.dtype, then.shape) == (kind, drawn.dtype, drawn.shape) else drawn
