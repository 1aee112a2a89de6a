"""Where PyTorch tells what a training does: all hooks and wrappers, which turn it into events."""

from __future__ import annotations

import inspect
import sys
import weakref
from _thread import _local

from ..events import (
    BackwardEnded,
    BatchFetched,
    LoaderBegan,
    LoaderExhausted,
    LossComputed,
    ModelCalled,
    TensorsChange,
    tell,
)
from ..patching import replace, replace_in_static_type
from ..seeds import seeding, seeding_method
from . import private_api
from .compiling import own_code, tracing_test
from .state import has_parameters
from .tensors import is_here, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agent import Agent
    from ..events import Events
    from .state import Records

    Function = Callable[..., Any]


def _keeps_graph(
    gradients: Any = None, retain_graph: Any = None, create_graph: Any = False, *_others: Any, **_keywords: Any
) -> bool:
    """Whether backward() leaves what the forward pass has saved in memory."""
    return bool(create_graph if retain_graph is None else retain_graph)


def watch_seeding(agent: Agent, name: str, module: Any) -> None:
    """Note the seeds that are set by torch.random or torch.cuda.random; a replay gives recorded ones."""
    package = "torch.cuda" if name == "torch.cuda.random" else "torch"
    for function in ("manual_seed", "manual_seed_all"):
        call = f"{package}.{function}"
        replace(module, function, lambda original, call=call: seeding(agent.seeds, call, original))  # type: ignore[misc]


class EventThread(_local):
    """What a thread is within."""

    backward = False
    call = False  # of a module, or of a data loader, which may call modules that are no models


class EventHooks:
    """Puts the agent's functions around PyTorch's, once."""

    def __init__(self, agent: Agent, events: Events, records: Records, torch: Any) -> None:
        self._agent, self._events, self._records, self._torch = agent, events, records, torch
        self._is_compiling = tracing_test(torch)
        self._is_in_engine = private_api.is_in_engine(torch)
        self._without_overrides = private_api.without_overrides
        self._thread = EventThread()
        self._models: dict[int, weakref.ref[Any]] = {}  # modules that have a parameter, by id
        for instrument in (
            self._instrument_changes,
            self._instrument_backward,
            self._instrument_optimizer,
            self._instrument_modules,
            self._instrument_calls,
            self._instrument_generator,
        ):
            agent.attempt(instrument, torch)

    def watch(self, name: str, module: Any) -> None:
        """A further module of PyTorch is there."""
        if name == "torch.utils.data.dataloader":
            replace(module.DataLoader, "__iter__", self._make_iter)
            replace(private_api.loader_iterator(module), "__next__", self._make_next)
        elif name == "torch._dynamo.eval_frame":
            # What dynamo runs of ours between its graphs must not be compiled in its turn: it would find
            # itself inside of is_compiling() and tell nothing.
            for code in own_code():
                private_api.never_compile(module, code)

    def _instrument_generator(self, torch: Any) -> None:
        ledger, call = self._agent.seeds, "torch.Generator.manual_seed"
        replace_in_static_type(torch.Generator, "manual_seed", lambda method: seeding_method(ledger, call, method))

    # Changes in place

    def _instrument_changes(self, torch: Any) -> None:
        optimizer_class = sys.modules["torch.optim.optimizer"].Optimizer
        for owner, name in [
            (optimizer_class, "zero_grad"),
            (torch.nn.Module, "zero_grad"),
            (torch.nn.Module, "load_state_dict"),
        ]:
            replace(owner, name, self._make_change)

    def _make_change(self, original: Function) -> Function:
        """Around a function that changes gradients or parameters in place."""
        is_compiling, events = self._is_compiling, self._events
        parameter = inspect.signature(original).parameters.get("set_to_none")
        by_default = parameter is not None and parameter.default is True

        def change(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            replaces = by_default and not (arguments or keywords)  # nothing is changed then
            if events.tensors_change and not replaces and not is_compiling():
                tell(events.tensors_change, TensorsChange())
            return original(owner, *arguments, **keywords)

        return change

    # Losses

    def _instrument_backward(self, torch: Any) -> None:
        # Tensor.backward calls torch.autograd.backward, so that one wrapper sees both and Tensor stays as it is.
        replace(torch.autograd, "backward", self._make_backward)

    def _make_backward(self, original: Function) -> Function:
        inside, is_compiling, attempt = self._thread, self._is_compiling, self._agent.attempt
        began, ended = self._backward_began, self._backward_ended

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or inside.backward:  # checkpointing calls backward within backward
                return original(tensors, *arguments, **keywords)
            attempt(began, tensors)
            inside.backward = True
            is_freed = False
            try:
                original(tensors, *arguments, **keywords)
                is_freed = not _keeps_graph(*arguments, **keywords)
            finally:
                inside.backward = False
                attempt(ended, is_freed)

        return backward

    def _backward_began(self, tensors: Any) -> None:
        events = self._events
        if events.tensors_change:
            tell(events.tensors_change, TensorsChange())
        if events.loss_computed and not self._is_in_engine():
            tensor_class = self._torch.Tensor
            loss = tensors if isinstance(tensors, tensor_class) else next(iter(tensors), None)
            with self._without_overrides(self._torch):
                if isinstance(loss, tensor_class) and is_plain(loss):
                    tell(events.loss_computed, LossComputed(loss, is_here(loss)))

    def _backward_ended(self, is_freed: bool) -> None:
        events = self._events
        if events.backward_ended:
            with self._without_overrides(self._torch):
                tell(events.backward_ended, BackwardEnded(is_freed))

    # Optimizers and models

    def _instrument_optimizer(self, _torch: Any) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        replace(module.Optimizer, "__init__", self._make_initializer)
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            module.register_optimizer_step_pre_hook(self._make_step_pre_hook())
            register(self._make_step_hook())
        else:  # PyTorch before 2.0 wraps step in this, once for each class
            replace(module.Optimizer, private_api.old_step_hook(), self._make_profile_hook)

    def _make_initializer(self, original: Function) -> Function:
        agent, is_compiling, made = self._agent, self._is_compiling, self._records.made

        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not is_compiling():
                agent.attempt(made, optimizer)

        return initialize

    def _make_step_hook(self) -> Function:
        agent, is_compiling, stepped = self._agent, self._is_compiling, self._records.stepped

        def step_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if not is_compiling():
                agent.attempt(stepped, optimizer)

        return step_hook

    def _make_step_pre_hook(self) -> Function:
        agent, is_compiling, due = self._agent, self._is_compiling, self._records.due

        def step_pre_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if not is_compiling():
                agent.attempt(due, optimizer)

        return step_pre_hook

    def _make_profile_hook(self, original: Function) -> Function:
        step_hook, step_pre_hook = self._make_step_hook(), self._make_step_pre_hook()

        def make_step(step: Function) -> Function:
            def counted(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
                step_pre_hook(optimizer, arguments, keywords)
                result = step(optimizer, *arguments, **keywords)
                step_hook(optimizer, arguments, keywords)
                return result

            return counted

        def _hook_for_profile(optimizer: Any) -> None:
            original(optimizer)
            self._agent.attempt(replace, type(optimizer), "step", make_step)

        return _hook_for_profile

    def _instrument_modules(self, _torch: Any) -> None:
        module = sys.modules["torch.nn.modules.module"]
        is_compiling, registered = self._is_compiling, self._records.modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)

    # Calls of models

    def _instrument_calls(self, torch: Any) -> None:
        self._is_elsewhere = private_api.is_in_engine_or_traced(torch)
        self._has_gradients = torch.is_grad_enabled
        if self._events.model_called:
            replace(torch.nn.Module, "__call__", self._make_call)

    def _make_call(self, original: Function) -> Function:
        inside, events, attempt, called = self._thread, self._events, self._agent.attempt, self._called
        is_compiling = tracing_test(self._torch)

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or inside.call:
                return original(module, *arguments, **keywords)
            inside.call = True
            try:
                if events.model_called:
                    attempt(called, module, arguments, keywords)
                return original(module, *arguments, **keywords)
            finally:
                inside.call = False

        return call

    def _called(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Tell of a call of a module with parameters; not of one that a backward pass makes again, or torch.jit."""
        if self._is_elsewhere() or not (id(module) in self._models or self._is_model(module)):
            return
        with self._without_overrides(self._torch):
            tell(self._events.model_called, ModelCalled(arguments, keywords, self._has_gradients()))

    def _is_model(self, module: Any) -> bool:
        """Remember the modules with parameters; others may still get one."""
        is_model, models, key = has_parameters(module), self._models, id(module)
        if is_model:
            models[key] = weakref.ref(module, lambda _: models.pop(key, None))
        return is_model

    # Batches

    def _make_iter(self, original: Function) -> Function:
        agent, begin = self._agent, self._loader_began

        def iterate(loader: Any) -> Any:
            began = agent.attempt(begin, loader, sys._getframe(1))
            iterator = original(loader)
            agent.attempt(setattr, iterator, "_reprokit_began", began)
            return iterator

        return iterate

    def _loader_began(self, loader: Any, caller: Any) -> LoaderBegan:
        place = caller.f_code.co_filename, caller.f_lineno
        began = LoaderBegan(loader, place, getattr(loader, "num_workers", None))
        tell(self._events.loader_began, began)
        began.loader = None
        return began

    def _make_next(self, original: Function) -> Function:
        events, inside = self._events, self._thread

        def fetch(iterator: Any) -> Any:
            began = getattr(iterator, "_reprokit_began", None)
            was, inside.call = inside.call, True
            try:
                batch = original(iterator)
            except StopIteration:
                tell(events.loader_exhausted, LoaderExhausted(began))
                raise
            finally:
                inside.call = was
            if events.batch_fetched:
                tell(events.batch_fetched, BatchFetched(batch, began))
            return batch

        return fetch
