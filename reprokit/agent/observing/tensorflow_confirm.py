"""Executes each distinct operator call of TensorFlow again on its own inputs, to see whether its bits vary.

Operators that are called eagerly are repeated just before their first call. Those of a function are repeated before
the function's first execution: its definition, reduced to what they take, gives their inputs. Where a function takes
its batch from an iterator, the batch is taken first and handed to the function by an iterator that has only this one.
At the end other processes repeat what was kept with other numbers of threads and with capped capabilities.
"""

from __future__ import annotations

import os
import time

from ..tensorflow import private_api
from . import tensorflow_capture, tensorflow_graphs, tensorflow_repeat
from .tensorflow_capture import Definitions, NotCapturedError
from .tensorflow_kept_calls import KeptCalls
from .tensorflow_repeat import RepeatableCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from . import Observer
    from .tensorflow_capture import Node
    from .tensorflow_eager import Call as EagerCall
    from .tensorflow_graphs import GraphOperator
    from .tensorflow_operators import Tensorflow

    Lines = dict[tuple[str, str], dict[str, Any]]

BATCH = 64  # operators of a function whose inputs are held at once
MAX_SECONDS = 300.0  # for all repeats of a process
MAX_BYTES = 256 << 20  # of one call's inputs
MORE = (
    10  # times as many repeats, within so many seconds, of what adds up in threads: on a busy machine they rarely meet
)
MORE_SECONDS = 2.0
_RACING = ("Bincount", "CropAndResize", "Histogram", "Scatter", "Segment", "Sparse")
_STRING, _RESOURCE, _VARIANT = 7, 20, 21
_CANNOT = "TensorFlow refused to execute it again"


class TensorflowConfirmer:
    """Repeats calls, and writes what came out."""

    def __init__(self, observer: Observer, tensorflow: Tensorflow) -> None:
        self._observer = observer
        self._busy = tensorflow.busy
        self._context = private_api.module("context").context()
        self._door = private_api.module("eager").TFE_Py_Execute
        self._convert = private_api.ops().convert_to_tensor
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child, which has nothing of its own yet."""
        self._end: float | None = None
        self._done: set[object] = set()
        self._kept = KeptCalls(self._observer.run, self._observer.helper)

    def finish(self) -> None:
        """Have other processes repeat what was kept."""
        threads = self._context.intra_op_parallelism_threads or len(os.sched_getaffinity(0))
        self._kept.repeat_elsewhere(min(self._observer.confirm, 30), threads)

    def _execute(self, *arguments: Any) -> list[Any]:
        """TensorFlow's context is ready by the time that anything is called, and not before."""
        return tensorflow_repeat.executor(self._context, self._door)(*arguments)

    # Eager calls

    def eager(self, call: EagerCall, line: dict[str, Any]) -> None:
        """An operator is about to be called for the first time on such inputs."""
        if not self._is_worth(call.definition, line):
            return
        self._busy.now = True
        try:
            self._repeat(line, self._of_eager(call))
        except Exception as error:
            self._write(line, problem=f"{_CANNOT}: {type(error).__name__}")
        finally:
            self._busy.now = False

    def _of_eager(self, call: EagerCall) -> RepeatableCall:
        if call.is_flat:
            return self._call(call.definition, list(call.inputs), call.attributes)
        given = dict(call.attributes)
        inputs: list[Any] = []
        for argument, value in zip(call.definition.input_arg, call.inputs):
            is_list = bool(argument.number_attr or argument.type_list_attr)
            tensors = [self._tensor(argument, part, given) for part in (value if is_list else [value])]
            _infer(argument, tensors, given)
            inputs += tensors
        return self._call(call.definition, inputs, given)

    def _tensor(self, argument: Any, value: Any, given: dict[str, Any]) -> Any:
        if private_api.has_value(value):
            return value
        dtype = argument.type or given.get(argument.type_attr) or None
        return value.handle if dtype == _RESOURCE else self._convert(value, dtype=dtype)

    def _call(self, definition: Any, inputs: list[Any], attributes: dict[str, Any]) -> RepeatableCall:
        """The call with variables in place of handles, and attributes as TensorFlow's door takes them."""
        variables = [place for place, value in enumerate(inputs) if value.dtype.as_datatype_enum == _RESOURCE]
        dtype = _enum(attributes.get("dtype", attributes.get("T")))
        for place in variables:
            (inputs[place],) = self._execute("ReadVariableOp", [inputs[place]], ("dtype", dtype), 1)
        flat: list[Any] = []
        for attribute in definition.attr:
            value = attributes.get(attribute.name)
            if value is not None:
                flat += [attribute.name, _plain(attribute.type, value)]
        return RepeatableCall(definition.name, inputs, variables, flat, _outputs(definition, attributes))

    # Functions

    def function(self, function: Any, inputs: Sequence[Any], found: Iterable[GraphOperator]) -> Any:
        """A function is about to be executed for the first time; inputs to give it instead, or None."""
        lines = {(one.function, one.operation): one.line for one in found}
        self._busy.now = True
        definitions = Definitions(self._context, self._execute)
        try:
            return self._function(definitions, _text(function.name), list(inputs), lines, type(inputs))
        finally:
            self._observer.agent.attempt(definitions.forget)
            self._busy.now = False

    def _function(self, definitions: Definitions, name: str, inputs: list[Any], lines: Lines, kind: Any) -> Any:
        iterators = definitions.iterators(name)
        given = None
        if iterators:
            try:
                inputs, given = self._take(iterators, inputs)
            except NotCapturedError as error:
                self._write_all(lines.values(), str(error))
                return None
        self._observer.agent.attempt(self._inside, definitions, name, "", inputs, lines)
        return None if given is None else kind(given)

    def _take(self, iterators: list[tuple[int, Any]], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        """The inputs with an iterator that gives the next element for ever, and with one that gives it once."""
        if len(iterators) > 1 or iterators[0][0] < 0:
            raise NotCapturedError("its function takes several batches from an iterator in one call")
        place, node = iterators[0]
        attributes = {name: _of_node(kind, node.attr[name]) for name, kind in _ELEMENT.items()}
        flat = [part for pair in attributes.items() for part in pair]
        try:
            element = self._execute("IteratorGetNext", [inputs[place]], flat, len(attributes["output_types"]))
        except Exception:
            raise NotCapturedError("its function found its iterator at the end") from None
        for_ever, once = list(inputs), list(inputs)
        for_ever[place] = self._iterator(element, flat, for_ever=True)
        once[place] = self._iterator(element, flat, for_ever=False)
        return for_ever, once

    def _iterator(self, element: list[Any], attributes: list[Any], *, for_ever: bool) -> Any:
        shapes = [list(tensor.shape) for tensor in element]
        types = attributes[1]
        (dataset,) = self._execute("TensorDataset", element, ("Toutput_types", types, "output_shapes", shapes), 1)
        if for_ever:
            inputs = [dataset, self._convert(-1, dtype="int64")]
            (dataset,) = self._execute("RepeatDataset", inputs, attributes, 1)
        iterator = self._execute("AnonymousIteratorV3", [], attributes, 1)[0]
        self._execute("MakeIterator", [dataset, iterator], (), 0)
        return iterator

    def _inside(
        self, definitions: Definitions, name: str, function: str, arguments: list[Any], lines: Lines, depth: int = 0
    ) -> None:
        """Repeat the operators of a function, and then those of the functions that it calls."""
        nodes = definitions.nodes(definitions.of(name))
        own = [node for node in nodes.values() if self._is_wanted(node, lines.get((function, node.proto.name)))]
        for batch in _batches(own):
            for node, inputs in self._inputs(definitions, name, arguments, batch, lines, function):
                self._repeat_node(node, inputs, lines[function, node.proto.name])
        calls = [node for node in nodes.values() if tensorflow_capture.calls_functions(node)]
        if depth < tensorflow_graphs.MAX_DEPTH:
            for node in calls:
                for _, inputs in self._inputs(definitions, name, arguments, [node], lines, function):
                    for inner in tensorflow_capture.inner_calls(node, inputs):
                        self._inside(definitions, inner.name, inner.name, inner.arguments, lines, depth + 1)

    def _is_wanted(self, node: Node, line: dict[str, Any] | None) -> bool:
        return line is not None and self._is_worth(node.operator, line)

    def _inputs(
        self,
        definitions: Definitions,
        name: str,
        arguments: list[Any],
        nodes: list[Node],
        lines: Lines,
        function: str,
    ) -> Iterator[tuple[Node, list[Any]]]:
        """Each of these nodes with its inputs; those whose inputs cannot be had are written down."""
        troubles = definitions.troubles(name)
        able: list[Node] = []
        for node in nodes:
            reasons = [troubles[part] for part in (text.split(":")[0] for text in node.inputs) if part in troubles]
            if not reasons:
                able.append(node)
            else:
                self._write_all(_lines_of(definitions, node, function, lines), reasons[0])
        wanted = list(dict.fromkeys(text for node in able for text in node.inputs))
        try:
            values = dict(zip(wanted, definitions.values(name, arguments, wanted)))
        except Exception as error:
            for node in able:
                known = _lines_of(definitions, node, function, lines)
                self._write_all(known, f"its inputs could not be had: {type(error).__name__}")
            return
        for node in able:
            yield node, [values[text] for text in node.inputs]

    def _repeat_node(self, node: Node, inputs: list[Any], line: dict[str, Any]) -> None:
        if not self._is_worth(node.operator, line):  # another one in the same batch was like it
            return
        try:
            kinds = {attribute.name: attribute.type for attribute in node.operator.attr}
            given = {name: _of_node(kinds[name], value) for name, value in node.proto.attr.items() if name in kinds}
            self._repeat(line, self._call(node.operator, inputs, given))
        except Exception as error:
            self._write(line, problem=f"{_CANNOT}: {type(error).__name__}")

    # Both

    def _is_worth(self, definition: Any, line: dict[str, Any]) -> bool:
        """Whether a call is to be repeated: not what is random, nor what changes more than variables."""
        if tensorflow_graphs.key_of(line) in self._done or line["phase"] == tensorflow_graphs.DATA:
            return False
        makes = [argument.type for argument in definition.output_arg]
        if (
            "variant" in line["dtypes"]
            or _VARIANT in makes
            or (definition.is_stateful and definition.name[:8] != "Resource")
        ):
            return False
        return not any(attribute.type in ("func", "tensor", "list(func)") for attribute in definition.attr)

    def _repeat(self, line: dict[str, Any], call: RepeatableCall) -> None:
        now = time.monotonic()
        self._end = self._end or now + MAX_SECONDS
        size = sum(_size(tensor) for tensor in call.inputs)
        if now > self._end or size > MAX_BYTES:
            why = "its inputs are too large" if size > MAX_BYTES else f"{MAX_SECONDS:.0f} s were spent on others"
            self._write(line, problem=f"it was not repeated, as {why}")
            return
        repeats, found = tensorflow_repeat.results(call, self._execute, self._observer.confirm)
        if len(found) == 1 and repeats == self._observer.confirm and _may_race(call.name):
            more, others = tensorflow_repeat.results(call, self._execute, MORE * repeats, MORE_SECONDS)
            repeats, found = repeats + more, list(dict.fromkeys(found + others))
        written = self._write(line, repeats=repeats, results=len(found))
        if line["device"] == "cpu" and all(tensor.dtype.as_datatype_enum != _STRING for tensor in call.inputs):
            self._kept.keep(call, found, written)

    def _write_all(self, lines: Iterable[dict[str, Any]], problem: str) -> None:
        for line in lines:
            self._write(line, problem=problem)

    def _write(self, line: dict[str, Any], repeats: int = 0, results: int = 0, problem: str = "") -> dict[str, Any]:
        key = tensorflow_graphs.key_of(line)
        names = ("framework", "version", "name", "phase", "device", "dtypes", "shapes", "attributes", "where")
        written = {name: line[name] for name in names}
        written.update(repeats=repeats, results=results, threads={}, capabilities={}, problem=problem)
        if key not in self._done:
            self._observer.write("confirmed", key, written)
        if not problem:
            self._done.add(key)
        return written


_ELEMENT = {"output_types": "list(type)", "output_shapes": "list(shape)"}
_FIELDS = {"int": "i", "float": "f", "bool": "b", "string": "s", "type": "type"}


def _lines_of(definitions: Definitions, node: Node, function: str, lines: Lines) -> list[dict[str, Any]]:
    """The line of a node, or those of all that it calls."""
    inner = definitions.called(node)
    return [
        line for (owner, name), line in lines.items() if owner in inner or (owner, name) == (function, node.proto.name)
    ]


def _may_race(name: str) -> bool:
    return any(word in name for word in _RACING)


def _batches(nodes: list[Node]) -> Iterator[list[Node]]:
    for start in range(0, len(nodes), BATCH):
        yield nodes[start : start + BATCH]


def _of_node(kind: str, value: Any) -> Any:
    """The value of a node's attribute."""
    if kind == "shape":
        return _dimensions(value.shape)
    if kind == "list(shape)":
        return [_dimensions(shape) for shape in value.list.shape]
    if kind.startswith("list("):
        return list(getattr(value.list, _FIELDS[kind[5:-1]]))
    return getattr(value, _FIELDS[kind]) if kind in _FIELDS else None


def _dimensions(shape: Any) -> list[int] | None:
    return None if shape.unknown_rank else [dimension.size for dimension in shape.dim]


def _plain(kind: str, value: Any) -> Any:
    """A value as TensorFlow's door takes it."""
    if kind == "type":
        return _enum(value)
    if kind == "list(type)":
        return [_enum(part) for part in value]
    if kind == "shape" and hasattr(value, "rank"):
        return None if value.rank is None else [-1 if size is None else size for size in value]
    return [_plain(kind[5:-1], part) for part in value] if kind.startswith("list(") else value


def _enum(dtype: Any) -> Any:
    return getattr(dtype, "as_datatype_enum", dtype)


def _infer(argument: Any, tensors: list[Any], given: dict[str, Any]) -> None:
    """The attributes that say how many tensors an argument has, and of which types."""
    types = [tensor.dtype.as_datatype_enum for tensor in tensors]
    if argument.number_attr:
        given[argument.number_attr] = len(tensors)
    if argument.type_list_attr:
        given[argument.type_list_attr] = types
    elif argument.type_attr and types:
        given[argument.type_attr] = types[0]


def _outputs(definition: Any, attributes: dict[str, Any]) -> int:
    count = 0
    for argument in definition.output_arg:
        if argument.number_attr:
            count += int(attributes[argument.number_attr])
        elif argument.type_list_attr:
            count += len(attributes[argument.type_list_attr])
        else:
            count += 1
    return count


def _size(tensor: Any) -> int:
    size = getattr(tensor.dtype, "size", 0) or 1
    for length in tensor.shape:
        size *= int(length)
    return size


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
