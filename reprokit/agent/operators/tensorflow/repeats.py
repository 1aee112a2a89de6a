"""Repeats eager calls of TensorFlow's operators on their own inputs, with variables as they were before the call."""

from __future__ import annotations

import hashlib
import json
import os
import sys

from ...events.operators import DATA
from ...tensorflow import private_api
from ...tensorflow.function_runs import count_outputs
from ..confirm import PRESENT, NotRepeatable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...tensorflow.operators import EagerCalled, TensorflowOperator, TensorflowOperatorEvents
    from .. import Observer
    from ..confirm import Digests, Processes
    from ..files import CallRecord

    Execute = Callable[[str, Sequence[Any], Sequence[Any], int], list[Any]]

MAX_BYTES = 256 << 20  # of one call's inputs
MAX_REPEATS = 30  # of a saved call, in other processes
_RACING = ("Bincount", "CropAndResize", "Histogram", "Scatter", "Segment", "Sparse")
_STRING, _RESOURCE, _VARIANT = 7, 20, 21
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # TensorFlow's name for a variable with a single handle
# Limited capabilities: without oneDNN's kernels, or with those of older processors.
_WITHOUT_ONEDNN, _OLDER_PROCESSOR = "TF_ENABLE_ONEDNN_OPTS=0", "ONEDNN_MAX_CPU_ISA=AVX2"


class TensorflowRepeats:
    """Repeats the eager calls of this process."""

    framework = "tensorflow"

    def __init__(self, observer: Observer, events: TensorflowOperatorEvents) -> None:
        self._observer = observer
        self._execute = private_api.executor()
        self._convert = private_api.ops().convert_to_tensor
        self.undisturbed = events.undisturbed

    def can_race(self, operator: TensorflowOperator) -> bool:
        """Return whether threads may race in an operator."""
        return any(part in operator.name for part in _RACING)

    def is_due(self, record: CallRecord, call: EagerCalled, line: dict[str, Any] | None) -> bool:
        """Return whether to repeat a call: once, unless it is random, or changes other state than variables."""
        if self._observer.racing_only and not self.can_race(call.operator):
            return False
        definition, dtypes = call.operator.definition, record.line["dtypes"]
        is_tried, record.is_tried = record.is_tried, True
        if is_tried or (line is not None and line["repeats"]) or record.line["phase"] == DATA:
            return False
        output_types = [argument.type for argument in definition.output_arg]
        has_state = definition.is_stateful and definition.name[:8] != "Resource"
        if "variant" in dtypes or _VARIANT in output_types or has_state:
            return False
        return not any(attribute.type in ("func", "tensor", "list(func)") for attribute in definition.attr)

    def prepare(self, call: EagerCalled) -> TensorflowRepeat:
        """Return the repeatable call; raises NotRepeatable."""
        definition, attributes = call.operator.definition, call.attributes
        inputs = list(call.inputs)
        if not call.is_flat:
            inputs = []
            for argument, value in zip(definition.input_arg, call.inputs):
                is_list = bool(argument.number_attr or argument.type_list_attr)
                tensors = [self._tensor(argument, part, attributes) for part in (value if is_list else [value])]
                _infer_attributes(argument, tensors, attributes)
                inputs += tensors
        repeatable = self._prepare(definition, inputs, attributes)
        if repeatable.size > MAX_BYTES:
            raise NotRepeatable(f"its inputs are larger than {MAX_BYTES >> 20} MiB")
        repeatable.can_race = repeatable.does_race = self.can_race(call.operator)
        return repeatable

    def _tensor(self, argument: Any, value: Any, attributes: dict[str, Any]) -> Any:
        if private_api.has_value(value):
            return value
        dtype = argument.type or attributes.get(argument.type_attr) or None
        return value.handle if dtype == _RESOURCE else self._convert(value, dtype=dtype)

    def _prepare(self, definition: Any, inputs: list[Any], attributes: dict[str, Any]) -> TensorflowRepeat:
        """Return the repeatable call, with values instead of handles, and attributes as TFE_Py_Execute takes them."""
        variables = [position for position, value in enumerate(inputs) if _type(value) == _RESOURCE]
        dtype = _enum(attributes.get("dtype", attributes.get("T")))
        for position in variables:
            (inputs[position],) = self._execute("ReadVariableOp", [inputs[position]], ("dtype", dtype), 1)
        flat: list[Any] = []
        for attribute in definition.attr:
            value = attributes.get(attribute.name)
            if value is not None:
                flat += [attribute.name, _plain(attribute.type, value)]
        outputs = count_outputs(definition, attributes)
        return TensorflowRepeat(self._execute, definition.name, inputs, variables, flat, outputs)

    def vary(
        self, record: CallRecord, repeatable: TensorflowRepeat, _digests: Digests, line: dict[str, Any]
    ) -> object | None:
        """Return the key of a call that other processes repeat; here the number of threads cannot be changed."""
        has_texts = any(_type(tensor) == _STRING for tensor in repeatable.inputs)
        return None if line["device"] != "cpu" or has_texts else record.key[:-1]

    def processes(self) -> tuple[Processes, dict[str, Any]]:
        """Return processes with other numbers of threads, and with limited capabilities of the CPU."""
        present = private_api.pool_size("intra") or len(os.sched_getaffinity(0))
        counts = [number for number in (1, 2, 4) if number != present][:2]
        own = [(PRESENT, present), *((f"threads {number}", number) for number in counts)]
        limited = [] if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" else [_OLDER_PROCESSOR, _WITHOUT_ONEDNN]
        processes = [
            ({}, own),
            *((dict([name.split("=")]), [(f"capabilities {name}", present)]) for name in limited),
        ]
        hidden = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        processes = [({**hidden, **variables}, circumstances) for variables, circumstances in processes]
        return processes, {"repeats": min(self._observer.confirm, MAX_REPEATS)}


class TensorflowRepeat:
    """An operator call with inputs and attributes; inputs that are variables are held as their values."""

    can_race = does_race = False

    def __init__(
        self,
        execute: Execute,
        name: str,
        inputs: list[Any],
        variables: Sequence[int],
        attributes: Sequence[Any],
        outputs: int,
    ) -> None:
        self._execute = execute
        self.name = name
        self.inputs = inputs
        self.variables = variables  # positions of the inputs that become variables
        self.attributes = attributes  # alternating names and values
        self.outputs = outputs

    @property
    def size(self) -> int:
        """The size of its inputs in bytes."""
        return sum(map(_size, self.inputs))

    def execute(self) -> str:
        """Execute the call; return the digest of its results and of its variables afterwards."""
        inputs = list(self.inputs)
        for position in self.variables:
            inputs[position] = self._variable(inputs[position])
        tensors = list(self._execute(self.name, inputs, self.attributes, self.outputs) or [])
        for position in self.variables:
            tensors += self._execute("ReadVariableOp", [inputs[position]], ("dtype", _type(self.inputs[position])), 1)
        digest = hashlib.sha256()
        for tensor in tensors:
            if _type(tensor) != _RESOURCE:
                digest.update(f"{tensor.dtype.name}{tensor.shape}".encode())
                digest.update(_bytes(tensor))
        return digest.hexdigest()[:32]

    def _variable(self, value: Any) -> Any:
        dtype, shape = _type(value), [int(size) for size in value.shape]
        attributes = ("container", b"", "shared_name", _ANONYMOUS, "dtype", dtype, "shape", shape)
        (handle,) = self._execute("VarHandleOp", [], attributes, 1)
        self._execute("AssignVariableOp", [handle, value], ("dtype", dtype), 0)
        return handle

    def end(self) -> None:
        """Change nothing: repeats have variables of their own."""

    def save(self, file: Any) -> None:
        """Write what another process needs to execute the call: a line of JSON, and the bytes of the inputs."""
        parts = [_bytes(tensor) for tensor in self.inputs]
        content = {
            "name": self.name,
            "inputs": [
                [_type(entry), list(map(int, entry.shape)), len(part)] for entry, part in zip(self.inputs, parts)
            ],
            "variables": list(self.variables),
            "attributes": [_encoded(value) for value in self.attributes],
            "outputs": self.outputs,
        }
        file.writelines([json.dumps(content).encode() + b"\n", *parts])


def _bytes(tensor: Any) -> bytes:
    array = tensor.numpy()
    has_bytes = hasattr(array, "dtype") and array.dtype.kind != "O"
    return array.tobytes() if has_bytes else repr(array).encode()


def _size(tensor: Any) -> int:
    size = getattr(tensor.dtype, "size", 0) or 1
    for length in tensor.shape:
        size *= int(length)
    return size


def _plain(kind: str, value: Any) -> Any:
    """Return an attribute's value as TFE_Py_Execute takes it."""
    if kind == "type":
        return _enum(value)
    if kind == "list(type)":
        return [_enum(part) for part in value]
    if kind == "shape" and hasattr(value, "rank"):
        return None if value.rank is None else [-1 if size is None else size for size in value]
    return [_plain(kind[5:-1], part) for part in value] if kind.startswith("list(") else value


def _enum(dtype: Any) -> Any:
    return getattr(dtype, "as_datatype_enum", dtype)


def _type(tensor: Any) -> int:
    return tensor.dtype.as_datatype_enum  # type: ignore[no-any-return]


def _infer_attributes(argument: Any, tensors: list[Any], attributes: dict[str, Any]) -> None:
    """Set the attributes for the number and the dtypes of an argument's tensors."""
    types = [_type(tensor) for tensor in tensors]
    if argument.number_attr:
        attributes[argument.number_attr] = len(tensors)
    if argument.type_list_attr:
        attributes[argument.type_list_attr] = types
    elif argument.type_attr and types:
        attributes[argument.type_attr] = types[0]


# In another process


def prepare(tensorflow: Any, _order: dict[str, Any], threads: int) -> None:
    """Set the number of threads."""
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)


def load(tensorflow: Any, file: Any) -> Callable[[], str]:
    """Return a function that executes a saved call and digests its results."""
    numpy: Any = sys.modules["numpy"]  # imported by TensorFlow
    saved = json.loads(file.readline())
    inputs = []
    for dtype, shape, size in saved["inputs"]:
        kind = tensorflow.dtypes.as_dtype(dtype)
        array = numpy.frombuffer(bytearray(file.read(size)), dtype=kind.as_numpy_dtype).reshape(shape)
        inputs.append(tensorflow.constant(array, dtype=kind))
    attributes = [_decoded(value) for value in saved["attributes"]]
    execute = private_api.executor()
    return TensorflowRepeat(execute, saved["name"], inputs, saved["variables"], attributes, saved["outputs"]).execute


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [_encoded(part) for part in value] if isinstance(value, (list, tuple)) else value


def _decoded(value: Any) -> Any:
    """Return the value that _encoded() was given."""
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return [_decoded(part) for part in value] if isinstance(value, list) else value
