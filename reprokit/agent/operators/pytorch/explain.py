"""Finds the operator of a PyTorch step that turned finite values into non-finite ones: a listener of their events.

It sees each operator below autograd, of the forward and of the backward pass. For each with non-finite results it
records which inputs were not finite, and which operator produced them. So a loss or a gradient is traced
back to the origin, past infinities that a mask adds and a softmax removes. Compiled code runs eagerly for it.
"""

from __future__ import annotations

import sys

from ...capture.variables import lines_that_made, user_functions
from ...core.signal_errors import pass_on
from ...events.operators import BACKWARD, FORWARD
from ...pytorch import private_api
from ...pytorch.operators import PytorchOperatorEvents
from ...pytorch.places import Places
from ...pytorch.private_api import storage
from ...pytorch.tensors import dtype_name, entry, is_finite, is_tensor, numbers, tensors_in
from ..explain import (
    CALLED_WITH,
    MAX_DESCRIBED,
    MAX_TENSORS,
    CallOrigin,
    OperandStatistics,
    OperatorEvent,
    OperatorTrace,
    cause,
    line,
)
from .reasons import reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ...core.user_frames import Place
    from ...pytorch.operators import PytorchCalled, PytorchOperator
    from ...pytorch.tensor_names import TensorNames

MAX_NODES = 500_000  # of the graph, of which operator and layer are kept
MAX_COMPARED = 1 << 20  # elements of a tensor that is known again by its bytes
MAX_NAMED = 5  # operators that could not be inspected
OWN_MODE = "operators were not seen: the script has a dispatch mode of its own, such as one that counts operations"
HANDED_ON = "results of {} were handed on by other ways than operators, as by NumPy or pickle: known by their bytes"
_ALIASING = frozenset(["aten::set_"])  # operators that compute nothing, as those that return views
_COPYING = frozenset(["aten::copy_", "aten::clone"])
_TRANSPOSES = frozenset(["aten::t", "aten::transpose", "aten::permute"])  # views
_SELECTS = frozenset(["aten::masked_select", "aten::take"])


class NotSupportedError(Exception):
    """This version of PyTorch gives no access to its operators."""


class _NodePlaces(Places):
    """Records the operator and the layer of each node of the autograd graph, beside the places of Places."""

    def __init__(self, torch: Any, layer: Callable[[], str]) -> None:
        super().__init__(torch)
        self._layer = layer
        self._node_origins: dict[int, tuple[str, str]] = {}

    def forget(self) -> None:
        """Keep everything: only one step is watched."""

    def _note(self, places: list[Place]) -> None:
        before = self._seen
        super()._note(places)
        if self._seen != before and len(self._node_origins) < MAX_NODES:
            origin = self.operator, self._layer()
            for number in range(before, self._seen):
                self._node_origins[number] = origin

    def of_node(self) -> tuple[str, str, str]:
        """Return the names of the node being evaluated, of the operator that made it, and of its layer."""
        node = self._node() if self._node is not None else None
        if node is None:
            return "", "", ""
        return (node.name(), *self._node_origins.get(private_api.node_number(node), ("", "")))

    def saved_values(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of what the current node saved in the forward pass."""
        node = self._node() if self._node is not None else None
        for name in dir(node) if node is not None else ():
            if name.startswith("_saved_"):
                try:
                    yield "saved " + name[len("_saved_") :], getattr(node, name)
                except RuntimeError:  # the node has released it
                    continue


class OperatorExplainer:
    """Watches the operators of this thread and of its backward passes, from begin() to end()."""

    def __init__(self, torch: Any) -> None:
        if not (private_api.sees_operators(torch) and private_api.tells_nodes(torch)):
            raise NotSupportedError(f"PyTorch {torch.__version__} does not tell of its operators; 2.1 does")
        self._torch = torch
        self._names: dict[int, str] = {}  # of modules, by id
        self._layers: list[str] = []
        self._trace = OperatorTrace()  # its keys are tensors' storages
        self._names_by_storage: dict[int, str] = {}  # of tensors that existed before
        self._lines: dict[int, list[Place]] = {}  # of the script that made a tensor without operators, by storage
        self._described_count = 0
        self._unread: dict[str, str] = {}  # operators of which a call could not be inspected, and why
        self._is_hidden = False  # by a mode of the script
        self._handed_on: OperatorEvent | None = None  # the first whose results came back by other ways than operators
        self._batch: range | None = None
        self._hooks: list[Any] = []
        self._rows = RowOrderTracker(torch, lambda tensor: self._known_name(tensor).startswith("parameter"))
        self._events = PytorchOperatorEvents(
            torch, self, lambda: _NodePlaces(torch, self._layer), viewed=self._rows.note_view
        )

    def begin(self) -> None:
        """Begin watching. Not a context manager, as it begins and ends in different functions."""
        if self._hooks:
            return
        module: Any = sys.modules["torch.nn.modules.module"]
        self._hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        self._is_hidden = not self._events.watch(True)

    def set_names(self, names: TensorNames, others: Iterable[tuple[str, Any]]) -> None:
        """Set the names of modules, of parameters, and of other tensors that no operator makes."""
        self._names = {}
        for model in names.models:
            for name, module in model.named_modules():
                self._names.setdefault(id(module), name)
        self._names_by_storage = {storage(tensor): f"parameter {name}" for name, tensor in names.tensors.items()}
        self._names_by_storage.update({storage(tensor): name for name, tensor in others})

    def begin_samples(self, batch: range | None) -> None:
        """Attribute operators from now on to these samples (None: unknown); earlier ones made the batch."""
        self._batch = batch
        self._rows.forget()

    def note_collated(self, batch: Any, samples: range) -> None:
        """Attribute the non-finite rows of a batch to the samples that were collated into it."""
        for tensor in tensors_in(batch):
            if tensor.shape[:1] == (len(samples),) and not is_finite(tensor):
                rows = (~self._torch.isfinite(numbers(tensor))).flatten(1).any(1).nonzero().flatten().tolist()
                for event in self._trace.ancestors(storage(tensor)) if len(rows) < len(samples) else ():
                    event.affected_samples += [samples[row] for row in rows]

    def end(self) -> None:
        """Stop watching, unless a mode of the user's lies above: then watching ends with the process."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._events.watch(False)

    def cause(self, targets: Iterable[Any], samples: int | None, indices: Sequence[int] = ()) -> dict[str, Any]:
        """Return the first cause of these non-finite tensors; among all calls seen if no trace leads back from them.

        ``indices`` are the samples' in the data set, if known.
        """
        calls = self._trace.ancestors_or_all(storage(tensor) for tensor in targets)
        if any(event.foreign_inputs for event in calls) and not any(event.has_known_cause for event in calls):
            # Tensors without a producer lie in memory that a collective wrote, such as DDP's buckets.
            calls = [event for event in self._trace.events if event.has_known_cause] or calls
        first_cause = cause(calls)
        if first_cause is None:
            words = OWN_MODE if self._is_hidden else "no operator turned finite values into others"
            return {"words": words, "phase": None, "operation": None}
        entry = line(first_cause, samples)
        return (
            {**entry, "indices": [indices[row] for row in entry["samples"]]} if entry["samples"] and indices else entry
        )

    def problems(self) -> Iterator[str]:
        """Yield what was not seen of the step, which may be where it began."""
        if self._is_hidden:
            yield OWN_MODE
        if self._handed_on is not None:
            yield HANDED_ON.format(self._handed_on.name)
        if self._unread:
            named = ", ".join(f"{name} ({why})" for name, why in list(self._unread.items())[:MAX_NAMED])
            count = f"{len(self._unread)} operator{'' if len(self._unread) == 1 else 's'}"
            yield f"calls of {count} could not be inspected: {named}"

    # Layers

    def _enter(self, module: Any, _inputs: Any) -> None:
        name = self._names.get(id(module))
        self._layers.append(type(module).__name__ if name is None else name)

    def _leave(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._layers:
            self._layers.pop()

    def _layer(self) -> str:
        return next((name for name in reversed(self._layers) if name), "")

    # Calls

    def begins(self, call: PytorchCalled) -> tuple[int, Any, Any] | None:
        """Inspect the inputs of a call."""
        if call.operator.name in _ALIASING:
            return None
        self._trace.count += 1
        return (self._trace.count, *self._inspect_inputs(call))

    def ended(self, call: PytorchCalled, inspected: tuple[int, Any, Any]) -> None:
        """Inspect the results of a call."""
        self._inspect_results(call, inspected)

    def failed(self, name: str, error: Exception) -> None:
        """Note an operator of which a call could not be inspected; the script goes on."""
        self._unread.setdefault(name, f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")

    def _inspect_inputs(self, call: PytorchCalled) -> tuple[Any, Any]:
        """Return the inputs that are not finite, with their producers, and statistics of those that will change."""
        bad = [pair for pair in _input_tensors(call) if not is_finite(pair[1])]
        produced_inputs = [(*pair, self._producer(pair[1])) for pair in bad]
        if call.phase == FORWARD:
            self._note_lines([tensor for _, tensor, producer in produced_inputs if producer is None])
        return produced_inputs, self._input_statistics(call) if call.operator.changes and not bad else None

    def _producer(self, tensor: Any) -> OperatorEvent | None:
        """Return the call that produced a tensor's non-finite values, also if they were handed on as bytes since."""
        producer = self._trace.producer([storage(tensor)])
        if producer is not None:
            return producer
        producer = self._trace.producer(_content_keys(tensor))
        self._handed_on = self._handed_on or producer
        return producer

    def _inspect_results(self, call: PytorchCalled, inspected: tuple[int, Any, Any]) -> None:
        operator = call.operator
        outputs = [*tensors_in(call.outputs)]
        if operator.changes:
            outputs += _written_tensors(call)
        is_moved = self._rows.reorders(operator, call.inputs, call.keywords, outputs)
        bad = [] if operator.is_uninitialized else [output for output in outputs if not is_finite(output)]
        if bad:
            event = self._event(call, inspected, bad)
            event.samples = range(0) if is_moved else self._batch
            self._trace.add(event, [storage(tensor) for tensor in bad])
            self._trace.add_keys(event, [key for tensor in bad for key in _content_keys(tensor)])
        elif operator.name in _COPYING and not any(output.is_floating_point() for output in outputs):
            self._carry(call, outputs)
        elif not operator.changes:
            self._trace.forget(storage(tensor) for tensor in outputs)

    def _carry(self, call: PytorchCalled, outputs: list[Any]) -> None:
        """Note who produced what was copied as bytes, as deepcopy does: the copy may be read as other numbers."""
        producer = self._trace.producer(storage(tensor) for _, tensor in _input_tensors(call))
        for tensor in outputs:
            self._trace.assign(producer, storage(tensor))

    def _event(self, call: PytorchCalled, inspected: tuple[int, Any, Any], bad: list[Any]) -> OperatorEvent:
        number, produced_inputs, statistics = inspected
        node, gradient_of, layer = call.places.of_node() if call.phase == BACKWARD else ("", "", "")
        origin = CallOrigin(call.where, layer or self._layer(), gradient_of, node)
        event = OperatorEvent(number, call.operator.name, call.phase, origin)
        event.parents = [producer for _, _, producer in produced_inputs if producer is not None]
        event.is_intended = any(map(_is_infinite, [*call.inputs, *call.keywords.values()]))
        had_nan = any(_has_nan(self._torch, tensor) for _, tensor, _ in produced_inputs)
        event.introduces_nan = not had_nan and any(_has_nan(self._torch, tensor) for tensor in bad)
        foreign = [(name, tensor) for name, tensor, producer in produced_inputs if producer is None]
        if len(self._trace.events) < MAX_DESCRIBED:
            event.foreign_inputs = [
                (self._known_name(value), _statistics(self._torch, name, value)) for name, value in foreign
            ]
            keys = [storage(tensor) for _, tensor in foreign]
            event.lines = next((self._lines[key] for key in keys if key in self._lines), None)
        if self._described_count < MAX_DESCRIBED and (event.is_origin or event.foreign_inputs or event.introduces_nan):
            self._described_count += 1
            self._describe_event(event, statistics or self._input_statistics(call), bad)
            if call.phase == FORWARD:
                event.reason = self._reason_of(call)
        return event

    def _reason_of(self, call: PytorchCalled) -> str | None:
        try:
            return reason_of(self._torch, call.operator, call.inputs, call.keywords)
        except Exception as error:
            self.failed(call.operator.name, error)
            pass_on(error)
            return None

    def _known_name(self, tensor: Any) -> str:
        return self._names_by_storage.get(storage(tensor), "")

    def _note_lines(self, tensors: list[Any]) -> None:
        """Record the script's lines that made these tensors, unless a loader or the model provided them."""
        for tensor in tensors:
            keys, name = [storage(tensor)], self._known_name(tensor)
            if name in ("", CALLED_WITH) and not any(key in self._lines for key in keys):
                lines = lines_that_made(user_functions(sys._getframe(1)), _is_finite, name == "")
                self._lines.update(dict.fromkeys(keys, lines))

    def _describe_event(self, event: OperatorEvent, inputs: list[OperandStatistics], bad: list[Any]) -> None:
        values = numbers(bad[0]) if bad[0].layout is self._torch.strided else None
        event.describe(
            self._torch, inputs, [_statistics(self._torch, "", tensor) for tensor in bad[:MAX_TENSORS]], values
        )

    def _input_statistics(self, call: PytorchCalled) -> list[OperandStatistics]:
        """Return statistics of the operator's inputs, including tensors that the graph saved for it."""
        statistics = [_statistics(self._torch, name, tensor) for name, tensor in _input_tensors(call)]
        number = dict(zip(call.operator.names, call.inputs)).get("other")
        if type(number) in (int, float):  # in place of a tensor, as the divisor of x / 0
            tensor = self._torch.tensor(number, dtype=self._torch.float64, device="cpu")
            statistics.append(_statistics(self._torch, "other", tensor))
        if call.phase == BACKWARD:
            for name, value in call.places.saved_values():
                for tensor in tensors_in(value):
                    statistics.append(_statistics(self._torch, name, tensor))
        return statistics


def _is_finite(value: Any) -> bool:
    return is_finite(value) if is_tensor(value) else bool(sys.modules["numpy"].isfinite(value).all())


def _statistics(torch: Any, name: str, tensor: Any) -> OperandStatistics:
    limits = torch.finfo(tensor.dtype) if tensor.is_floating_point() or tensor.is_complex() else None
    return OperandStatistics(torch, numbers(tensor), name, dtype_name(tensor), tensor.shape, limits)


def _input_tensors(call: PytorchCalled) -> list[tuple[str, Any]]:
    """Return the tensors whose values an operator reads, with the names of its arguments."""
    first = int(call.operator.overwrites)
    named = [*zip(call.operator.names[first:], call.inputs[first:]), *call.keywords.items()]
    return [
        (name, tensor) for name, value in named if name != "out" and value is not None for tensor in tensors_in(value)
    ]


def _written_tensors(call: PytorchCalled) -> list[Any]:
    """Return the arguments that an operator may have written to, if it does not return them."""
    return [] if call.operator.returns_values else [*tensors_in([call.inputs[:1], call.keywords.get("out")])]


def _content_keys(tensor: Any) -> list[tuple[Any, ...]]:
    """Return what identifies a tensor by its bytes, if it has more than one element: other NaNs can be the same."""
    if tensor.layout is not sys.modules["torch"].strided or not 1 < tensor.numel() <= MAX_COMPARED:
        return []
    _, dtype, shape, content = entry("", tensor)
    return [(dtype, tuple(shape), content)]


def _has_nan(torch: Any, tensor: Any) -> bool:
    return bool(torch.isnan(numbers(tensor)).any())


def _is_infinite(value: Any) -> bool:
    """Return whether an argument is a non-finite number, such as masked_fill's."""
    return type(value) is float and value - value != 0


class RowOrderTracker:
    """Follows a step's operators: a tensor is reordered if an operator reorders rows, or reads a reordered tensor."""

    def __init__(self, torch: Any, is_parameter: Callable[[Any], bool]) -> None:
        self._torch = torch
        self._is_parameter = is_parameter
        self._reordered: set[int] = set()  # storages whose rows are in no known order
        self._transposed: set[Any] = set()  # storages, or pairs with strides, whose first axis is not the samples'

    def forget(self) -> None:
        """Regard the rows of all existing tensors as samples in order."""
        self._reordered.clear()
        self._transposed.clear()

    def note_view(self, operator: PytorchOperator, args: Any, result: Any) -> None:
        """Record a transposing view of axes of one size, where the count of rows does not show the exchange."""
        first: Any = next(iter(args), None)
        if operator.name in _TRANSPOSES and first.dim() > 1 and first.shape[0] == result.shape[0]:
            if first.stride()[0] != result.stride()[0] and not self._is_parameter(first):
                self._transposed.add((storage(result), result.stride()))

    def reorders(self, operator: PytorchOperator, args: Any, kwargs: Any, result: Any) -> bool:
        """Record an operator; return whether the rows of its results may not be the batch's in order."""
        inputs = [*tensors_in(args), *tensors_in(kwargs)]
        results = [*tensors_in(result)]
        keys = [storage(tensor) for tensor in results]
        is_reordered = any(storage(tensor) in self._reordered for tensor in inputs)
        is_transposed, is_moving = any(map(self._is_transposed, inputs)), self._is_reordering(operator, args, kwargs)
        if (
            is_transposed
            and is_moving
            and not is_reordered
            and all(output.dim() < inputs[0].dim() for output in results)
        ):
            is_transposed = is_moving = False  # a sum along the first axis leaves the samples' axis first
        is_reordered = is_reordered or is_moving
        if is_reordered or is_transposed:
            (self._reordered if is_reordered else self._transposed).update(keys)
        elif not operator.changes:  # their memory may be that of an earlier, reordered tensor
            self._reordered.difference_update(keys)
            self._transposed.difference_update(keys)
        return is_reordered or is_transposed

    def _is_transposed(self, tensor: Any) -> bool:
        key = storage(tensor)
        has_strides = tensor.layout is self._torch.strided
        return key in self._transposed or (has_strides and (key, tensor.stride()) in self._transposed)

    def _is_reordering(self, operator: PytorchOperator, args: Any, kwargs: Any) -> bool:
        if operator.name in ("aten::index", "aten::_unsafe_index"):
            return not self._is_in_order(args[0], args[1][0])
        attributes = operator.attributes(args, kwargs)
        axes = attributes.get("dims", attributes.get("dim", ()))
        first = next(tensors_in(args), None)
        worked_axes = [axes] if isinstance(axes, int) else axes if isinstance(axes, list) else []
        is_along = first is not None and any(axis in (0, -first.dim()) for axis in worked_axes)
        if operator.name == "aten::stack":  # it joins rows that were made one by one, in order
            return False
        return is_along or operator.name in _SELECTS or (operator.name == "aten::roll" and axes == [])

    def _is_in_order(self, tensor: Any, index: Any) -> bool:
        """Return whether this index of the first axis keeps the order of rows."""
        if index is None:
            return True
        if index.dtype in (self._torch.bool, self._torch.uint8):
            return bool(index.all())
        return index.shape == tensor.shape[:1] and bool((index.flatten().diff() == 1).all()) and int(index[0]) == 0
