"""Reads the operators of TensorFlow's graphs: attributes, devices, shapes, and the user's lines."""

from __future__ import annotations

import re

from ..core import user_frames
from ..events.operators import BACKWARD, DATA, FORWARD, UPDATE
from . import private_api
from .function_runs import function_names, must_be_compiled
from .private_api import function_graph

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ..core.user_frames import Place

    Frames = list[tuple[str, int, str]]
    Lines = list[dict[str, Any]]

MAX_OPERATIONS = 20_000  # of one graph, with nested ones
MAX_DEPTH = 8  # of functions in functions
MAX_TEXT = 200  # of an attribute
_MOVES = frozenset(  # operators that only move values
    "_Arg _Retval Assert Case Const Enter Exit Identity IdentityN If LoopCond Merge NextIteration NoOp PartitionedCall"
    " Placeholder PlaceholderWithDefault PreventGradient ReadVariableOp Shape StatefulPartitionedCall StatelessCase"
    " StatelessIf StatelessWhile StopGradient Switch VarHandleOp VarIsInitializedOp Variable VariableV2 While".split()
)
_LOOPS = frozenset(["ReduceDataset", "ScanDataset"])  # loops over a dataset in a function, possibly the training
# Parallel calls of these draw numbers in the order of threads: from a shared generator, a seed in a variable, or any
# state that Python code uses.
DRAWING = re.compile(
    "Random(?!Dataset)|Multinomial|ParameterizedTruncatedNormal|TruncatedNormal|SampleDistortedBoundingBox|Rng"
    "|Stateful(?:Random|StandardNormal|TruncatedNormal|Uniform)|(?:Eager)?PyFunc$"
)
_PARALLEL = re.compile("(?:Experimental|Legacy)?(?:Parallel|MapAndBatch)")
_UPDATES = ("ResourceApply", "ResourceSparseApply", "Apply", "SparseApply")
_APPLY = frozenset(["apply", "apply_gradients", "get_updates", "update_step"])
_GRADIENTS = ("eager/backprop.py", "ops/gradients_util.py", "ops/gradients_impl.py")
_GRADIENT = frozenset(["_gradient_function", "_GradientsHelper", "batch_jacobian", "gradient", "gradients", "jacobian"])


def computes(name: str) -> bool:
    """Return whether an operator of this name computes anything."""
    return name not in _MOVES


def key_of(line: dict[str, Any]) -> tuple[object, ...]:
    """Return the key that distinguishes an operator from others."""
    where = line["where"]
    described = [line[name] for name in ("name", "phase", "device", "dtypes", "shapes", "attributes")]
    return (*map(str, described), where[0] if where else None)


def line_of(
    version: str,
    name: str,
    phase: str,
    device: str,
    tensors: Iterable[tuple[str, list[int]]],
    attributes: dict[str, object],
    where: list[Place],
) -> dict[str, Any]:
    """Return the line of an operator; tensors are pairs of dtype and shape."""
    dtypes, shapes = map(list, zip(*tensors)) if tensors else ([], [])
    line: dict[str, Any] = {"framework": "tensorflow", "version": version, "name": name, "overload": ""}
    line.update(phase=phase, device=device, dtypes=dtypes, shapes=shapes, attributes=attributes, calls=0, where=where)
    return line


class GraphReader:
    """Reads graphs, for one version of TensorFlow and one default device."""

    def __init__(self, version: str, device: str) -> None:
        self.version = version
        self.device = device  # of operations that name none

    def operators(self, operations: Iterable[Any], phase: str = "") -> tuple[Lines, Lines]:
        """Return the lines of operators in operations and in called functions, and of XLA-compiled functions."""
        operators: Lines = []
        compiled: Lines = []
        seen: set[str] = set()
        pending = [(list(operations), phase, 0)]
        while pending:
            operations, phase, depth = pending.pop(0)
            for operation in operations[: MAX_OPERATIONS - len(operators)]:
                if computes(operation.type):
                    operators.append(self.describe(operation, phase))
                for name, function in called(operation) if depth < MAX_DEPTH else ():
                    graph = function_graph(function)
                    if graph is None or name in seen:
                        continue
                    seen.add(name)
                    if is_compiled(function):
                        where = frames_of_user(frames_of(operation))
                        compiled.append(self.compiled(name, graph.get_operations(), where))
                    else:
                        inner_phase = DATA if is_of_data(operation.type) else phase
                        pending.append((graph.get_operations(), inner_phase, depth + 1))
        return operators, compiled

    def describe(self, operation: Any, phase: str = "") -> dict[str, Any]:
        """Return the line of an operation of a graph."""
        frames = frames_of(operation)
        original = private_api.of_forward(operation)
        where = frames_of_user(frames_of(original) if original is not None else frames)
        line = line_of(
            self.version,
            operation.type,
            phase or phase_of(operation.type, operation.name, frames),
            kind_of_device(operation.device) or self.device,
            [(tensor.dtype.base_dtype.name, shape_of(tensor.shape)) for tensor in operation.inputs],
            attributes_of(operation.node_def),
            where,
        )
        if is_parallel(operation.type):
            line["attributes"]["draws"] = draws(function_graph(function) for _, function in called(operation))
        return line

    def compiled(self, name: str, operations: Iterable[Any], where: list[Place]) -> dict[str, Any]:
        """Return the line of a function that XLA compiles."""
        types = sorted({operation.type for operation in operations if computes(operation.type)})
        fields = {"framework": "tensorflow", "version": self.version, "name": "tf.function jit_compile"}
        return {**fields, "function": readable(name), "where": where, "operators": types[:1000], "calls": 0}


def readable(name: str) -> str:
    """Return the Python name of a function."""
    return name.rpartition("inference_")[2].rpartition("_")[0] or name


def called(operation: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and graph function of each function that an operation calls."""
    for name in function_names(operation.node_def):
        function = private_api.function_in(operation.graph, name)
        if function is not None:
            yield name, function


def is_compiled(function: Any) -> bool:
    """Return whether XLA compiles a function as a whole."""
    for name in ("cached_definition", "definition"):
        definition = getattr(function, name, None)
        if definition is not None and hasattr(definition, "attr"):
            return must_be_compiled(definition)
    return False


def is_of_data(name: str) -> bool:
    """Return whether an operator creates a tf.data pipeline, whose functions are called by its iteration."""
    return "Dataset" in name and name not in _LOOPS


def is_parallel(name: str) -> bool:
    """Return whether an operator creates a tf.data pipeline that calls its functions in several threads."""
    return is_of_data(name) and _PARALLEL.match(name) is not None


def draws(graphs: Iterable[Any]) -> bool:
    """Return whether functions draw random numbers that depend on the order of calls."""
    pending = list(graphs)
    seen: set[int] = set()
    types: set[str] = set()
    while pending and len(seen) < MAX_OPERATIONS:
        graph = pending.pop()
        if graph is None or id(graph) in seen:
            continue
        seen.add(id(graph))
        for operation in graph.get_operations():
            types.add(operation.type)
            pending += [function_graph(function) for _, function in called(operation)]
    keeps_seed = any(name.startswith("Assign") for name in types) and any(name[:9] == "Stateless" for name in types)
    return keeps_seed or any(map(DRAWING.match, types))


def frames_of(operation: Any) -> Frames:
    """Return file, line and function of the frames that created an operation, the outermost first."""
    stack = private_api.stack_of(operation)
    if type(stack) is list:  # TensorFlow 1: converted on request only
        return [(frame[0], frame[1], frame[2]) for frame in stack]
    stack = operation.traceback
    return [(frame.filename, frame.lineno, frame.name) for frame in stack or ()]


def frames_of_user(frames: Frames) -> list[Place]:
    """Return the frames of the user's own code, the innermost first; at most three."""
    users_frames = [frame for frame in reversed(frames) if user_frames.is_users(frame[0])]
    return users_frames[: user_frames.MAX_PLACES]


def phase_of(operator: str, name: str, frames: Frames) -> str:
    """Return whether an operation serves the forward pass, the backward pass, or the update of variables."""
    if operator.startswith(_UPDATES):
        return UPDATE
    for file, _, function in reversed(frames):
        if function in _APPLY and "optimizer" in file:
            return UPDATE
        if file.endswith(_GRADIENTS) and function in _GRADIENT:
            return BACKWARD
    return BACKWARD if "gradient_tape/" in name else FORWARD


def kind_of_device(device: str) -> str:
    """Return cpu, cuda or tpu for a name of a device; "" if there is none."""
    name = (device or "").upper()
    for prefix, kind in (("GPU:", "cuda"), ("TPU:", "tpu"), ("CPU:", "cpu")):
        if prefix in name:
            return kind
    return ""


def shape_of(shape: Any) -> list[int]:
    """Return the sizes of a shape, -1 for an unknown one; [-1] for an unknown rank."""
    if getattr(shape, "dims", True) is None:
        return [-1]
    sizes = [getattr(size, "value", size) for size in shape]  # TensorFlow 1 has a class for sizes
    return [-1 if size is None else int(size) for size in sizes]


def attributes_of(node: Any) -> dict[str, object]:
    """Return a node's attributes except types, shapes, tensors and functions."""
    attributes: dict[str, object] = {}
    for name, value in sorted(node.attr.items()):
        kind = value.WhichOneof("value")
        if name[0] == "_" or kind not in ("b", "i", "f", "s", "list"):
            continue
        plain = _list(value.list) if kind == "list" else simple(getattr(value, kind))
        if plain is not None:
            attributes[name] = plain
    return attributes


def _list(value: Any) -> list[object] | None:
    values = list(value.s) or list(value.i) or list(value.f) or list(value.b)
    return [simple(part) for part in values] if values and len(values) <= 16 else None


def simple(value: Any) -> object:
    """Return an attribute's value for JSON; None for other types and long texts."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str):
        return value if 0 < len(value) <= MAX_TEXT else None
    return value if isinstance(value, (bool, int, float)) else None
