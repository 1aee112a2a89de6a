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
from ..core.signal_errors import pass_on
from ..events.steps import (
    SKIP,
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
    StepsReached,
    TensorsChange,
    UpdateDone,
    UpdateDue,
    handler_failed,
    tell,
)
from . import private_api
from .batch_memory import make_transfer
from .gates import Gates
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
    began: Any = None  # the LoaderBegan of the batch that was fetched last
    previous: Any = None  # that of the last update
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
        self.records = records  # None if no run is recorded
        # Telling an event by compiled code costs no call of Python.
        self.tell: Function = tell if compiled is None else functools.partial(compiled.tell, SKIP, handler_failed)
        self.mark = f"_reprokit_events_{id(self)}"  # one script may have several captures, each with its own hooks
        self.gates = Gates(events, torch, compiled, self.mark)
        self.is_compiling = self.gates.is_compiling
        # Without compiled code it returns None: listeners then read the loss themselves.
        self._loss_number: Function = (lambda _loss: None) if compiled is None else compiled.number
        self._engine_task = private_api.engine_task(torch)
        # Called directly, which is faster.
        self.without_overrides: Function = type(private_api.without_overrides(torch))
        self.thread = EventThread()
        self._models: dict[int, weakref.ref[Any]] = {}  # modules that have a parameter, by id
        self._decisions: Any = None
        self.wants_indices = False
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
        elif name == "torchdata.stateful_dataloader.stateful_dataloader":
            self.replace(module.StatefulDataLoader, "__iter__", self._make_iter)
            if self.wants_indices:
                private_api.watch_workers(module, self.replace)
        elif name == "torch._dynamo.eval_frame":
            # Between dynamo's graphs, code of the agent must not be compiled: is_compiling() would be true in it.
            for code in own_code():
                private_api.never_compile(module, code)
            self.gates.watch_compiler(module)
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
        for owner, name in places if self.events.may_hear(TensorsChange) else []:
            self.gates.put(owner, name, self._make_change, ["tensors_change"])

    def _make_change(self, original: Function) -> Function:
        """Wrap a function that changes gradients or parameters in place."""
        events, tell = self.events, self.tell
        parameter = inspect.signature(original).parameters.get("set_to_none")
        by_default = parameter is not None and parameter.default is True

        def change(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            sets_to_none = by_default and not (arguments or keywords)  # then gradients are dropped, not changed
            if not sets_to_none:
                tell(events.tensors_change, _CHANGE)
            return original(owner, *arguments, **keywords)

        return change

    # Losses

    def _instrument_backward(self, torch: Any) -> None:
        # Tensor.backward calls torch.autograd.backward, so one wrapper sees both and Tensor stays unpatched.
        self.gates.put(torch.autograd, "backward", self._make_backward)

    # The code of each step is in few functions, as each one outside the caches costs a microsecond or two.

    def _make_backward(self, original: Function) -> Function:
        thread, events, tell, failed = self.thread, self.events, self.tell, self.failed
        without_overrides, loss_number = self.without_overrides, self._loss_number
        task, no_task, tensor_class = self._engine_task, private_api.NO_TASK, self.torch.Tensor
        new, computed = object.__new__, self._loss_to_be_read

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if thread.backward or task() != no_task:  # checkpointing calls backward within backward
                return original(tensors, *arguments, **keywords)
            try:
                if events.tensors_change:
                    tell(events.tensors_change, _CHANGE)
                loss = tensors if isinstance(tensors, tensor_class) else next(iter(tensors), None)
                number = loss_number(loss)  # calls no code of a tensor subclass
                if events.loss_computed:
                    event: Any = new(LossComputed)
                    if number is None:
                        event = computed(loss)
                    else:
                        event.loss, event.is_here, event.number = loss, True, number
                    if event is not None:
                        event.began = thread.began
                        with without_overrides():
                            tell(events.loss_computed, event)
                if events.backward_began:
                    event = new(BackwardBegan)
                    event.tensors, event.number = tensors, number
                    tell(events.backward_began, event)
            except Exception as error:
                failed(backward, error)
                pass_on(error)
            thread.backward = has_failed = True
            try:
                original(tensors, *arguments, **keywords)
                has_failed = False
            finally:
                thread.backward = False
                if events.backward_ended:
                    ended = new(BackwardEnded)
                    ended.has_failed = has_failed
                    with without_overrides():
                        tell(events.backward_ended, ended)

        return backward

    def _loss_to_be_read(self, loss: Any) -> LossComputed | None:
        """Return the event of a loss whose value compiled code does not read; None if nobody can read it."""
        with self.without_overrides():
            is_readable = isinstance(loss, self.torch.Tensor) and is_plain(loss)
            return LossComputed(loss, loss.is_cpu) if is_readable else None

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
        if self.records is None:
            return
        if register is not None:
            pre_hook, hook = self._step_hooks(self.records)
            module.register_optimizer_step_pre_hook(self.gates.before(None, pre_hook, ["update_due"]))
            register(self.gates.before(None, hook))
        else:  # before PyTorch 2.0 this method wraps step, once for each class
            make_hook = functools.partial(self._make_profile_hook, self.records)
            self.replace(module.Optimizer, private_api.OLD_STEP_HOOK, make_hook)

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
        if self.records is not None:
            self.records.add(optimizer)
        else:
            tell(self.events.optimizer_made, OptimizerMade(None, optimizer))

    def _step_hooks(self, records: TrainingRecords) -> tuple[Function, Function]:
        """Return the hooks of PyTorch that report what is due, and what is done."""
        thread, events, tell, failed = self.thread, self.events, self.tell, self.failed
        without_overrides, new, known = self.without_overrides, object.__new__, records.optimizers

        def pre_hook(optimizer: Any, arguments: Any, keywords: Any) -> Any:
            if thread.steps:  # the wrapper that may skip the step reports it
                return None
            event = new(UpdateDue)
            try:
                closure = closure_in(arguments[1:], keywords) if keywords or len(arguments) > 1 else None
                with without_overrides():
                    event.optimizer, event.target, event.closure = known.get(id(optimizer)), optimizer, closure
                    if event.optimizer is None:
                        event.optimizer = records.of(optimizer)
                    event.began, event.previous = thread.began, thread.previous
                    tell(events.update_due, event)
            except Exception as error:
                failed(pre_hook, error)
                pass_on(error)
            return None if event.closure is closure else with_closure(event.closure, arguments, keywords, 1)

        def hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if thread.steps:
                return
            try:
                with without_overrides():
                    record = known.get(id(optimizer))
                    if record is None or not record.name:
                        record = records.stepped(optimizer)
                    else:
                        record.steps += 1
                        record.groups, record.state = optimizer.param_groups, optimizer.state
                    began = thread.previous = thread.began
                    for counter in began.counters if began is not None else ():
                        counter.steps += 1
                    event = new(UpdateDone)
                    event.optimizer = record
                    tell(events.update_done, event)
                    if record.steps >= record.alarm:
                        reached = new(StepsReached)
                        reached.optimizer = record
                        tell(events.steps_reached, reached)
            except Exception as error:
                failed(hook, error)
                pass_on(error)

        return pre_hook, hook

    def update_done(self, due: UpdateDue) -> None:
        """Report that an optimizer has updated its parameters."""
        thread = self.thread
        record = None if self.records is None else self.records.stepped(due.target)
        began = thread.previous = thread.began
        for counter in began.counters if began is not None else ():
            counter.steps += 1
        event = object.__new__(UpdateDone)
        event.optimizer, event.due = record, due
        self.tell(self.events.update_done, event)
        if record is not None and record.steps >= record.alarm:
            self.tell(self.events.steps_reached, StepsReached(record))

    def _make_profile_hook(self, records: TrainingRecords, original: Function) -> Function:
        step_pre_hook, step_hook = (self.gates.before(None, hook) for hook in self._step_hooks(records))

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
        heard = "model_called", "forward_began", "inputs_given", "output_computed"
        if events.may_hear(ModelCalled, ForwardBegan, InputsGiven, OutputComputed):
            self.gates.put(torch.nn.Module, "__call__", self._make_call, heard, heard[2:])

    def _make_call(self, original: Function) -> Function:
        thread, events, tell, failed = self.thread, self.events, self.tell, self.failed
        models, is_model, compute = self._models, self._is_model, functools.partial(self._call_and_report, original)
        task, no_task, traced_graph = self._engine_task, private_api.NO_TASK, self._traced_graph
        has_gradients, without_overrides, new = self._has_gradients, self.without_overrides, object.__new__

        quickly = self.tell

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            if thread.call:
                if events.output_computed and not (thread.call == _LOADER or thread.backward):
                    return compute(module, *arguments, **keywords)
                return original(module, *arguments, **keywords)
            thread.call = _MODULE
            is_followed = False
            try:
                try:
                    # Not if a backward pass recomputes it, or torch.jit traces it.
                    if events.model_called and task() == no_task and traced_graph() is None:
                        if id(module) in models or is_model(module):
                            event = new(ModelCalled)
                            event.module, event.arguments, event.keywords = module, arguments, keywords
                            event.has_gradients = has_gradients()
                            with without_overrides():
                                tell(events.model_called, event)
                            is_followed = event.has_gradients
                except Exception as error:
                    failed(call, error)
                    pass_on(error)
                if events.forward_began and not (thread.is_reported or thread.backward):
                    began = new(ForwardBegan)
                    began.module, began.arguments, began.keywords = module, arguments, keywords
                    function = compute if events.output_computed else original
                    try:
                        quickly(events.forward_began, began)
                        output = function(module, *began.arguments, **began.keywords)
                    except BaseException as error:
                        if events.forward_ended:
                            tell(events.forward_ended, ForwardEnded(began, error))
                        raise
                else:
                    output = (compute if events.output_computed else original)(module, *arguments, **keywords)
                if is_followed and events.model_returned:
                    tell(events.model_returned, ModelReturned(output))
                return output
            finally:
                thread.call = 0

        return call

    def report_call(self, original: Function, began: ForwardBegan) -> Any:
        """Call a compiled function, and report its begin and end."""
        thread, events, error = self.thread, self.events, None
        thread.is_reported = True
        try:
            self.tell(events.forward_began, began)
            return original(*began.arguments, **began.keywords)
        except BaseException as raised:
            error = raised
            raise
        finally:
            thread.is_reported = False
            if events.forward_ended:
                tell(events.forward_ended, ForwardEnded(began, error))
            error = None  # its traceback refers to this frame: the cycle would keep both alive

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
        events, thread, tell, new = self.events, self.thread, self.tell, object.__new__

        def fetch(iterator: Any) -> Any:
            began = getattr(iterator, "_reprokit_began", None)
            previous_call, thread.call = thread.call, _LOADER
            try:
                batch = self._next_batch(original, iterator, began) if events.batch_due else original(iterator)
            except StopIteration:
                thread.began = began
                tell(events.loader_exhausted, LoaderExhausted(began))
                raise
            except BaseException:
                next(getattr(iterator, "_reprokit_indices", None) or iter(()), None)
                raise
            finally:
                thread.call = previous_call
            thread.began = began
            if events.batch_fetched:
                event = new(BatchFetched)
                event.batch, event.began = batch, began
                if self.wants_indices:
                    queue = getattr(iterator, "_reprokit_indices", None)
                    indices = None if queue is None else next(queue, None)
                    if type(indices) is not list or not indices or indices[0] is None:  # of an IterableDataset
                        indices = private_api.sample_names(iterator) or indices
                    event.indices, event.worker = indices, getattr(iterator, "_reprokit_worker", None)
                tell(events.batch_fetched, event)
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
