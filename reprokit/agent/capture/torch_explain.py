"""Watches a PyTorch step operator by operator, and finds the one that turned finite values into non-finite ones.

A dispatch mode sees each operator below autograd, of the forward and of the backward pass. For each with non-finite
results it records which inputs were not finite, and which operator produced them. So a loss or a gradient is traced
back to the origin, past infinities that a mask adds and a softmax removes. Compiled code runs eagerly for it.

If a replay of the recording executes the step (InPlaceExplanation), the capture works as it did in the recording; its
result is compared with the snapshot, bit by bit, and explained.
"""

from __future__ import annotations

import sys
from collections import deque

from ..core.signal_errors import pass_on
from ..events import steps as events
from ..operators.torch_calls import Operator, passed_on
from ..operators.torch_places import BACKWARD, FORWARD, OURS, Places
from ..pytorch import private_api
from ..pytorch.dispatch_modes import DispatchModes
from ..pytorch.private_api import storage
from ..pytorch.tensors import dtype_name, entry, is_finite, is_tensor, numbers, tensors_in
from .causes import (
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
from .header import PARAMETER, SnapshotHeader
from .redo import RedoDriver, StepOutcome
from .settings import LOSS_ABOVE
from .torch_reasons import reason_of
from .torch_rows import RowOrderTracker
from .torch_trials import SORTED
from .variables import lines_that_made, user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")

    from ..core.user_frames import Place
    from .torch_capture import CaptureContext
    from .torch_fit import ParameterNames

MAX_NODES = 500_000  # of the graph, of which operator and layer are kept
MAX_COMPARED = 1 << 20  # elements of a tensor that is known again by its bytes
MAX_NAMED = 5  # operators that could not be inspected
AHEAD = 8  # batches that a script may fetch ahead of the step that uses them
OWN_MODE = "operators were not seen: the script has a dispatch mode of its own, such as one that counts operations"
HANDED_ON = "results of {} were handed on by other ways than operators, as by NumPy or pickle: known by their bytes"
LAST = "indices in the data set are told as if the step worked on what its loader gave last, in that order"

_ALIASING = frozenset(["aten::set_"])  # operators that compute nothing, as those that return views
_COPYING = frozenset(["aten::copy_", "aten::clone"])


class NotSupportedError(Exception):
    """This version of PyTorch gives no access to its operators."""


class _NodePlaces(Places):
    """Records the operator and the layer of each node of the autograd graph, beside the places of Places."""

    def __init__(self, torch: Any, layer: Callable[[], str]) -> None:
        super().__init__(torch)
        self._layer = layer
        self._node_origins: dict[int, tuple[str, str]] = {}
        self.operator = ""

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

    watching = True

    def __init__(self, torch: Any) -> None:
        if not (private_api.sees_operators(torch) and private_api.tells_nodes(torch)):
            raise NotSupportedError(f"PyTorch {torch.__version__} does not tell of its operators; 2.1 does")
        self._torch = torch
        self._names: dict[int, str] = {}  # of modules, by id
        self._layers: list[str] = []
        self._operators: dict[Any, Operator] = {}
        self._trace = OperatorTrace()  # its keys are tensors' storages
        self._names_by_storage: dict[int, str] = {}  # of tensors that existed before
        self._lines: dict[int, list[Place]] = {}  # of the script that made a tensor without operators, by storage
        self._described_count = 0
        self._unread: dict[str, str] = {}  # operators of which a call could not be inspected, and why
        self._is_hidden = False  # by a mode of the script
        self._handed_on: OperatorEvent | None = None  # the first whose results came back by other ways than operators
        self._batch: range | None = None
        self._hooks: list[Any] = []
        self._places: Any = None  # of the current call
        self._rows = RowOrderTracker(torch, lambda tensor: self._known_name(tensor).startswith("parameter"))
        self._modes = DispatchModes(torch, self, lambda: _NodePlaces(torch, self._layer))

    def begin(self) -> None:
        """Begin watching. Not a context manager, as it begins and ends in different functions."""
        if self._hooks:
            return
        module: Any = sys.modules["torch.nn.modules.module"]
        self._hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        self._is_hidden = not self._modes.enter()

    def set_names(self, names: ParameterNames, others: Iterable[tuple[str, Any]]) -> None:
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
        self._modes.leave()

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

    def call(self, mode: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Execute a call unchanged, and inspect its inputs and results."""
        operator, places = self._operators.get(function), mode.places
        self._places = places
        if operator is None and private_api.schema(function) is not None:
            operator = self._operators[function] = Operator(function)
        if operator is None or (operator.is_silent and not places.made_node()):
            return self._passed_on(operator, function, args, kwargs)
        places.operator = operator.name
        where, phase = places.of_call(2)
        if operator.is_silent or operator.name in _ALIASING or phase == OURS:
            return self._passed_on(operator, function, args, kwargs)
        before = self._attempt(operator, self._inspect_inputs, operator, args, kwargs, phase)
        result = passed_on(self._torch, function, args, kwargs)
        self._trace.count += 1
        if before is not None:
            self._attempt(operator, self._inspect_results, operator, args, kwargs, result, (where, phase, *before))
        return result

    def _attempt(self, operator: Operator, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return a function's result; a call that cannot be inspected is noted, and the script goes on."""
        try:
            return function(*arguments)
        except Exception as error:  # kinds of tensors that few operators support
            pass_on(error)
            self._unread.setdefault(operator.name, f"{type(error).__name__}: {' '.join(str(error).split())[:100]}")
            return None

    def _inspect_inputs(self, operator: Operator, args: Any, kwargs: Any, phase: str) -> tuple[Any, Any]:
        """Return the inputs that are not finite, with their producers, and statistics of those that will change."""
        bad = [pair for pair in _input_tensors(operator, args, kwargs) if not is_finite(pair[1])]
        produced_inputs = [(*pair, self._producer(pair[1])) for pair in bad]
        if phase == FORWARD:
            self._note_lines([tensor for _, tensor, producer in produced_inputs if producer is None])
        operands = self._input_statistics(operator, args, kwargs, phase) if operator.changes and not bad else None
        return produced_inputs, operands

    def _producer(self, tensor: Any) -> OperatorEvent | None:
        """Return the call that produced a tensor's non-finite values, also if they were handed on as bytes since."""
        producer = self._trace.producer([storage(tensor)])
        if producer is not None:
            return producer
        producer = self._trace.producer(_content_keys(tensor))
        self._handed_on = self._handed_on or producer
        return producer

    def _passed_on(self, operator: Operator | None, function: Any, args: Any, kwargs: Any) -> Any:
        result = passed_on(self._torch, function, args, kwargs)
        if operator is not None and operator.is_silent:
            self._rows.note_view(operator, args, result)
        return result

    def _inspect_results(self, operator: Operator, args: Any, kwargs: Any, result: Any, call_facts: Any) -> None:
        outputs = [*tensors_in(result)]
        if operator.changes:
            outputs += _written_tensors(operator, args, kwargs)
        is_moved = self._rows.reorders(operator, args, kwargs, outputs)
        bad = [] if operator.is_uninitialized else [output for output in outputs if not is_finite(output)]
        if bad:
            event = self._event(operator, args, kwargs, call_facts, bad)
            event.samples = range(0) if is_moved else self._batch
            self._trace.add(event, [storage(tensor) for tensor in bad])
            self._trace.add_keys(event, [key for tensor in bad for key in _content_keys(tensor)])
        elif operator.name in _COPYING and not any(output.is_floating_point() for output in outputs):
            self._carry(operator, args, kwargs, outputs)
        elif not operator.changes:
            self._trace.forget(storage(tensor) for tensor in outputs)

    def _carry(self, operator: Operator, args: Any, kwargs: Any, outputs: list[Any]) -> None:
        """Note who produced what was copied as bytes, as deepcopy does: the copy may be read as other numbers."""
        producer = self._trace.producer(storage(tensor) for _, tensor in _input_tensors(operator, args, kwargs))
        for tensor in outputs:
            self._trace.assign(producer, storage(tensor))

    def _event(self, operator: Operator, args: Any, kwargs: Any, call_facts: Any, bad: list[Any]) -> OperatorEvent:
        where, phase, produced_inputs, statistics = call_facts
        node, gradient_of, layer = self._places.of_node() if phase == BACKWARD else ("", "", "")
        origin = CallOrigin(where, layer or self._layer(), gradient_of, node)
        event = OperatorEvent(self._trace.count, operator.name, phase, origin)
        event.parents = [producer for _, _, producer in produced_inputs if producer is not None]
        event.is_intended = any(map(_is_infinite, [*args, *kwargs.values()]))
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
            self._describe_event(event, statistics or self._input_statistics(operator, args, kwargs, phase), bad)
            if phase == FORWARD:
                event.reason = self._attempt(operator, reason_of, self._torch, operator, args, kwargs)
        return event

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

    def _input_statistics(self, operator: Operator, args: Any, kwargs: Any, phase: str) -> list[OperandStatistics]:
        """Return statistics of the operator's inputs, including tensors that the graph saved for it."""
        statistics = [_statistics(self._torch, name, tensor) for name, tensor in _input_tensors(operator, args, kwargs)]
        number = dict(zip(operator.names, args)).get("other")
        if type(number) in (int, float):  # in place of a tensor, as the divisor of x / 0
            tensor = self._torch.tensor(number, dtype=self._torch.float64, device="cpu")
            statistics.append(_statistics(self._torch, "other", tensor))
        if phase == BACKWARD:
            for name, value in self._places.saved_values():
                for tensor in tensors_in(value):
                    statistics.append(_statistics(self._torch, name, tensor))
        return statistics


class InPlaceExplanation:
    """Explains the captured step within a replay: watches its operators from the update before it to the capture."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._driver = driver = RedoDriver(training.capture)
        header = driver.header
        self._step, self._optimizer = header.step, "".join(header.trigger.optimizers[:1])
        self._explainer = OperatorExplainer(training.torch)
        self._is_watching = False
        self._batches: deque[Any] = deque(maxlen=AHEAD)
        self._losses: list[Any] = []
        self._unused = 0  # number of fetched batches minus that of backward passes
        self._takes_turns = True  # one batch precedes each backward pass, which therefore is of that batch
        self._rows = 0  # number of samples of the step's batches so far

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        return {
            events.OptimizerMade: self._begin_if_due,
            events.UpdateDone: self._begin_if_due,
            events.ScaledUpdateEnded: self._begin_if_due,
            events.BatchFetched: self._batch_fetched,
            events.ForwardBegan: self._forward_began,
            events.LossScaled: self._loss_scaled,
            events.BackwardBegan: self._backward_began,
        }

    def forget(self) -> None:
        """Stop watching, in a forked child: its operators are not the step's."""
        self._explainer.end()
        self._is_watching = self._driver.is_done = False
        self._step = -1

    def _begin_if_due(self, _event: events.TrainingEvent) -> None:
        """Watch from here on, once the optimizer has made the updates before the step."""
        self._driver.require_end()
        if not self._is_watching:
            alive = self._training.watched.alive()
            named = dict(zip(self._training.watched.names(alive), alive))
            record = named.get(self._optimizer)
            if record is not None and record.steps == self._step:
                self._is_watching = True
                self._explainer.begin()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        self._batches.append(event.batch)
        if self._training.torch.is_grad_enabled():
            self._unused += 1
            self._takes_turns = self._takes_turns and self._unused == 1
            count = len(event.indices) if self._is_watching and hasattr(event.indices, "__len__") else 0
            is_known = self._takes_turns and count > 0
            samples = range(self._rows, self._rows + count)
            self._explainer.begin_samples(samples if is_known else None)
            if is_known:
                self._explainer.note_collated(event.batch, samples)
            self._rows += count

    def _forward_began(self, event: events.ForwardBegan) -> None:
        self._begin_if_due(event)
        if self._is_watching:
            inputs = [(CALLED_WITH, tensor) for tensor in tensors_in([event.arguments, dict(event.keywords)])]
            batches = [("the batch", tensor) for tensor in tensors_in(list(self._batches))]
            self._explainer.set_names(self._training.names(), inputs + batches)

    def _loss_scaled(self, event: events.LossScaled) -> None:
        self._losses += [event.loss] if self._is_watching else []

    def _backward_began(self, event: events.BackwardBegan) -> None:
        self._unused -= 1
        self._takes_turns = self._takes_turns and self._unused == 0
        if self._is_watching:
            tensors = event.tensors
            self._losses += [tensors] if hasattr(tensors, "data_ptr") else list(tensors)

    def conclude(self, header: SnapshotHeader) -> None:
        """Explain the step if it is the captured one, and end the process."""
        if not self._is_watching or header.step != self._step:
            return
        self._explainer.end()
        self._is_watching = False
        loss, value = header.loss or {}, header.trigger.value
        number = None if loss.get("value") is None else float.fromhex(loss["value"])
        outcome = StepOutcome(
            [header.trigger, *header.also],
            header.gradient_digests,
            (number, loss.get("digest", "")),
            norm=value,
            worst_loss=value if header.trigger.condition == LOSS_ABOVE else None,
        )
        self._driver.conclude_trial((), 0, outcome, explain=lambda: self._cause(header))

    def _cause(self, header: SnapshotHeader) -> dict[str, Any]:
        parameters, triggers = self._training.parameters(), [header.trigger, *header.also]
        if header.trigger.kind == PARAMETER:  # parameters were restored since
            targets = [parameters[item.name] for item in triggers if item.kind == PARAMETER and item.name in parameters]
        else:
            losses = [item for item in self._losses if not is_finite(item)]
            targets = losses or [parameters[name].grad for name in header.gradients]
        loaded = [item for item in header.batches if item["from"] == "loader"]
        indices = [index for batch in loaded for index in batch.get("indices") or []]
        is_known = self._takes_turns and len(indices) == self._rows
        cause = self._explainer.cause(targets, None if loaded else _samples(header), indices if is_known else [])
        for problem in self._explainer.problems():
            self._driver.problem(problem)
        if "indices" in cause:
            if len(loaded) < len(header.batches):
                self._driver.problem(LAST)
            if any(batch.get("may_be_sorted") for batch in loaded):
                self._driver.problem(SORTED)
        return cause


def _is_finite(value: Any) -> bool:
    return is_finite(value) if is_tensor(value) else bool(sys.modules["numpy"].isfinite(value).all())


def _statistics(torch: Any, name: str, tensor: Any) -> OperandStatistics:
    limits = torch.finfo(tensor.dtype) if tensor.is_floating_point() or tensor.is_complex() else None
    return OperandStatistics(torch, numbers(tensor), name, dtype_name(tensor), tensor.shape, limits)


def _input_tensors(operator: Operator, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Return the tensors whose values an operator reads, with the names of its arguments."""
    first = int(operator.overwrites)
    named = [*zip(operator.names[first:], args[first:]), *kwargs.items()]
    return [
        (name, tensor) for name, value in named if name != "out" and value is not None for tensor in tensors_in(value)
    ]


def _written_tensors(operator: Operator, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that an operator may have written to, if it does not return them."""
    return [] if operator.returns else [*tensors_in([args[:1], kwargs.get("out")])]


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


def _samples(header: SnapshotHeader) -> int | None:
    """Return the number of samples in the single call of a model; None if unknown."""
    is_known = len(header.batches) == 1 and header.batches[0].get("sample_axis") == 0
    return header.batches[0]["samples"] if is_known else None
