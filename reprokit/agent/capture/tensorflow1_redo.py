"""Does a captured step of TensorFlow 1's Keras again, at the first step of the user's own script.

The graph is the one that captures; what its random operations draw is given to it in their place. Nothing is updated.
"""

from __future__ import annotations

import sys

from ..observing import places
from . import tensorflow1_graph as graphs
from .reading import SnapshotError
from .redoing import Redoing, Seen
from .tensorflow1_state import Saved, part_of
from .tensorflow_causes import BACKWARD, FORWARD, Origin, Trace, line, nonfinite_count
from .tensorflow_state import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from . import Capture
    from .tensorflow1_capture import Guard

    Place = tuple[str, int, str]

MAX_AT_ONCE = 256 << 20  # bytes of tensors that are read in one execution, as far as their sizes are known


class TensorFlow1Redo:
    """Waits for the first step of the script."""

    def __init__(self, capture: Capture) -> None:
        from .tensorflow1_capture import TensorFlow1Capture

        self.redoing = Redoing(capture)
        self._capturing = TensorFlow1Capture(capture, self)

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to Keras, as for a capture."""
        self._capturing.begin(name, module)

    def forget(self) -> None:
        """In a forked child: what the parent noted is the parent's."""
        self._capturing.forget()

    def step(self, guard: Guard, _run: Callable[[Any], Any], _inputs: Any) -> None:
        """In the place of the script's first step."""
        self.redoing.run(lambda: Doer(guard, self.redoing))


class Doer:
    """Executes the step as often as it is asked to."""

    def __init__(self, guard: Guard, redoing: Redoing) -> None:
        self._guard = guard
        self._saved = Saved(redoing.file)
        self._backend: Any = sys.modules["tensorflow.python.keras.backend"]
        self._inputs = self._matching(guard.function.inputs, self._saved.batch())
        self._random = self._drawn(guard.reads.random)
        self._saved.put(guard.model)

    @property
    def samples(self) -> int:
        """The size of the batch."""
        return self._saved.samples

    def _matching(self, tensors: Sequence[Any], values: list[Any]) -> list[Any]:
        """The inputs of the snapshot, if they are what this script's model takes."""
        if len(tensors) != len(values):
            raise SnapshotError(f"the step of the script takes {len(tensors)} inputs, the snapshot holds {len(values)}")
        for tensor, value in zip(tensors, values):  # noqa: B905
            shape = getattr(value, "shape", None)
            if shape is not None and not tensor.shape.is_compatible_with(shape):
                raise SnapshotError(
                    f"{tensor.name} takes {tensor.shape} in the script, the snapshot holds {list(shape)}"
                )
        return values

    def _drawn(self, tensors: Sequence[Any]) -> dict[Any, Any]:
        kept = self._saved.random()
        missing = [tensor.name for tensor in tensors if tensor.name not in kept]
        if missing:
            raise SnapshotError(f"the snapshot holds no random numbers for {missing[0]}: it is another model")
        return {tensor: kept[tensor.name] for tensor in tensors}

    def execute(self, samples: Sequence[int] | None) -> Seen:
        """Execute the step on these samples."""
        test = self._guard.test
        values = self._fetch([test.loss, *test.values], samples)
        loss, gradients = values[0], values[1:]
        names = self._guard.names()
        bad = {}
        for name, array in [("loss", loss), *zip(names, gradients)]:  # noqa: B905
            count = nonfinite_count(array)
            if count:
                bad[name] = (count, int(array.size))
        digests = {name: digest(array) for name, array in zip(names, gradients)}  # noqa: B905
        norm = sum(float((array.astype("float64") ** 2).sum()) for array in gradients) ** 0.5
        notes = [f"the random numbers of {name} are other ones" for name in self._guard.reads.unread]
        return Seen(digests, bad, (float(loss), digest(loss)), norm, notes)

    def _fetch(self, tensors: Sequence[Any], samples: Sequence[int] | None) -> list[Any]:
        """Read tensors in an execution of the step that changes nothing."""
        numpy = sys.modules["numpy"]
        session = self._backend.get_session()
        inputs, random = self._inputs, list(self._random.values())
        if samples is not None:
            inputs, random = part_of(inputs, samples, self.samples), part_of(random, samples, self.samples)
        fed = [(tensor, value) for tensor, value in zip(self._guard.function.inputs, inputs) if value is not None]  # noqa: B905
        fed += list(zip(self._random, random))  # noqa: B905
        kind = sys.modules["tensorflow.core.protobuf.config_pb2"].CallableOptions
        wanted = kind(fetch=[tensor.name for tensor in tensors], feed=[tensor.name for tensor, _ in fed])
        call = session._make_callable_from_options(wanted)
        arrays = [numpy.asarray(value, tensor.dtype.base_dtype.as_numpy_dtype) for tensor, value in fed]
        return [numpy.asarray(value) for value in call(*arrays)]

    # The operation that began it

    def explain(self) -> dict[str, Any] | None:
        """Read all that the step computes, and find what began it."""
        test = self._guard.test
        roots = [test.loss, *test.values]
        operations = [one for one in graphs.needed([root.op for root in roots]) if graphs.runs(one)]
        values = self._values(operations)
        trace = Trace()
        for operation in operations:
            outputs = [(tensor.name, values.get(tensor.name)) for tensor in operation.outputs]
            if outputs:
                self._add(trace, operation, outputs, values)
        cause = trace.cause([root.name for root in roots])
        given = [value for value in self._inputs if getattr(getattr(value, "dtype", None), "kind", "") == "f"]
        return None if cause is None else line(cause, given)

    def _add(self, trace: Trace, operation: Any, outputs: list[tuple[Any, Any]], values: dict[str, Any]) -> None:
        phase, origin = _origin(operation)
        trace.add(
            operation.type,
            phase,
            lambda: origin,
            lambda: [(tensor.name, values.get(tensor.name)) for tensor in operation.inputs],
            outputs,
        )

    def _values(self, operations: Sequence[Any]) -> dict[str, Any]:
        """The numbers of all tensors, some at a time."""
        found: dict[str, Any] = {tensor.name: value for tensor, value in self._random.items()}
        for tensor, value in zip(self._guard.function.inputs, self._inputs):  # noqa: B905
            if hasattr(value, "dtype"):
                found[tensor.name] = value
        for tensors in _portions([tensor for one in operations for tensor in one.outputs if _is_read(tensor, found)]):
            for tensor, array in zip(tensors, self._fetch(tensors, None)):  # noqa: B905
                found[tensor.name] = array
        return found


def _is_read(tensor: Any, known: dict[str, Any]) -> bool:
    dtype = tensor.dtype
    numbers = dtype.is_floating or dtype.is_integer or dtype.is_complex
    return numbers and not dtype._is_ref_dtype and tensor.name not in known and tensor.op.type != "Placeholder"


def _portions(tensors: list[Any]) -> Iterator[list[Any]]:
    """Tensors in groups that fit into memory together."""
    size, group = 0, []
    for tensor in tensors:
        size += (tensor.shape.num_elements() or 1 << 20) * tensor.dtype.size
        group.append(tensor)
        if size > MAX_AT_ONCE:
            yield group
            size, group = 0, []
    if group:
        yield group


def _origin(operation: Any) -> tuple[str, Origin]:
    """The phase of an operation, and the user's lines: a gradient's operation has those of the one before."""
    forward = operation
    while getattr(forward, "_original_op", None) is not None:
        forward = forward._original_op
    phase = FORWARD if forward is operation else BACKWARD
    frames = [(frame[0], frame[1], frame[2]) for frame in forward.traceback]
    where = [frame for frame in reversed(frames) if places.is_users(frame[0])][: places.MAX_PLACES]
    return phase, Origin(forward.type, where, _layer(forward.name))


def _layer(name: str) -> str:
    """The layer's name out of an operation's: without the model's before it and the operation's own."""
    parts = name.split("/")
    return "/".join(parts[1:-1]) if len(parts) > 2 and parts[0] != "loss" else "/".join(parts[:-1])
