"""Restores a snapshot's state into a TensorFlow training."""

from __future__ import annotations

import re
import sys
import weakref

from ..core.state_entries import StateKind, put_back
from ..tensorflow import private_api
from ..tensorflow.decisions import generators
from ..tensorflow.state import optimizer_variables
from ..tensorflow.tensor_names import distinct_names
from ..tensorflow.training_state import eager_entry, keras_generator, plain, put_variable, resource_id, variable_entries
from .random_states import generator_entries
from .store import DTYPES, NAMES, SnapshotError, saved_optimizers
from .tensorflow_snapshot import models_of
from .tensorflow_state import VARIABLES, model_variables, random_operations, variables_of_no_owner
from .trees import BadTree, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..core.state_entries import StateEntry
    from .redo import RedoDriver
    from .store import SavedTensor, SnapshotFile
    from .tensorflow_steps import OutermostCall, TrainingState
    from .trees import Node


def restore(file: SnapshotFile, model: Any, optimizers: Sequence[Any]) -> list[str]:
    """Restore a snapshot's state into a model, or models, and optimizers; return the snapshot's notes."""
    models = list(model) if isinstance(model, (list, tuple)) else [] if model is None else [model]
    restore_models(file, models)
    if optimizers:
        _restore_optimizers(file, saved_optimizers(file.facts, len(optimizers)), optimizers)
    restore_random(file)
    return list(file.facts.notes)


def restore_changed_variables(file: SnapshotFile, changed: list[Any]) -> None:
    """Restore variables of no model or optimizer that a step writes to, as far as the snapshot has them."""
    entries = [entry for entry in file.facts.models if entry.get("class") == VARIABLES]
    names = distinct_names(changed)
    for entry in entries:
        tensors = entry.get("tensors")
        names_in_file = tensors if isinstance(tensors, dict) else {}
        variables = [variable for name, variable in zip(names, changed) if name in names_in_file]
        restore_entries(
            file, names_in_file, variable_entries(StateKind.VARIABLES, variables), "a variable of the script"
        )


def restore_models(file: SnapshotFile, models: list[Any]) -> None:
    """Restore the variables of models; a list of variables may stand for a model."""
    entries = file.facts.models
    if len(models) > len(entries):
        raise SnapshotError(f"the snapshot has {len(entries)} models, not {len(models)}")
    for entry, model in zip(entries, models):
        if isinstance(model, list):  # it comes last, also if the script has fewer models now
            saved_entry = next((other for other in reversed(entries) if other.get("class") == VARIABLES), entry)
            variables, whose = model, str(saved_entry.get("name", "model"))
        else:
            saved_entry, variables, whose = entry, model_variables(model), str(entry.get("name", "model"))
        own = variable_entries(StateKind.PARAMETERS, variables)
        restore_entries(file, saved_entry.get("tensors"), own, whose)


def _restore_optimizers(file: SnapshotFile, entries: Sequence[dict[str, Any]], optimizers: Sequence[Any]) -> None:
    for entry, optimizer in zip(entries, optimizers):
        own = variable_entries(StateKind.OPTIMIZER, optimizer_variables(optimizer))
        restore_entries(file, state_tensors(entry), own, str(entry.get("name", "optimizer")))


def state_tensors(entry: dict[str, Any]) -> dict[str, str]:
    """Return the names in the file of an optimizer's variables, by their own names."""
    try:
        return {name["text"]: node["tensor"] for name, node in entry["state"]["dict"]}
    except (KeyError, TypeError, ValueError):
        raise SnapshotError("the snapshot's optimizer has no state of TensorFlow") from None


def restore_entries(file: SnapshotFile, tensors: Any, entries: Sequence[StateEntry], whose: str) -> None:
    """Restore tensors into the entries of variables of the same names, or in order if all names differ."""
    pairs = _entry_pairs(file, tensors, entries, whose)
    for entry, tensor in pairs:
        _check(entry, tensor, whose)
    for entry, tensor in pairs:
        entry.put_back(array_of(tensor))


def _entry_pairs(
    file: SnapshotFile, tensors: Any, entries: Sequence[StateEntry], whose: str
) -> list[tuple[StateEntry, SavedTensor]]:
    """Match entries with tensors: by names, or in order if all names differ."""
    if not isinstance(tensors, dict):
        raise SnapshotError(f"the snapshot's {whose} has no tensors")
    names = [entry.name for entry in entries]
    by_name = {name: file.tensors.get(key) for name, key in tensors.items() if isinstance(key, str)}
    missing = [name for name in names if by_name.get(name) is None]
    if not missing:
        return [(entry, by_name[entry.name]) for entry in entries]  # type: ignore[misc]
    in_order = [tensor for tensor in by_name.values() if tensor is not None]
    are_all_others = len(missing) == len(names) or list(map(_role, names)) == list(map(_role, by_name))
    if len(in_order) == len(entries) and are_all_others:
        return list(zip(entries, in_order))
    raise SnapshotError(f"{whose} has a variable {missing[0]}, which the snapshot lacks")


def _role(name: str) -> str:
    """Return the part of a variable's name that says its role, without the layer's name, which is numbered."""
    return re.split("[/_]", name.rpartition("#")[0] or name)[-1]


def _check(entry: StateEntry, tensor: SavedTensor, whose: str) -> None:
    value = entry.read()
    shape, dtype = tuple(int(size) for size in value.shape), DTYPES.get(value.dtype.name)
    if shape != tensor.shape:
        raise SnapshotError(f"{whose}: {entry.name} has shape {shape}, in the snapshot it has {tensor.shape}")
    if dtype != tensor.dtype:
        raise SnapshotError(f"{whose}: {entry.name} is {dtype}, in the snapshot it is {tensor.dtype}")


def array_of(tensor: SavedTensor) -> Any:
    """Return a copy of a snapshot's tensor as a NumPy array."""
    numpy = sys.modules["numpy"]
    name = NAMES[tensor.dtype]
    dtype = getattr(sys.modules["tensorflow"], name).as_numpy_dtype if "float" in name else numpy.dtype(name)
    return numpy.frombuffer(bytes(tensor.data), dtype).reshape(tensor.shape)


def value_of(file: SnapshotFile, node: Any, like: Any = None, *, has_arrays: bool = False) -> Any:
    """Return the value of a node; its tensors become eager tensors, or NumPy arrays with ``has_arrays``."""
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
            make = tensorflow.SparseTensor if kind == "sparse" else tensorflow.IndexedSlices
            fields = {field: value_of(file, content[field]) for field in ("indices", "values", "dense_shape")}
            return make(**fields)
        if kind == "replicas":
            return [value_of(file, part) for part in content]
        raise BadTree(f"there is no node {kind!r}")

    try:
        return unpack(node, get, like)
    except (BadTree, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SnapshotError(f"a value of the snapshot cannot be read: {error}") from None


def _tensor(file: SnapshotFile, name: Any) -> SavedTensor:
    tensor = file.tensors.get(name) if isinstance(name, str) else None
    if tensor is None:
        raise SnapshotError(f"the snapshot lacks the tensor {str(name)[:100]}")
    return tensor


def batches(file: SnapshotFile, likes: Sequence[Any] = ()) -> list[Any]:
    """Return the step's batches; ``likes`` are values of the script with the same structure, or None."""
    entries = file.facts.batches
    all_likes = list(likes) + [None] * len(entries)
    return [value_of(file, entry.get("value"), like) for entry, like in zip(entries, all_likes)]


def restore_random(file: SnapshotFile) -> None:
    """Restore the random states of the step's start."""
    random = {name: value_of(file, node, has_arrays=True) for name, node in file.facts.random.items()}
    try:
        put_back([*generator_entries(), eager_entry()], random, lambda state: state)
        _restore_generators(random.get("tensorflow") or {})
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise SnapshotError(f"a random state of the snapshot cannot be put: {error}") from None


def drawn(file: SnapshotFile) -> list[tuple[str, Any]]:
    """Return types and results of the operations whose random states were unreadable."""
    node = file.facts.random.get("tensorflow")
    value = value_of(file, node, has_arrays=True) if node is not None else {}
    try:
        return [(str(kind), sys.modules["numpy"].asarray(numbers)) for kind, numbers in value.get("drawn") or ()]
    except (AttributeError, TypeError, ValueError):
        raise SnapshotError("the random numbers of the snapshot cannot be read") from None


def _restore_generators(value: Mapping[str, Any]) -> None:
    for generator, (_, state) in zip(generators(), value.get("generators") or ()):
        put_variable(private_api.state(generator), state)
    keras = keras_generator()
    if keras is not None and value.get("keras") is not None:
        put_variable(keras.state, value["keras"])


class StateRestorer:
    """Restores the state before a captured step into the script's models and optimizers."""

    def __init__(self, driver: RedoDriver, training: TrainingState) -> None:
        self._driver = driver
        self._training = training

    def restore(self, model: Any, calls: Sequence[OutermostCall]) -> None:
        """Restore the state before the step, also of variables that these accumulating calls write to."""
        optimizers, variables = self._trained(model)
        trained = [plain(variable) for entry in self._training.watched for variable in entry.alive]
        models = [model] if model is not None else _models(variables, trained)
        file = self._driver.file
        restore_models(file, models)
        restore_changed_variables(file, self._changed_variables(models, optimizers, [*variables, *trained], calls))
        _restore_optimizers(file, self._optimizer_entries(len(optimizers)), optimizers)
        restore_random(file)

    def _changed_variables(self, models: list[Any], optimizers: list[Any], trained: list[Any], calls: Any) -> list[Any]:
        """Return the variables that the step writes to and that nothing else restores."""
        whole = [model for model in models if not isinstance(model, list)]
        changed = [variable for watched in self._training.watched for variable in watched.changed.values()]
        changed += [variable for call in calls for variable in call.record.written.values()]
        ids = set(map(resource_id, trained))
        return [each for each in variables_of_no_owner(whole, optimizers, changed) if resource_id(each) not in ids]

    def _trained(self, model: Any) -> tuple[list[Any], list[Any]]:
        """Return the optimizers, and the variables that the captured one trains."""
        alive = [entry for entry in self._training.watched if entry.optimizer() is not None]
        if not alive:
            return [model.optimizer], []
        number = captured_number(self._driver.file)
        entry = alive[number] if number < len(alive) else alive[-1]
        return [watched.optimizer() for watched in alive], [plain(variable) for variable in entry.variables]

    def _optimizer_entries(self, count: int) -> list[dict[str, Any]]:
        """Return the entries for so many optimizers: the captured one and those before it, if there are fewer now."""
        entries = list(self._driver.file.facts.optimizers)
        first = max(0, captured_number(self._driver.file) - count + 1)
        chosen = entries[first : first + count] or entries[:count]
        if count > len(chosen):
            raise SnapshotError(f"the snapshot has {len(chosen)} optimizers, not {count}")
        return chosen

    def is_captured_optimizer(self, optimizer: Any) -> bool:
        """Return whether the captured step was this optimizer's."""
        optimizers = self._trained(None)[0]
        number = min(captured_number(self._driver.file), len(optimizers) - 1)
        return optimizers[number] is optimizer


def captured_number(file: SnapshotFile) -> int:
    """Return the number of the optimizer whose step was captured."""
    name = next(iter(file.facts.trigger.optimizers), "").partition("#")[2]
    return int(name) if name.isdecimal() else 0


def _models(variables: list[Any], others: list[Any]) -> list[Any]:
    """Return the models that own these variables, and a list of the variables of no model, as in a snapshot."""
    models = models_of(variables, others)
    others = variables_of_no_owner(models, [], [*variables, *others])
    return [*models, *([others] if others else [])]


class RandomReplay:
    """Replaces the random numbers of a re-executed step with those of the captured step."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs with a step's update
        self._drawn: Sequence[tuple[str, Any]] | None = None  # types and results; None: replace nothing
        self._samples: Sequence[int] | None = None
        self._sample_count = 0
        self._eager = 0  # number of random operations executed eagerly so far

    def add_graph(self, graph: Any) -> None:
        """Replace random numbers in this graph, which contains a step's update."""
        self._graphs.add(graph)

    def set_replay(self, drawn: Sequence[tuple[str, Any]] | None, samples: Sequence[int] | None, of: int) -> None:
        """Set the results to use from now on; with ``samples``, only these of the ``of`` rows."""
        self._drawn, self._samples, self._sample_count, self._eager = drawn, samples, of, 0

    def replayed(self, kind: str, drawn: Any) -> Any:
        """Return the result that replaces what an operation has just drawn."""
        if private_api.has_value(drawn):
            return drawn if self._drawn is None else self._in_eager_code(kind, drawn)
        return drawn if private_api.in_xla() else self._in_graph(kind, drawn)

    def _in_eager_code(self, kind: str, drawn: Any) -> Any:
        """Return the replacement in eager code, or in a function that runs operation by operation."""
        self._eager += 1
        return sys.modules["tensorflow"].convert_to_tensor(
            self._replayed_value(kind, self._eager - 1, private_api.value(drawn))
        )

    def _in_graph(self, kind: str, drawn: Any) -> Any:
        graph = weakref.ref(drawn.graph)
        place = len(random_operations(drawn.graph)) - 1

        def replayed(drawn: Any) -> Any:
            return self._replayed_value(kind, place, drawn) if graph() in self._graphs else drawn

        tensorflow = sys.modules["tensorflow"]
        result = tensorflow.numpy_function(replayed, [drawn], drawn.dtype)
        return tensorflow.ensure_shape(result, drawn.shape)  # for the graph's optimizer

    def _replayed_value(self, kind: str, place: int, drawn: Any) -> Any:
        """Return the recorded result at this position, if it has the same type and shape."""
        recorded = self._drawn or ()
        if place >= len(recorded):
            return drawn
        recorded_kind, value = recorded[place]
        if self._samples is not None and value.shape[:1] == (self._sample_count,) and value.shape != drawn.shape:
            value = value[list(self._samples)]
        return value if (recorded_kind, value.dtype, value.shape) == (kind, drawn.dtype, drawn.shape) else drawn


def iterator_over(batches: Sequence[Any], specification: Any) -> Any:
    """Return an iterator over these batches alone, with the script's own specification: no step is traced again."""
    tensorflow = sys.modules["tensorflow"]
    nest, relaxed = tensorflow.nest, tensorflow.raw_ops.PlaceholderWithDefault
    specs = nest.flatten(specification, expand_composites=True)

    def whole(*parts: Any) -> Any:
        tensors = nest.flatten(parts if isinstance(specification, tuple) else parts[0], expand_composites=True)
        free = [relaxed(input=tensor, shape=spec.shape) for tensor, spec in zip(tensors, specs)]
        return nest.pack_sequence_as(specification, free, expand_composites=True)

    first, *others = [tensorflow.data.Dataset.from_tensors(batch).map(whole) for batch in batches]
    for other in others:
        first = first.concatenate(other)
    return iter(first)
