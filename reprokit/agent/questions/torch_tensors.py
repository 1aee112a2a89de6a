"""Saves tensors of PyTorch: weights, optimizer state and gradients as an update finds them, losses, what modules
are given and return, at once, as an operation in place may change it."""

from __future__ import annotations

import ctypes
import sys
import weakref

from ..core.user_frames import users_frame
from ..events import ClippingDue, InputsGiven, LossComputed, ModelCalled, OutputComputed, UpdateDone, UpdateDue
from ..pytorch import private_api, tensors
from ..pytorch.state import named_tensors, parts_of, unwrapped
from .tensor_rules import EVAL, TRAIN, Choice
from .tensor_writer import NumbersOf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from ..agent import Agent
    from ..events import Handler, TrainingEvent
    from .tensors import SavedSteps

OF_LOSS = ("predictions", "labels")  # what a loss module is given, in this order


class ModulePaths:
    """What modules and parameters are called in the outermost module that holds them.

    Names of further outermost modules begin with their number: model#1.
    """

    def __init__(self) -> None:
        self._roots: list[weakref.ref[Any]] = []
        self._modules: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._tensors: dict[int, tuple[weakref.ref[Any], list[str]]] = {}

    def _learn(self, hooks: Any) -> None:
        for root in hooks.modules.outermost():
            if not any(known() is root for known in self._roots):
                self._roots.append(weakref.ref(root))
        self._modules, self._tensors = {}, {}
        for number, reference in enumerate(self._roots):
            root = reference()
            if root is not None:
                self._add(root, f"model#{number}." if number else "")

    def _add(self, outer: Any, prefix: str) -> None:
        root = unwrapped(outer)
        for name, module in root.named_modules():
            own = prefix + (name or type(root).__name__)
            self._modules.setdefault(id(module), (weakref.ref(module), own))
        if type(outer).__name__ == "OptimizedModule":  # within which nothing is seen
            self._modules[id(outer)] = weakref.ref(outer), prefix + type(root).__name__
        for name, tensor in named_tensors(parts_of(root, prefix)):
            known = self._tensors.setdefault(id(tensor), (weakref.ref(tensor), []))
            known[1].append(name)

    def of_module(self, module: Any, hooks: Any) -> str:
        """Return the name of a module; of one that no other holds, as of a loss, that of its class.

        What torch.compile has made of a model, and calls within it, has none.
        """
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            self._learn(hooks)
            is_graph = any(kind.__name__ == "GraphModule" for kind in type(module).__mro__)
            unknown = weakref.ref(module), "" if is_graph else type(module).__name__
            known = self._modules.setdefault(id(module), unknown)
        return known[1]

    def of_tensor(self, tensor: Any, hooks: Any) -> list[str]:
        """Return the names of a parameter or buffer, of which one that is shared has several."""
        known = self._tensors.get(id(tensor))
        if known is None or known[0]() is not tensor:
            self._learn(hooks)
            known = self._tensors.setdefault(id(tensor), (weakref.ref(tensor), []))
        return known[1]


class PytorchTensors:
    """Saves the tensors of this process."""

    def __init__(self, agent: Agent, steps: SavedSteps) -> None:
        self._agent, self._steps = agent, steps
        self._torch: Any = sys.modules["torch"]
        self._without_overrides = type(private_api.without_overrides(self._torch))
        steps.forgetting.append(self.forget)
        steps.settling.append(self._settle)
        self.forget()

    def forget(self) -> None:
        """At the beginning, and in a forked child."""
        self._names = ModulePaths()
        self._optimizers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._seen = 0
        self._mode = TRAIN
        self._copies: Any = None

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        always: dict[type[TrainingEvent], Handler] = {UpdateDone: self._update_done, ClippingDue: self._clipping_due}
        if not self._steps.is_armed:
            return always
        outputs: dict[type[TrainingEvent], Handler] = {
            ModelCalled: self._model_called,
            InputsGiven: self._inputs_given,
            OutputComputed: self._output_computed,
        }
        armed: dict[type[TrainingEvent], Handler] = {LossComputed: self._loss_computed, UpdateDue: self._update_due}
        if self._steps.rules.wants("inputs", "outputs", "losses", "metrics", *OF_LOSS, ever=True):
            armed.update(outputs)
        return {**always, **armed}

    # Forward

    def _model_called(self, event: ModelCalled) -> None:
        self._steps.go_on()
        self._mode = TRAIN if event.module.training else EVAL

    def _inputs_given(self, event: InputsGiven) -> None:
        self._steps.go_on()
        if self._steps.rules.wants("inputs", *OF_LOSS):
            more = OF_LOSS if private_api.is_loss(event.module) else ()
            self._take_parts(event.module, "input", (event.arguments, *event.keywords.values()), ("inputs",), more)

    def _output_computed(self, event: OutputComputed) -> None:
        module = event.module
        more = ["losses"] if private_api.is_loss(module) else []
        more += ["metrics"] if type(module).__module__.startswith("torchmetrics") else []
        self._take_parts(module, "output", event.output, ("outputs", *more))

    def _take_parts(
        self, module: Any, kind: str, value: Any, collections: Sequence[str], by_position: Sequence[str] = ()
    ) -> None:
        hooks = self._agent.pytorch
        with self._torch.no_grad(), self._without_overrides():
            name = self._names.of_module(module, hooks)
            for number, tensor in enumerate(tensors.tensors_in(value) if name else ()):
                every = (*collections, *by_position[number : number + 1])
                self._take(f"{name}_{kind}_{number}", every, tensor, self._mode, module=module)

    def _loss_computed(self, event: LossComputed) -> None:
        self._steps.go_on()
        with self._torch.no_grad(), self._without_overrides():
            self._take("loss", ("losses",), event.loss, TRAIN)

    # Updates

    def _clipping_due(self, event: ClippingDue) -> None:
        if self._steps.is_armed and self._steps.rules.wants("gradients"):
            parameters = event.parameters
            self._take_gradients("gradient_unclipped", [parameters] if tensors.is_tensor(parameters) else parameters)

    def _update_due(self, event: UpdateDue) -> None:
        if event.is_nested:
            return
        self._steps.go_on(event.optimizer)
        rules, optimizer = self._steps.rules, event.optimizer
        parameters = list(optimizer.parameters())
        number = self._number(optimizer)
        if rules.wants("gradients"):
            self._take_gradients("gradient", parameters)
        with self._torch.no_grad(), self._without_overrides():
            if rules.wants("weights", "biases"):
                for name, aliases, tensor in self._named(parameters):
                    collection = "biases" if name.rpartition(".")[2] == "bias" else "weights"
                    self._take(name, (collection,), tensor, TRAIN, aliases=aliases)
            if rules.wants("optimizer_variables"):
                for parameter, key, tensor in optimizer.states():
                    (name, _, _), *_ = self._named([parameter])
                    self._take(f"{number}/{name}/{key}", ("optimizer_variables",), tensor, TRAIN)

    def _number(self, optimizer: Any) -> str:
        """Return what an optimizer is called: by the order of first updates."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = f"optimizer#{self._seen}"
            self._seen += 1
        return self._optimizers[optimizer]

    def _take_gradients(self, prefix: str, parameters: Sequence[Any]) -> None:
        with self._torch.no_grad(), self._without_overrides():
            for name, _, parameter in self._named(parameters):
                if parameter.grad is not None:
                    self._take(f"{prefix}/{name}", ("gradients",), parameter.grad, TRAIN)

    def _named(self, parameters: Sequence[Any]) -> Iterator[tuple[str, list[str], Any]]:
        for number, parameter in enumerate(parameters):
            names = self._names.of_tensor(parameter, self._agent.pytorch) or [f"param_groups.params.{number}"]
            yield names[0], names[1:], parameter

    def _update_done(self, event: UpdateDone) -> None:
        if self._copies is not None:
            self._copies.put_arrived(all_of_them=False)
        self._number(event.optimizer)
        self._steps.updated(event.optimizer)

    def _settle(self) -> None:
        if self._copies is not None:
            self._copies.put_arrived(all_of_them=True)

    # Values

    def _take(
        self, name: str, collections: Sequence[str], tensor: Any, mode: str, *, module: Any = None,
        aliases: Sequence[str] = (),
    ) -> None:  # fmt: skip
        choice = self._steps.rules.choice(name, collections, mode)
        if choice is None:
            return
        at = self._steps.at(name, mode)
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if not tensors.is_plain(tensor):
            self._steps.writer.drop(at[0], mode, name, "unreadable")
            return
        parts = tensors.components_of(tensor) if tensor.layout is not self._torch.strided or tensor.is_quantized else {}
        for key, part in parts.items():
            self._steps.writer.declare(f"{name}.{key}", collections, lambda: _facts(module, aliases))
            self._put((at[0], mode, f"{name}.{key}", at[3]), choice, part)
        if not parts:
            self._steps.writer.declare(name, collections, lambda: _facts(module, aliases))
            self._put(at, choice, tensor)

    def _put(self, at: tuple[int, str, str, int], choice: Choice, tensor: Any) -> None:
        if not tensor.is_cpu:
            if self._copies is None:
                from .torch_copies import DeviceCopies

                self._copies = DeviceCopies(self._torch, self._steps.buffer)
                self._steps.behind = self._copies.behind
            self._copies.begin(tensor, lambda here: self._put(at, choice, here))
            return
        view = None
        address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if not tensor.is_contiguous() or tensor.is_complex() or not address:
            view = tensors.bytes_of(tensor)
            address = ctypes.addressof(view) if size else 0
        dtype, shape = tensors.dtype_name(tensor), tuple(tensor.shape)
        self._steps.writer.put(at, choice, dtype, shape, (address, size), lambda: self._numbers(tensor))

    def _numbers(self, tensor: Any) -> NumbersOf:
        torch = self._torch
        if tensor.dtype not in (torch.float32, torch.float64) or not tensor.is_contiguous():
            tensor = tensors.numbers(tensor).to(torch.float64).contiguous()
        return NumbersOf(tensor.data_ptr(), tensor.numel(), tensor.dtype is torch.float64, tensor)


def _facts(module: Any, aliases: Sequence[str]) -> Mapping[str, object]:
    """Return what the index says of a tensor beside its name."""
    facts: dict[str, object] = {"aliases": list(aliases)} if aliases else {}
    if module is not None:
        frame = users_frame(sys._getframe(2))
        facts["class"] = type(module).__name__
        if frame is not None:
            facts["place"] = [frame.f_code.co_filename, frame.f_lineno]
    return facts
