"""Does a step of PyTorch operator by operator, and finds the one that made of finite values something that is not.

A dispatch mode sees each operator below autograd, of the forward and of the backward pass. Of each whose results are
not finite it is kept which inputs were not, and who made those: so the way back from a loss or a gradient leads to
where it began, past infinities that a mask put in and a softmax took out again. Compiled code is run eagerly for it.

Where a replay of the recording makes the step again (InPlaceExplanation), the capture watches as it did in the
recording; what it then finds is compared with the snapshot, bit by bit, and explained.
"""

from __future__ import annotations

import sys
from collections import deque

from .. import events
from ..observing.torch_calls import Operator, passed_on
from ..observing.torch_places import BACKWARD, FORWARD, OURS, Places
from ..pytorch import private_api
from ..pytorch.dispatch_modes import DispatchModes
from ..pytorch.private_api import storage
from ..pytorch.tensors import dtype_name, is_finite, is_tensor, numbers, tensors_in
from .causes import CALLED_WITH, MAX_TENSORS, MAX_TOLD, OperatorEvent, Origin, Statistics, Trace, cause, line
from .header import PARAMETER, SnapshotHeader
from .redo import RedoDriver, StepOutcome
from .settings import LOSS_ABOVE
from .torch_rows import RowOrderTracker
from .torch_trials import SORTED
from .variables import lines_that_made, user_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ..core.user_frames import Place
    from .torch_capture import CaptureContext
    from .torch_fit import ParameterNames

MAX_NODES = 500_000  # of the graph, of which operator and layer are kept
AHEAD = 8  # batches that a script may have fetched before the step that it uses them in
LAST = "indices in the data set are told as if the step worked on what its loader gave last, in that order"


class NotSupportedError(Exception):
    """This PyTorch does not show its operators."""


class _PlacesAndLayers(Places):
    """Knows of each node of the graph also the operator and the layer."""

    def __init__(self, torch: Any, layer: Callable[[], str]) -> None:
        super().__init__(torch)
        self._layer = layer
        self._made: dict[int, tuple[str, str]] = {}
        self.operator = ""

    def forget(self) -> None:
        """Keep all: only one step is watched."""

    def _note(self, places: list[Place]) -> None:
        before = self._seen
        super()._note(places)
        if self._seen != before and len(self._made) < MAX_NODES:
            made = self.operator, self._layer()
            for number in range(before, self._seen):
                self._made[number] = made

    def of_node(self) -> tuple[str, str, str]:
        """Return the node that is evaluated, its operator and layer."""
        node = self._node() if self._node is not None else None
        if node is None:
            return "", "", ""
        return (node.name(), *self._made.get(private_api.node_number(node), ("", "")))

    def kept(self) -> Iterator[tuple[str, Any]]:
        """Yield what the node keeps of the forward pass."""
        node = self._node() if self._node is not None else None
        for name in dir(node) if node is not None else ():
            if name.startswith("_saved_"):
                try:
                    yield "saved " + name[len("_saved_") :], getattr(node, name)
                except RuntimeError:  # it has let go of it
                    continue


class Explaining:
    """Watches this thread's operators, and those of the backward pass that it begins, from begin() to end()."""

    watching = True

    def __init__(self, torch: Any) -> None:
        if not (private_api.sees_operators(torch) and private_api.tells_nodes(torch)):
            raise NotSupportedError(f"PyTorch {torch.__version__} does not tell of its operators; 2.1 does")
        self._torch = torch
        self._names: dict[int, str] = {}  # of modules, by id
        self._layers: list[str] = []
        self._operators: dict[Any, Operator] = {}
        self._trace = Trace()  # tensors are known by the storage that they lie in
        self._known: dict[int, str] = {}  # tensors that were there before, by their storage
        self._lines: dict[int, list[Place]] = {}  # of the script, from which those came that no operator made
        self._told = 0
        self._batch: range | None = None
        self._hooks: list[Any] = []
        self._places: Any = None  # of the call that is being made
        self._rows = RowOrderTracker(torch, lambda tensor: self._stranger(tensor).startswith("parameter"))
        self._modes = DispatchModes(torch, self, lambda: _PlacesAndLayers(torch, self._layer))

    def begin(self) -> None:
        """From here on. Not by `with`: it begins and ends in different functions."""
        if self._hooks:
            return
        module: Any = sys.modules["torch.nn.modules.module"]
        self._hooks = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]
        self._modes.enter()

    def know(self, names: ParameterNames, others: Iterable[tuple[str, Any]]) -> None:
        """What modules, parameters and other tensors are called that no operator makes."""
        self._names = {}
        for model in names.models:
            for name, module in model.named_modules():
                self._names.setdefault(id(module), name)
        self._known = {storage(tensor): f"parameter {name}" for name, tensor in names.tensors.items()}
        self._known.update({storage(tensor): name for name, tensor in others})

    def work_on(self, batch: range | None) -> None:
        """From here on these of the step's samples, where that is known; what came before made the batch."""
        self._batch = batch
        self._rows.forget()

    def collated(self, batch: Any, samples: range) -> None:
        """These samples were made this batch of: what is not finite in a row of it is the sample's, where it began."""
        for tensor in tensors_in(batch):
            if tensor.shape[:1] == (len(samples),) and not is_finite(tensor):
                rows = (~self._torch.isfinite(numbers(tensor))).flatten(1).any(1).nonzero().flatten().tolist()
                for event in self._trace.made(storage(tensor)) if len(rows) < len(samples) else ():
                    event.of_samples += [samples[row] for row in rows]

    def end(self) -> None:
        """No more, unless a mode of the user's is above, which ends with the process."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._modes.leave()

    def cause(self, targets: Iterable[Any], samples: int | None, indices: Sequence[int] = ()) -> dict[str, Any]:
        """Where it began, as seen from tensors that are not finite; of all that was seen where they lead nowhere.

        ``indices`` are those of the samples in the data set, where they are known.
        """
        reached = self._trace.reached(storage(tensor) for tensor in targets)
        if any(event.given for event in reached) and not any(event.is_known for event in reached):
            # What nobody made lies in memory that a collective wrote, as DDP's buckets do.
            reached = [event for event in self._trace.events if event.is_known] or reached
        found = cause(reached)
        if found is None:
            return {"words": "no operator turned finite values into others", "phase": None, "operation": None}
        told = line(found, samples)
        return {**told, "indices": [indices[row] for row in told["samples"]]} if told["samples"] and indices else told

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
        """Make this call as it is, and look at what comes of it."""
        operator, places = self._operators.get(function), mode.places
        self._places = places
        if operator is None and private_api.schema(function) is not None:
            operator = self._operators[function] = Operator(function)
        if operator is None or (operator.is_silent and not places.made_node()):
            return self._passed_on(operator, function, args, kwargs)
        places.operator = operator.name
        where, phase = places.of_call(2)
        if operator.is_silent or phase == OURS:
            return self._passed_on(operator, function, args, kwargs)
        bad = [name for name in _read(operator, args, kwargs) if not is_finite(name[1])]
        before = [(*pair, self._trace.maker([storage(pair[1])])) for pair in bad]
        if phase == FORWARD:
            self._note_lines([tensor for _, tensor, maker in before if maker is None])
        told = self._described(operator, args, kwargs, phase) if operator.changes and not bad else None
        result = passed_on(self._torch, function, args, kwargs)
        self._trace.count += 1
        try:
            self._look(operator, args, kwargs, result, (where, phase, before, told))
        except NotImplementedError:  # of kinds of tensors that few operators know
            pass
        return result

    def _passed_on(self, operator: Operator | None, function: Any, args: Any, kwargs: Any) -> Any:
        result = passed_on(self._torch, function, args, kwargs)
        if operator is not None and operator.is_silent:
            self._rows.note_view(operator, args, result)
        return result

    def _look(self, operator: Operator, args: Any, kwargs: Any, result: Any, seen: Any) -> None:
        outputs = [*tensors_in(result)]
        if operator.changes:
            outputs += _written(operator, args, kwargs)
        is_moved = self._rows.reorders(operator, args, kwargs, outputs)
        bad = [] if operator.is_uninitialized else [one for one in outputs if not is_finite(one)]
        if bad:
            event = self._event(operator, args, kwargs, seen, bad)
            event.batch = range(0) if is_moved else self._batch
            self._trace.add(event, [storage(tensor) for tensor in bad])
        elif not operator.changes:
            self._trace.forget(storage(tensor) for tensor in outputs)

    def _event(self, operator: Operator, args: Any, kwargs: Any, seen: Any, bad: list[Any]) -> OperatorEvent:
        where, phase, before, told = seen
        node, gradient_of, layer = self._places.of_node() if phase == BACKWARD else ("", "", "")
        origin = Origin(where, layer or self._layer(), gradient_of, node)
        event = OperatorEvent(self._trace.count, operator.name, phase, origin)
        event.parents = [maker for _, _, maker in before if maker is not None]
        event.is_meant = any(map(_is_infinite, [*args, *kwargs.values()]))
        had_nan = any(_has_nan(self._torch, tensor) for _, tensor, _ in before)
        event.makes_nan = not had_nan and any(_has_nan(self._torch, tensor) for tensor in bad)
        strangers = [(name, tensor) for name, tensor, maker in before if maker is None]
        if len(self._trace.events) < MAX_TOLD:
            event.given = [(self._stranger(one), _statistics(self._torch, name, one)) for name, one in strangers]
            keys = [storage(tensor) for _, tensor in strangers]
            event.lines = next((self._lines[key] for key in keys if key in self._lines), None)
        if self._told < MAX_TOLD and (event.is_origin or event.given or event.makes_nan):
            self._told += 1
            self._tell(event, told or self._described(operator, args, kwargs, phase), bad)
        return event

    def _stranger(self, tensor: Any) -> str:
        return self._known.get(storage(tensor), "")

    def _note_lines(self, tensors: list[Any]) -> None:
        """Look for the script's lines that made these, unless a loader gave them or they are the model's own."""
        for tensor in tensors:
            keys, name = [storage(tensor)], self._stranger(tensor)
            if name in ("", CALLED_WITH) and not any(key in self._lines for key in keys):
                lines = lines_that_made(user_functions(sys._getframe(1)), _is_finite, name == "")
                self._lines.update(dict.fromkeys(keys, lines))

    def _tell(self, event: OperatorEvent, inputs: list[Statistics], bad: list[Any]) -> None:
        values = numbers(bad[0]) if bad[0].layout is self._torch.strided else None
        event.tell(self._torch, inputs, [_statistics(self._torch, "", tensor) for tensor in bad[:MAX_TENSORS]], values)

    def _described(self, operator: Operator, args: Any, kwargs: Any, phase: str) -> list[Statistics]:
        """Return the tensors that it works on, those that the graph kept for it among them."""
        found = [_statistics(self._torch, name, tensor) for name, tensor in _read(operator, args, kwargs)]
        if phase == BACKWARD:
            for name, value in self._places.kept():
                for tensor in tensors_in(value):
                    found.append(_statistics(self._torch, name, tensor))
        return found


class InPlaceExplanation:
    """Watches the operators of one step, from the update before it to what the capture finds."""

    def __init__(self, training: CaptureContext) -> None:
        self._training = training
        self._driver = driver = RedoDriver(training.capture)
        wanted = driver.header
        self._step, self._optimizer = wanted.step, "".join(wanted.trigger.optimizers[:1])
        self._explaining = Explaining(training.torch)
        self._is_watching = False
        self._batches: deque[Any] = deque(maxlen=AHEAD)
        self._losses: list[Any] = []
        self._unused = 0  # batches that were fetched, less backward passes
        self._takes_turns = True  # each backward pass came after one batch: it is of what was fetched last
        self._rows = 0  # of the batches of the step

    def handlers(self) -> dict[type[events.TrainingEvent], events.Handler]:
        return {
            events.OptimizerMade: self._look,
            events.UpdateDone: self._look,
            events.ScaledUpdateEnded: self._look,
            events.BatchFetched: self._batch_fetched,
            events.ForwardBegan: self._forward_began,
            events.LossScaled: self._loss_scaled,
            events.BackwardBegan: self._backward_began,
        }

    def failed(self, error: Exception, handler: events.Handler) -> None:
        self._training.capture.failed(handler, error)

    def forget(self) -> None:
        """In a forked child: its operators are not the step's."""
        self._explaining.end()
        self._is_watching = self._driver.is_done = False
        self._step = -1

    def _look(self, _event: events.TrainingEvent) -> None:
        """Watch from here on, once the optimizer has made the updates before the step."""
        self._driver.require_end()
        if not self._is_watching:
            alive = self._training.watched.alive()
            named = dict(zip(self._training.watched.names(alive), alive))
            record = named.get(self._optimizer)
            if record is not None and record.steps == self._step:
                self._is_watching = True
                self._explaining.begin()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        self._batches.append(event.batch)
        if self._training.torch.is_grad_enabled():
            self._unused += 1
            self._takes_turns = self._takes_turns and self._unused == 1
            count = len(event.indices) if self._is_watching and hasattr(event.indices, "__len__") else 0
            is_known = self._takes_turns and count > 0
            samples = range(self._rows, self._rows + count)
            self._explaining.work_on(samples if is_known else None)
            if is_known:
                self._explaining.collated(event.batch, samples)
            self._rows += count

    def _forward_began(self, event: events.ForwardBegan) -> None:
        self._look(event)
        if self._is_watching:
            given = [(CALLED_WITH, one) for one in tensors_in([event.arguments, dict(event.keywords)])]
            batches = [("the batch", one) for one in tensors_in(list(self._batches))]
            self._explaining.know(self._training.names(), given + batches)

    def _loss_scaled(self, event: events.LossScaled) -> None:
        self._losses += [event.loss] if self._is_watching else []

    def _backward_began(self, event: events.BackwardBegan) -> None:
        self._unused -= 1
        self._takes_turns = self._takes_turns and self._unused == 0
        if self._is_watching:
            tensors = event.tensors
            self._losses += [tensors] if hasattr(tensors, "data_ptr") else list(tensors)

    def conclude(self, header: SnapshotHeader) -> None:
        """Where this is the captured step, explain it, and end the process."""
        if not self._is_watching or header.step != self._step:
            return
        self._explaining.end()
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
        parameters, found = self._training.parameters(), [header.trigger, *header.also]
        if header.trigger.kind == PARAMETER:  # which were put back since
            targets = [parameters[one.name] for one in found if one.kind == PARAMETER and one.name in parameters]
        else:
            losses = [one for one in self._losses if not is_finite(one)]
            targets = losses or [parameters[name].grad for name in header.gradients]
        loaded = [one for one in header.batches if one["from"] == "loader"]
        indices = [index for batch in loaded for index in batch.get("indices") or []]
        is_known = self._takes_turns and len(indices) == self._rows
        cause = self._explaining.cause(targets, None if loaded else _samples(header), indices if is_known else [])
        if "indices" in cause:
            if len(loaded) < len(header.batches):
                self._driver.problem(LAST)
            if any(batch.get("may_be_sorted") for batch in loaded):
                self._driver.problem(SORTED)
        return cause


def _is_finite(value: Any) -> bool:
    return is_finite(value) if is_tensor(value) else bool(sys.modules["numpy"].isfinite(value).all())


def _statistics(torch: Any, name: str, tensor: Any) -> Statistics:
    limits = torch.finfo(tensor.dtype) if tensor.is_floating_point() or tensor.is_complex() else None
    return Statistics(torch, numbers(tensor), name, dtype_name(tensor), tensor.shape, limits)


def _read(operator: Operator, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    """Return the tensors whose values go in, by the names of arguments."""
    first = int(operator.overwrites)
    named = [*zip(operator.names[first:], args[first:]), *kwargs.items()]
    return [
        (name, tensor) for name, value in named if name != "out" and value is not None for tensor in tensors_in(value)
    ]


def _written(operator: Operator, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors among the arguments that may have been written to, where the result does not name them."""
    return [] if operator.returns else [*tensors_in([args[:1], kwargs.get("out")])]


def _has_nan(torch: Any, tensor: Any) -> bool:
    return bool(torch.isnan(numbers(tensor)).any())


def _is_infinite(value: Any) -> bool:
    """Return whether a number was given that is not finite, as to masked_fill."""
    return type(value) is float and value - value != 0


def _samples(header: SnapshotHeader) -> int | None:
    """Return how many samples a model was called with, where it was called once."""
    is_known = len(header.batches) == 1 and header.batches[0].get("sample_axis") == 0
    return header.batches[0]["samples"] if is_known else None
