"""Hooks and wrappers of PyTorch, which turn what a training does into events.

Hooks needed only by a listener that may skip updates are in decisions.py; they are installed if there is one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from _thread import _local

from ..core.patching import replace
from ..events.steps import (
    BackwardBegan,
    BackwardEnded,
    BatchDue,
    BatchFetched,
    ForwardBegan,
    ForwardEnded,
    InputsGiven,
    LoaderBegan,
    LoaderExhausted,
    LossComputed,
    ModelCalled,
    ModelReturned,
    OptimizerMade,
    OutputComputed,
    ScalerMade,
    ScheduleMade,
    TensorsChange,
    UpdateDone,
    UpdateDue,
    tell,
)
from . import private_api
from .batch_memory import make_transfer
from .state import Modules, closure_in, has_parameters, with_closure
from .tensors import is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any, Protocol

    from ..core.agent import Agent
    from ..events.steps import EventListener, Events
    from .state import TrainingRecords

    Function = Callable[..., Any]

    class ErrorGuard(Protocol):
        """Whoever turns failures of hooks into warnings: an agent, or a script's own captures."""

        def attempt(self, function: Function, *arguments: Any) -> Any: ...
        def failed(self, function: Function, error: Exception) -> None: ...


# Besides torch itself, a deciding listener, or a run without an adapter, waits for these modules.
LATER = (
    "torch.utils.data.dataloader",
    "torch.amp.grad_scaler",
    "torch.cuda.amp.grad_scaler",
    "torch._dynamo.eval_frame",
)
_CHANGE = TensorsChange()  # without attributes: one instance is enough
_MODULE, _LOADER = 1, 2


class EventThread(_local):
    """The calls that a thread is currently within."""

    backward = False
    call = 0  # _MODULE, or _LOADER, whose data set may call modules that are no models
    is_reported = False  # within a call of a module or compiled function that was already reported
    steps = 0  # nested optimizer steps that listeners may skip
    has_stepped = False  # whether an optimizer stepped since GradScaler.step began


class EventHooks:
    """Installs the hooks and wrappers around PyTorch's functions, once."""

    def __init__(
        self,
        guard: ErrorGuard,
        events: Events,
        torch: Any,
        modules: Modules,
        records: TrainingRecords | None = None,
        compiled: Any = None,
    ) -> None:
        self.attempt, self.failed = guard.attempt, guard.failed
        self.events, self.torch, self.modules = events, torch, modules
        self._records = records  # None if no run is recorded
        self.is_compiling = tracing_test(torch)
        # Without compiled code it returns None: listeners then read the loss themselves.
        self._loss_number: Function = (lambda _loss: None) if compiled is None else compiled.number
        self._engine_task = private_api.engine_task(torch)
        self._without_overrides = type(private_api.without_overrides(torch))  # called directly, which is faster
        self.thread = EventThread()
        self._models: dict[int, weakref.ref[Any]] = {}  # modules that have a parameter, by id
        self._decisions: Any = None
        self.wants_indices = False
        self.mark = f"_reprokit_events_{id(self)}"  # one script may have several captures, each with its own hooks
        for instrument in (
            self._instrument_changes,
            self._instrument_backward,
            self._instrument_optimizer,
            self._instrument_modules,
            self._instrument_clipping,
            self._instrument_calls,
        ):
            self.attempt(instrument, torch)

    def replace(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Wrap a function, once for these hooks."""
        replace(owner, name, make, self.mark)

    def watch(self, name: str, module: Any) -> None:
        """Instrument a module of PyTorch that was imported later."""
        if name == "torch.utils.data.dataloader":
            self.replace(module.DataLoader, "__iter__", self._make_iter)
            self.replace(private_api.loader_iterator(module), "__next__", self._make_next)
            if self.wants_indices:
                private_api.watch_indices(module, self.replace)
        elif name == "accelerate.data_loader":
            self.replace(module, "send_to_device", functools.partial(make_transfer, self.events))
        elif name == "torch._dynamo.eval_frame":
            # Between dynamo's graphs, code of the agent must not be compiled: is_compiling() would be true in it.
            for code in own_code():
                private_api.never_compile(module, code)
        if self._decisions is not None:
            self._decisions.watch(name, module)

    def decide(self, listener: EventListener) -> None:
        """Add a listener, called last, that may skip updates and replace the arguments of calls."""
        from .decisions import DecisionHooks

        self.events.add(listener)
        self._decisions, self.wants_indices = DecisionHooks(self), True
        self._instrument_clipping(self.torch)
        self._instrument_calls(self.torch)
        for name in LATER:
            if name in sys.modules:
                self.attempt(self.watch, name, sys.modules[name])

    def attach(self, optimizer: Any) -> None:
        """Wrap the steps of an optimizer that already exists."""
        self._decisions.attach(optimizer)
        self._decisions.attach_own_step(optimizer)

    # Changes in place

    def _instrument_changes(self, torch: Any) -> None:
        places = [
            (sys.modules["torch.optim.optimizer"].Optimizer, "zero_grad"),
            (torch.nn.Module, "zero_grad"),
            (torch.nn.Module, "load_state_dict"),
        ]
        for owner, name in places if self.events.tensors_change else []:
            self.replace(owner, name, self._make_change)

    def _make_change(self, original: Function) -> Function:
        """Wrap a function that changes gradients or parameters in place."""
        is_compiling, events = self.is_compiling, self.events
        parameter = inspect.signature(original).parameters.get("set_to_none")
        by_default = parameter is not None and parameter.default is True

        def change(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            sets_to_none = by_default and not (arguments or keywords)  # then gradients are dropped, not changed
            if events.tensors_change and not sets_to_none and not is_compiling():
                tell(events.tensors_change, _CHANGE)
            return original(owner, *arguments, **keywords)

        return change

    # Losses

    def _instrument_backward(self, torch: Any) -> None:
        # Tensor.backward calls torch.autograd.backward, so one wrapper sees both and Tensor stays unpatched.
        self.replace(torch.autograd, "backward", self._make_backward)

    def _make_backward(self, original: Function) -> Function:
        thread, events, is_compiling, attempt = self.thread, self.events, self.is_compiling, self.attempt
        began, ended, task, no_task = self._backward_began, self._backward_ended, self._engine_task, private_api.NO_TASK

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or thread.backward or task() != no_task:  # checkpointing calls backward within backward
                return original(tensors, *arguments, **keywords)
            attempt(began, tensors)
            thread.backward = has_failed = True
            try:
                original(tensors, *arguments, **keywords)
                has_failed = False
            finally:
                thread.backward = False
                if events.backward_ended:
                    ended(has_failed)

        return backward

    def _backward_began(self, tensors: Any) -> None:
        events, tensor_class = self.events, self.torch.Tensor
        if events.tensors_change:
            tell(events.tensors_change, _CHANGE)
        loss = tensors if isinstance(tensors, tensor_class) else next(iter(tensors), None)
        number = self._loss_number(loss)  # calls no code of a tensor subclass
        if events.loss_computed and number is not None:
            tell(events.loss_computed, LossComputed(loss, True, number))
        elif events.loss_computed:
            with self._without_overrides():
                if isinstance(loss, tensor_class) and is_plain(loss):
                    tell(events.loss_computed, LossComputed(loss, loss.is_cpu))
        if events.backward_began:
            tell(events.backward_began, BackwardBegan(tensors, number))

    def _backward_ended(self, has_failed: bool) -> None:
        with self._without_overrides():
            tell(self.events.backward_ended, BackwardEnded(has_failed))

    def _instrument_clipping(self, torch: Any) -> None:
        if self.events.clipping_due or self.events.gradients_clipped:
            from .decisions import make_clip

            clipping = sys.modules["torch.nn.utils.clip_grad"]
            self.replace(clipping, "clip_grad_norm_", functools.partial(make_clip, self))
            torch.nn.utils.clip_grad_norm_ = clipping.clip_grad_norm_

    # Optimizers and models

    def _instrument_optimizer(self, _torch: Any) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        self.replace(module.Optimizer, "__init__", self._make_initializer)
        if self.events.schedule_made or self.events.scaler_made:
            self.watch_schedules_and_scalers()
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if self._records is None:
            return
        if register is not None:
            module.register_optimizer_step_pre_hook(self._make_step_hook(self.update_due))
            register(self._make_step_hook(self.update_done))
        else:  # before PyTorch 2.0 this method wraps step, once for each class
            self.replace(module.Optimizer, private_api.OLD_STEP_HOOK, self._make_profile_hook)

    def watch_schedules_and_scalers(self) -> None:
        """Report the schedules and gradient scalers that the script creates."""
        for kind in private_api.schedule_classes(sys.modules["torch.optim.lr_scheduler"]):
            self.replace(kind, "__init__", self._make_schedule)
        for name in LATER:
            if name.endswith("grad_scaler") and name in sys.modules:
                self.replace(sys.modules[name].GradScaler, "__init__", self._make_scaler)

    def _make_schedule(self, original: Function) -> Function:
        return _report_after(original, lambda schedule: tell(self.events.schedule_made, ScheduleMade(schedule)))

    def _make_scaler(self, original: Function) -> Function:
        return _report_after(original, lambda scaler: tell(self.events.scaler_made, ScalerMade(scaler)))

    def _make_initializer(self, original: Function) -> Function:
        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not self.is_compiling():
                self.attempt(self._report_optimizer, optimizer)

        return initialize

    def _report_optimizer(self, optimizer: Any) -> None:
        if self._decisions is not None:
            self._decisions.attach(optimizer)
        if self._records is not None:
            self._records.add(optimizer)
        else:
            tell(self.events.optimizer_made, OptimizerMade(None, optimizer))

    def _make_step_hook(self, report: Callable[[UpdateDue], object]) -> Function:
        def step_hook(optimizer: Any, arguments: Any, keywords: Any) -> Any:
            if self.thread.steps or self.is_compiling():  # the wrapper that may skip the step reports it
                return None
            closure = closure_in(arguments[1:], keywords)
            due = UpdateDue(None, optimizer, closure)
            self.attempt(report, due)
            return None if due.closure is closure else with_closure(due.closure, arguments, keywords, 1)

        return step_hook

    def update_due(self, due: UpdateDue) -> str | None:
        """Report that an optimizer is about to update; return SKIP if a listener forbids it."""
        events = self.events
        if not events.update_due:
            return None
        if self._records is not None:
            due.optimizer = self._records.of(due.target)
        with self._without_overrides():
            return tell(events.update_due, due)

    def update_done(self, due: UpdateDue) -> None:
        """Report that an optimizer has updated its parameters."""
        with self._without_overrides():
            record = None if self._records is None else self._records.stepped(due.target)
            tell(self.events.update_done, UpdateDone(record, due))

    def _make_profile_hook(self, original: Function) -> Function:
        step_pre_hook, step_hook = map(self._make_step_hook, (self.update_due, self.update_done))

        def make_step(step: Function) -> Function:
            def counted(*arguments: Any, **keywords: Any) -> Any:
                arguments, keywords = step_pre_hook(arguments[0], arguments, keywords) or (arguments, keywords)
                result = step(*arguments, **keywords)
                step_hook(arguments[0], arguments, keywords)
                return result

            return counted

        def _hook_for_profile(optimizer: Any) -> None:
            original(optimizer)
            if self._decisions is None:  # whose wrapper reports all steps
                self.attempt(self.replace, type(optimizer), "step", make_step)

        return _hook_for_profile

    def _instrument_modules(self, _torch: Any) -> None:
        module = sys.modules["torch.nn.modules.module"]
        is_compiling, registered = self.is_compiling, self.modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)

    # Calls of models

    def _instrument_calls(self, torch: Any) -> None:
        self._traced_graph = private_api.traced_graph(torch)
        self._has_gradients = torch.is_grad_enabled
        events = self.events
        if events.model_called or events.forward_began or events.inputs_given or events.output_computed:
            self.replace(torch.nn.Module, "__call__", self._make_call)

    def _make_call(self, original: Function) -> Function:
        thread, events, attempt, called = self.thread, self.events, self.attempt, self._report_model_call
        is_compiling, compute = tracing_test(self.torch), functools.partial(self._call_and_report, original)

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or thread.call:
                if events.output_computed and not (thread.call == _LOADER or thread.backward or is_compiling()):
                    return compute(module, *arguments, **keywords)
                return original(module, *arguments, **keywords)
            thread.call = _MODULE
            try:
                is_followed = events.model_called and attempt(called, module, arguments, keywords)
                if events.forward_began and not (thread.is_reported or thread.backward):
                    began = ForwardBegan(module, arguments, keywords)
                    output = self.report_call(compute if events.output_computed else original, (module,), began)
                else:
                    output = (compute if events.output_computed else original)(module, *arguments, **keywords)
                if is_followed and events.model_returned:
                    tell(events.model_returned, ModelReturned(output))
                return output
            finally:
                thread.call = 0

        return call

    def report_call(self, original: Function, owner: tuple[Any, ...], began: ForwardBegan) -> Any:
        """Call a module or compiled function, and report its begin and end."""
        thread, events, error = self.thread, self.events, None
        thread.is_reported = True
        try:
            tell(events.forward_began, began)
            return original(*owner, *began.arguments, **began.keywords)
        except BaseException as raised:
            error = raised
            raise
        finally:
            thread.is_reported = False
            if events.forward_ended and (error is not None or began.is_compiled):
                tell(events.forward_ended, ForwardEnded(began, error))
            error = None  # its traceback refers to this frame: the cycle would keep both alive

    def _report_model_call(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Report a call of a module with parameters; return whether a backward pass can go through it."""
        if self._engine_task() != private_api.NO_TASK or self._traced_graph() is not None:
            return False  # a backward pass recomputes it, or torch.jit traces it
        if not (id(module) in self._models or self._is_model(module)):
            return False
        has_gradients: bool = self._has_gradients()
        with self._without_overrides():
            tell(self.events.model_called, ModelCalled(arguments, keywords, has_gradients, module))
        return has_gradients

    def _call_and_report(self, original: Function, module: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call a module, and report its inputs and output, unless a backward pass recomputes it."""
        events = self.events
        if not (events.output_computed and self._engine_task() == private_api.NO_TASK):
            return original(module, *arguments, **keywords)
        if events.inputs_given:
            tell(events.inputs_given, InputsGiven(module, arguments, keywords))
        output = original(module, *arguments, **keywords)
        tell(events.output_computed, OutputComputed(module, output))
        return output

    def _is_model(self, module: Any) -> bool:
        """Return whether a module has parameters; only positive answers are cached, as others may get some."""
        is_model, models, key = has_parameters(module), self._models, id(module)
        if is_model:
            models[key] = weakref.ref(module, lambda _: models.pop(key, None))
        return is_model

    # Batches

    def _make_iter(self, original: Function) -> Function:
        attempt, begin = self.attempt, self._loader_began

        def iterate(loader: Any) -> Any:
            began = attempt(begin, loader, sys._getframe(1))
            iterator = original(loader)
            attempt(setattr, iterator, "_reprokit_began", began)
            return iterator

        return iterate

    def _loader_began(self, loader: Any, caller: Any) -> LoaderBegan:
        place = caller.f_code.co_filename, caller.f_lineno
        began = LoaderBegan(loader, place, getattr(loader, "num_workers", None))
        tell(self.events.loader_began, began)
        began.loader = None
        return began

    def _make_next(self, original: Function) -> Function:
        events, thread = self.events, self.thread

        def fetch(iterator: Any) -> Any:
            began = getattr(iterator, "_reprokit_began", None)
            previous_call, thread.call = thread.call, _LOADER
            try:
                batch = self._next_batch(original, iterator, began) if events.batch_due else original(iterator)
            except StopIteration:
                tell(events.loader_exhausted, LoaderExhausted(began))
                raise
            except BaseException:
                private_api.next_indices(iterator)
                raise
            finally:
                thread.call = previous_call
            if events.batch_fetched:
                indices, worker = private_api.next_indices(iterator) if self.wants_indices else (None, None)
                tell(events.batch_fetched, BatchFetched(batch, began, indices, worker))
            return batch

        return fetch

    def _next_batch(self, original: Function, iterator: Any, began: LoaderBegan | None) -> Any:
        """Return the next batch of a loader, or the one by which a handler replaces it."""
        due, batch = BatchDue(iterator, began), None
        tell(self.events.batch_due, due)
        try:
            batch = original(iterator) if due.replace is None or due.wants_own else None
        except StopIteration:
            if not due.outlasts:
                raise
        return batch if due.replace is None else due.replace(batch)


def recording_hooks(agent: Agent) -> EventHooks | None:
    """Return the hooks of this process, if it is recorded and uses PyTorch."""
    return agent.shared.get(EventHooks)


def _report_after(original: Function, callback: Callable[[Any], object]) -> Function:
    def initialize(owner: Any, *arguments: Any, **keywords: Any) -> None:
        original(owner, *arguments, **keywords)
        callback(owner)

    return initialize


# Cooperation with torch.compile.


def tracing_test(torch: Any) -> Callable[[], bool]:
    """Return a function that tells whether torch.compile is tracing; traced calls must not be recorded."""
    return getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def own_code() -> Iterator[CodeType]:
    """Yield the code of every function of the agent."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            owners = [value for value in vars(module).values() if isinstance(value, type)]
            for owner in [module, *owners]:
                for value in list(vars(owner).values()):
                    function = getattr(value, "fget", value)
                    if getattr(function, "__module__", "") == name and hasattr(function, "__code__"):
                        yield from _nested_code(function.__code__)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _nested_code(constant)
