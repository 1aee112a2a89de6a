"""Saves tensors of PyTorch: weights, optimizer state and gradients before an update, losses, inputs and outputs of
modules. Each is copied immediately, as an in-place operation may change it."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from functools import partial

from ..core import live_objects
from ..core.patching import replace
from ..core.user_frames import users_frames
from ..events.steps import (
    BackwardEnded,
    ClippingDue,
    InputsGiven,
    LossComputed,
    ModelCalled,
    OptimizerMade,
    OutputComputed,
    UpdateDone,
    UpdateDue,
)
from ..pytorch import private_api, tensors
from ..pytorch.decisions import own_step
from ..pytorch.events import recording_hooks
from ..pytorch.tensor_names import PathsInRoots, is_compiled, unwrapped
from .tensor_rules import EVAL, TRAIN, Choice
from .tensor_writer import NumberArray, SavePlan
from .torch_conduct import CONDUCT, TrainingConduct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Handler, TrainingEvent
    from .saved_steps import SavedSteps

    NamedValue = tuple[str, Sequence[str], tuple[str, ...], Any]  # name, aliases, collections and tensor

OF_LOSS = ("predictions", "labels")  # the inputs of a loss module, in this order
UNREADABLE = "its values are not in memory (nested, meta, fake, or of torch.func)"
COMPILED = "torch.compile runs its model as one"
CAPTURED = "a CUDA graph was being captured, whose replays are not seen"
FIRST = "optimizer#0"
FROZEN = "frozen"  # the collection of parameters that the script trains no more: requires_grad is False


class PytorchTensors:
    """Saves the tensors of PyTorch in this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps
        self._torch: Any = sys.modules["torch"]
        self._without_overrides = type(private_api.without_overrides(self._torch))
        classes, layouts = (self._torch.Tensor, self._torch.nn.Parameter), getattr(tensors.compiled, "layouts", _none)
        self._describe: Callable[[list[Any]], tuple[bytes, bytes] | None] = partial(layouts, classes)
        # To unpack a tensor that such hooks packed may compute a checkpointed part again, which works once.
        self._has_packed = False
        replace(self._torch.autograd.graph.saved_tensors_hooks, "__enter__", self._make_enter)
        self._conduct = TrainingConduct(steps, lambda module: self._names.of_module(module, recording_hooks(agent)))
        steps.forget_callbacks.extend([self.forget, self._conduct.forget])
        steps.flush_callbacks.append(self._flush)
        self.forget()

    def _make_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def enter(hooks: Any) -> Any:
            self._has_packed = True
            return original(hooks)

        return enter

    def forget(self) -> None:
        """Start without names and optimizers, also in a forked child."""
        self._names = PathsInRoots()
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._optimizer_count = 0
        self._made = live_objects.LiveObjects()  # optimizers
        # Modules of the trained models with parameters that no optimizer has; None: an optimizer was added since.
        self._untrained: list[tuple[weakref.ref[Any], weakref.ref[Any]]] | None = None
        self._untrained_step = -1  # the last step in which these parameters were saved
        self._plans: dict[tuple[str, str], SavePlan] = {}  # by optimizer and kind of values
        self._compiled: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # modes by model, to report
        self._mode = TRAIN
        self._has_backward = False  # since the last update
        self._has_loss_module = False  # else what a loss function was called with is read from the autograd graph
        self._copies: Any = None

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        always: dict[type[TrainingEvent], Handler] = {
            OptimizerMade: self._optimizer_made,
            LossComputed: self._loss_computed,
            UpdateDone: self._update_done,
            ClippingDue: self._clipping_due,
        }
        if not self._steps.is_armed:
            return always
        outputs: dict[type[TrainingEvent], Handler] = {
            ModelCalled: self._model_called,
            InputsGiven: self._inputs_given,
            OutputComputed: self._output_computed,
        }
        armed: dict[type[TrainingEvent], Handler] = {UpdateDue: self._update_due}
        if self._steps.rules.wants(CONDUCT, ever=True):
            armed.update({ModelCalled: self._model_called, BackwardEnded: self._backward_ended})
        if self._steps.rules.wants("inputs", "outputs", "losses", "metrics", *OF_LOSS, ever=True):
            armed.update(outputs)
        return {**always, **armed}

    def _optimizer_made(self, event: OptimizerMade) -> None:
        self._made.add(event.optimizer)
        self._steps.expect(event.optimizer)

    # Forward

    def _model_called(self, event: ModelCalled) -> None:
        self._steps.begin_due_step()
        self._mode = TRAIN if event.module.training else EVAL
        if self._steps.rules.wants(CONDUCT):
            self._conduct.model_called(event)

    def _inputs_given(self, event: InputsGiven) -> None:
        self._steps.begin_due_step()
        if self._steps.rules.wants(CONDUCT) and private_api.is_loss(event.module):
            self._conduct.loss_called()
        if self._steps.rules.wants("inputs", *OF_LOSS):
            roles = OF_LOSS if private_api.is_loss(event.module) else ()
            self._save_parts(event.module, "input", (event.arguments, *event.keywords.values()), ("inputs",), roles)
            if roles:
                self._has_loss_module = True
                weights = [getattr(event.module, name, None) for name in ("pos_weight", "weight")]
                self._save_parts(event.module, "weight", weights, ("inputs",))

    def _output_computed(self, event: OutputComputed) -> None:
        module = event.module
        if is_compiled(module) and module not in self._compiled:
            self._compiled[module] = self._mode
        kinds = ["losses"] if private_api.is_loss(module) else []
        kinds += ["metrics"] if type(module).__module__.startswith("torchmetrics") else []
        self._save_parts(module, "output", event.output, ("outputs", *kinds))

    def _save_parts(
        self, module: Any, kind: str, value: Any, collections: Sequence[str], by_position: Sequence[str] = ()
    ) -> None:
        name = self._names.of_module(module, recording_hooks(self._agent))
        for number, tensor in enumerate(tensors.tensors_in(value) if name else ()):
            all_collections = (*collections, *by_position[number : number + 1])
            self._save(f"{name}_{kind}_{number}", all_collections, tensor, self._mode, module=module)

    def _loss_computed(self, event: LossComputed) -> None:
        self._steps.begin_backward()
        self._has_backward = True
        if not self._steps.is_armed:
            return
        self._steps.begin_due_step()
        self._save("loss", ("losses",), event.loss, TRAIN)
        if self._steps.rules.wants(CONDUCT) and not self._is_capturing():
            self._conduct.backward_begins(event.loss)
        with self._torch.no_grad(), self._without_overrides():
            if not (self._has_loss_module or self._has_packed) and self._steps.rules.wants(*OF_LOSS):
                name, *given = private_api.given_to_loss_function(event.loss) or ("",)
                for number, (kind, tensor) in enumerate(zip(("input_0", "input_1", "weight_0"), given)):
                    if tensor is not None:
                        self._save(f"{name}_{kind}", OF_LOSS[number : number + 1] or ("inputs",), tensor, TRAIN)

    def _backward_ended(self, _event: BackwardEnded) -> None:
        self._conduct.backward_ended()

    # Updates

    def _clipping_due(self, event: ClippingDue) -> None:
        if self._steps.is_armed and self._steps.rules.wants("gradients"):
            parameters = event.parameters
            self._save_gradients("gradient_unclipped", [parameters] if tensors.is_tensor(parameters) else parameters)

    def _update_due(self, event: UpdateDue) -> None:
        if event.is_nested:
            return
        self._steps.begin_due_step(event.optimizer)
        rules, optimizer = self._steps.rules, event.optimizer
        parameters = list(optimizer.parameters())
        owner = self._optimizer_name(optimizer)
        if self._untrained_step != self._steps.step and rules.wants("weights", "biases", "gradients"):
            self._untrained_step = self._steps.step
            parameters += self._forgotten()
        if rules.wants(CONDUCT):
            owned = list(optimizer.parameters())
            self._conduct.update_due(optimizer, owner, owned, lambda: [name for name, _, _ in self._named(owned)])
        if rules.wants("gradients"):
            self._save_update_gradients(event, parameters, owner)
        if rules.wants("weights", "biases"):
            self._save_together((owner, "weights"), self._weights(parameters))
        if rules.wants("optimizer_variables"):
            states = [
                (f"{owner}/{name}/{key}", (), ("optimizer_variables",), tensor)
                for parameter, key, tensor in optimizer.states()
                for name, _, _ in self._named([parameter])
            ]
            self._save_together((owner, "state"), states)

    def _optimizer_name(self, optimizer: Any) -> str:
        """Return an optimizer's name, numbered by the order of first updates."""
        name = self._optimizers.get(optimizer)
        if name is None:
            name = self._optimizers[optimizer] = f"optimizer#{self._optimizer_count}"
            self._optimizer_count += 1
            self._untrained = None
        return name

    def _forgotten(self) -> list[Any]:
        """Return the parameters of trained models that have a gradient, but no optimizer that would use it."""
        hooks = recording_hooks(self._agent)
        if self._untrained is None and hooks is not None:
            optimizers = live_objects.instances(self._torch.optim.Optimizer)
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            owned = {id(parameter): parameter for group in groups for parameter in group["params"]}
            self._untrained = [
                (weakref.ref(module), weakref.ref(parameter))
                for model in hooks.modules.owners(list(owned.values()), self._torch.nn.Module)
                for module in model.modules()
                for parameter in module.parameters(recurse=False)
                if id(parameter) not in owned
            ]
        pairs = [(module(), parameter()) for module, parameter in self._untrained or ()]
        in_training = [parameter for module, parameter in pairs if module is not None and module.training]
        return [
            parameter
            for parameter in dict.fromkeys(in_training)
            if parameter is not None and parameter.requires_grad and parameter.grad is not None
        ]

    def _save_update_gradients(self, event: UpdateDue, parameters: Sequence[Any], owner: str) -> None:
        """Save the gradients that an update gets: those that exist, and what its closure computes at each call."""
        closure, save = event.closure, partial(self._save_gradients, "gradient", parameters, owner)
        if closure is None or (self._has_backward and own_step(type(event.target))):
            save()
        if closure is None:
            return

        def evaluate() -> Any:
            loss = closure()
            self._agent.attempt(save)
            return loss

        event.closure = evaluate

    def _save_gradients(self, prefix: str, parameters: Sequence[Any], owner: str = "") -> None:
        with self._without_overrides():
            named = self._named(parameters)
            gradients = [(f"{prefix}/{name}", (), ("gradients",), parameter.grad) for name, _, parameter in named]
        self._save_together((owner, prefix), [value for value in gradients if value[3] is not None])

    def _weights(self, parameters: Sequence[Any]) -> list[NamedValue]:
        values: list[NamedValue] = []
        with self._without_overrides():
            for name, aliases, tensor in self._named(parameters):
                collection = "biases" if name.rpartition(".")[2] == "bias" else "weights"
                values.append((name, aliases, (collection,) if tensor.requires_grad else (collection, FROZEN), tensor))
        return values

    def _named(self, parameters: Sequence[Any]) -> Iterator[tuple[str, list[str], Any]]:
        for number, parameter in enumerate(parameters):
            names = self._names.of_tensor(parameter, recording_hooks(self._agent))
            if not names:  # in no model; the list is kept for the next step
                names.append(self._place_of(parameter) or f"parameters.{number}")
            yield names[0], names[1:], parameter

    def _place_of(self, parameter: Any) -> str:
        """Return the place of a parameter in its optimizer; an empty text if it has none."""
        for optimizer in self._made:
            for place, own in optimizer.places():
                if own is parameter:
                    name = self._optimizer_name(optimizer)
                    return place if name == FIRST else f"{name}.{place}"
        return ""

    def _update_done(self, event: UpdateDone) -> None:
        if self._copies is not None:
            self._copies.finish(all_of_them=False)
        self._has_backward = False
        self._optimizer_name(event.optimizer)
        if self._compiled and self._steps.is_armed:
            self._report_compiled()
        self._steps.updated(event.optimizer)

    def _report_compiled(self) -> None:
        """Report the outputs that were not seen in compiled models, once for each model."""
        for model, mode in self._compiled.items():
            self._compiled[model] = ""
            for module in unwrapped(model).modules() if mode else ():
                name = f"{self._names.of_module(module, recording_hooks(self._agent))}_output_0"
                if not self._steps.writer.has_declared(name):
                    self._steps.report_unsaved(name, ("outputs",), mode, COMPILED, "compiled")

    def _flush(self) -> None:
        if self._copies is not None:
            self._copies.finish(all_of_them=True)

    # Values

    def _save_together(self, key: tuple[str, str], values: Sequence[NamedValue]) -> None:
        """Save values by the plan of the last time, if names, choices, dtypes and shapes are the same."""
        steps, choices, chosen = self._steps, [], []
        for name, _, collections, tensor in values:
            choice = steps.rules.choice(name, collections, TRAIN)
            if choice is not None:
                choices.append((name, choice))
                chosen.append(tensor)
        with self._without_overrides():
            layouts, arrays = self._describe(chosen) or (b"", b"")
        plan = self._plans.get(key)
        if plan is not None and (layouts != plan.layouts or choices != plan.choices):
            plan = None
        if not chosen or (plan is not None and steps.put_again(plan, arrays, tensors.compiled.reduce)):
            return
        for name, aliases, collections, tensor in values:
            self._save(name, collections, tensor, TRAIN, aliases=aliases)
        if layouts and plan is None and all(map(tensors.is_plain, chosen)):
            lines = [
                steps.writer.line(name, TRAIN, 0, choice, tensors.dtype_name(tensor), tuple(tensor.shape))
                for (name, choice), tensor in zip(choices, chosen)
            ]
            self._plans[key] = SavePlan(choices, layouts, lines)

    def _save(
        self, name: str, collections: Sequence[str], tensor: Any, mode: str, *, module: Any = None,
        aliases: Sequence[str] = (),
    ) -> None:  # fmt: skip
        choice = self._steps.rules.choice(name, collections, mode)
        if choice is not None:
            with self._torch.no_grad(), self._without_overrides():
                self._save_chosen(choice, name, collections, tensor, mode, module, aliases)

    def _save_chosen(
        self, choice: Choice, name: str, collections: Sequence[str], tensor: Any, mode: str, module: Any,
        aliases: Sequence[str],
    ) -> None:  # fmt: skip
        value_key, placement = self._steps.value_key(name, mode), tensors.placement(tensor)
        if placement:
            tensor = tensor.to_local()
        tensor = private_api.awaited(tensor)
        is_captured = tensor.is_cuda and self._is_capturing()
        if is_captured or not tensors.is_plain(tensor):
            self._steps.report_unsaved(name, collections, mode, CAPTURED if is_captured else UNREADABLE)
            return
        parts = tensors.components_of(tensor) if tensor.layout is not self._torch.strided or tensor.is_quantized else {}
        for key, part in parts.items():
            self._steps.writer.declare(f"{name}.{key}", collections, lambda: _facts(module, aliases, placement))
            self._write((value_key[0], mode, f"{name}.{key}", value_key[3]), choice, part)
        if not parts:
            self._steps.writer.declare(name, collections, lambda: _facts(module, aliases, placement))
            self._write(value_key, choice, tensor)

    def _is_capturing(self) -> bool:
        return bool(self._torch.cuda.is_initialized() and self._torch.cuda.is_current_stream_capturing())

    def _write(self, value_key: tuple[int, str, str, int], choice: Choice, tensor: Any) -> None:
        if not tensor.is_cpu:
            if self._copies is None:
                self._copies = DeviceCopies(self._torch, self._steps.buffer)
                self._steps.after_copies = self._copies.after_copies
            self._copies.begin(tensor, lambda host_copy: self._write(value_key, choice, host_copy))
            return
        view = None
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if not tensor.is_contiguous() or tensor.is_complex() or not address:
            view = tensors.bytes_of(tensor)
            address = ctypes.addressof(view) if size else 0
        dtype, shape = tensors.dtype_name(tensor), tuple(tensor.shape)
        self._steps.writer.put(value_key, choice, dtype, shape, (address, size), lambda: self._reducible(tensor))

    def _reducible(self, tensor: Any) -> NumberArray:
        torch = self._torch
        if tensor.dtype not in (torch.float32, torch.float64) or not tensor.is_contiguous():
            tensor = tensors.numbers(tensor).to(torch.float64).contiguous()
        return NumberArray(tensor.data_ptr(), tensor.numel(), tensor.dtype is torch.float64, tensor)


class DeviceCopies:
    """Asynchronous copies in order, with the callbacks to be called on completion."""

    def __init__(self, torch: Any, max_bytes: int) -> None:
        self._torch, self._max_bytes = torch, max_bytes
        self._streams: dict[Any, Any] = {}
        self._pending: deque[tuple[Any, int, Callable[[], object]]] = deque()  # event, bytes, callback
        self._bytes = 0

    def begin(self, tensor: Any, callback: Callable[[Any], object]) -> None:
        """Start to copy a tensor's current values; the callback gets the copy in host memory."""
        torch, device = self._torch, tensor.device
        cuda = torch.cuda
        if device.type != "cuda":
            callback(tensor.detach().cpu())
            return
        if device not in self._streams:
            self._streams[device] = cuda.Stream(device)
        stream, copy = (
            self._streams[device],
            tensor.detach().contiguous().clone(),
        )  # the training may change it
        host_copy = torch.empty(copy.shape, dtype=copy.dtype, pin_memory=True)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            host_copy.copy_(copy, non_blocking=True)
            event = cuda.Event()
            event.record(stream)
        copy.record_stream(stream)
        size = host_copy.numel() * host_copy.element_size()
        self._pending.append((event, size, lambda: callback(host_copy)))
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._pending) > 1:
            self._finish_first(waits=True)

    def after_copies(self, callback: Callable[[], object]) -> None:
        """Call a callback once all copies started so far are complete."""
        if self._pending:
            self._pending.append((None, 0, callback))
        else:
            callback()

    def _finish_first(self, *, waits: bool) -> bool:
        event, size, callback = self._pending[0]
        if event is not None and not event.query():
            if not waits:
                return False
            event.synchronize()
        self._pending.popleft()
        self._bytes -= size
        callback()
        return True

    def finish(self, *, all_of_them: bool) -> None:
        """Call the callbacks of completed copies, or wait for all copies."""
        while self._pending and self._finish_first(waits=all_of_them):
            pass


def _none(*_: object) -> None:
    """Describe no tensors."""


def _facts(module: Any, aliases: Sequence[str], placement: Sequence[str]) -> Mapping[str, object]:
    """Return what the index says about a tensor beside its name."""
    facts: dict[str, object] = {"aliases": list(aliases)} if aliases else {}
    if placement:
        (facts["placement"],) = placement
    if module is not None:
        frame = next(users_frames(sys._getframe(2)), None)
        facts["class"] = type(module).__name__
        if frame is not None:
            facts["place"] = [frame.f_code.co_filename, frame.f_lineno]
    return facts
