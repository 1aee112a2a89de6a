"""Executes operators of TensorFlow again on inputs that were kept, and tells results apart by their bits.

Also a program: `python -I tensorflow_repeat.py SPECIFICATION` does so with other numbers of threads, or with what else
the environment asks of TensorFlow, and prints for each call the digests of its results.
"""

from __future__ import annotations

import hashlib
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Execute = Callable[[str, Sequence[Any], Sequence[Any], int], list[Any]]

SECONDS = 3.0  # for the repeats of one call
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"  # TensorFlow's name for a variable that no other handle can share
_RESOURCE = 20


class RepeatableCall:
    """An operator with its inputs and attributes, of which those that are variables are given as values."""

    def __init__(
        self, name: str, inputs: Sequence[Any], variables: Sequence[int], attributes: Sequence[Any], outputs: int
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.variables = variables  # the places of inputs that are made variables
        self.attributes = attributes  # names and values by turns
        self.outputs = outputs


def results(call: RepeatableCall, execute: Execute, repeats: int, seconds: float = SECONDS) -> tuple[int, list[str]]:
    """How often the call was executed, and the digests of its results, the first one first."""
    found: list[str] = []
    end = time.monotonic() + seconds
    for number in range(repeats):
        digest = _digest(_run(call, execute))
        if digest not in found:
            found.append(digest)
        if number and time.monotonic() > end:
            return number + 1, found
    return repeats, found


def _run(call: RepeatableCall, execute: Execute) -> list[Any]:
    """What it returns, and what is in its variables afterwards."""
    inputs = list(call.inputs)
    for place in call.variables:
        inputs[place] = _variable(inputs[place], execute)
    returned = list(execute(call.name, inputs, call.attributes, call.outputs) or [])
    for place in call.variables:
        dtype = call.inputs[place].dtype.as_datatype_enum
        returned += execute("ReadVariableOp", [inputs[place]], ("dtype", dtype), 1)
    return returned


def _variable(value: Any, execute: Execute) -> Any:
    dtype = value.dtype.as_datatype_enum
    shape = [int(size) for size in value.shape]
    attributes = ("container", b"", "shared_name", _ANONYMOUS, "dtype", dtype, "shape", shape)
    (handle,) = execute("VarHandleOp", [], attributes, 1)
    execute("AssignVariableOp", [handle, value], ("dtype", dtype), 0)
    return handle


def _digest(tensors: Sequence[Any]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        if tensor.dtype.as_datatype_enum == _RESOURCE:
            continue
        array = tensor.numpy()
        data = array.tobytes() if hasattr(array, "dtype") and array.dtype.kind != "O" else repr(array).encode()
        found.update(f"{tensor.dtype.name}{tensor.shape}".encode())
        found.update(data)
    return found.hexdigest()[:32]


def executor(context: Any, execute: Callable[..., Any]) -> Execute:
    """TensorFlow's own door for a call."""
    context.ensure_initialized()

    def run(name: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: int) -> list[Any]:
        return execute(context._handle, context.device_name, name, list(inputs), tuple(attributes), outputs)  # type: ignore[no-any-return]

    return run


def main(path: str) -> None:
    """Execute what the specification names, in a process for each of its circumstances: TensorFlow is imported once."""
    import json
    import os
    from importlib import import_module

    with open(path, encoding="utf-8") as file:
        specification = json.load(file)
    sys.path[:] = specification["path"]
    os.environ.update(specification["variables"])
    tensorflow = import_module("tensorflow")
    for circumstance in specification["circumstances"]:
        child = os.fork()
        if child == 0:
            try:
                _repeat_all(tensorflow, specification, *circumstance)
            finally:
                os._exit(0)
        os.waitpid(child, 0)


def _repeat_all(tensorflow: Any, specification: Any, name: str, threads: int, variables: dict[str, str]) -> None:
    """Print for each call the digests of its results, or why there is none."""
    import json
    import os

    modules: Any = sys.modules  # TensorFlow's import has brought them
    os.environ.update(variables)
    tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
    context = modules["tensorflow.python.eager.context"].context()
    run = executor(context, modules["tensorflow.python.pywrap_tfe"].TFE_Py_Execute)
    data = modules["numpy"].fromfile(specification["data"], dtype="uint8")
    start = 0
    for number, kept in enumerate(specification["calls"]):
        inputs = []
        for dtype, shape, size in kept["inputs"]:
            inputs.append(_tensor(tensorflow, data[start : start + size], dtype, shape))
            start += size
        attributes = [_attribute(value) for value in kept["attributes"]]
        call = RepeatableCall(kept["name"], inputs, kept["variables"], attributes, kept["outputs"])
        try:
            found: Any = results(call, run, specification["repeats"], 2.0)[1]
        except Exception as error:
            found = f"{type(error).__name__}: {error}"[:500]
        os.write(1, json.dumps([name, number, found]).encode() + b"\n")


def _tensor(tensorflow: Any, data: Any, dtype: int, shape: list[int]) -> Any:
    kind = tensorflow.dtypes.as_dtype(dtype)
    return tensorflow.constant(data.copy().view(kind.as_numpy_dtype).reshape(shape), dtype=kind)


def _attribute(value: Any) -> Any:
    """A value that JSON could hold only in another form."""
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"])
    return [_attribute(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(sys.argv[1])
