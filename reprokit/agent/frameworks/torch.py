"""PyTorch: losses, optimizer steps, epochs, the weights of models and optimizers, random states."""

from __future__ import annotations

import atexit
import inspect
import math
import os
import sys
import weakref
from _thread import _local

from ..agent import on_thread
from ..digests import weights_line
from ..patching import replace, replace_in_static_type
from ..seeds import seeding, seeding_method
from ..values import from_float
from .torch_records import ModelRecord, Modules, OptimizerRecord
from .torch_tensors import dtype_name, entry, is_plain, scalar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any

    from ..agent import Agent
    from .torch_trail import TorchTrail

    Function = Callable[..., Any]

MAX_PENDING = 64  # losses on a GPU that wait to be read together


class Epoch:
    """What happened since a DataLoader was last begun."""

    def __init__(self, name: str, place: tuple[str, int]) -> None:
        self.name = name
        self.place = place  # where it was begun first
        self.thread = on_thread("")
        self.number = 0
        self.steps = 0
        self.exhausted = False
        self.losses: list[float] = []
        self.last: dict[str, object] | None = None

    def values(self) -> dict[str, object]:
        """The last loss, and the mean of all, correctly rounded whatever their order."""
        if self.last is None:
            return {}
        finite = all(map(math.isfinite, self.losses))
        mean = math.fsum(self.losses) / len(self.losses) if finite else sum(self.losses)
        return {"loss": self.last, "mean_loss": from_float("float64", mean)}

    def next(self) -> None:
        self.number += 1
        self.steps = 0
        self.exhausted = False
        self.losses = []
        self.last = None


def _keeps_graph(
    gradients: Any = None, retain_graph: Any = None, create_graph: Any = False, *_others: Any, **_keywords: Any
) -> bool:
    """Whether backward() leaves what the forward pass has saved in memory."""
    return bool(create_graph if retain_graph is None else retain_graph)


class Adapter:
    """Watches a training by PyTorch."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._modules = Modules()
        # .backward: inside of one; .epoch: whose batch the coming steps work on; .trained: that of the last step
        self._thread = _local()
        self._torch: Any = None
        self._trail: TorchTrail | None = None
        self._broken: Any = None  # a trail that failed, whose worker may still read what it holds
        self._is_compiling: Callable[[], bool] = lambda: False
        atexit.register(self.finish)  # earlier at exit than the agent's own, which was registered first
        self.forget()

    def forget(self) -> None:
        if self._trail is not None:
            self._trail.forget()
        self._thread.epoch = self._thread.trained = None
        self._optimizers: weakref.WeakKeyDictionary[Any, OptimizerRecord] = weakref.WeakKeyDictionary()
        self._models: dict[int, ModelRecord] = {}  # by id of the module, while it lives
        self._loaders: weakref.WeakKeyDictionary[Any, Epoch] = weakref.WeakKeyDictionary()
        self._epochs: list[Epoch] = []
        self._pending: list[tuple[str, int, Any, Epoch | None]] = []

    def instrument(self, name: str, module: Any) -> None:
        if name == "torch":
            self._torch = module
            self._agent.framework(name, module)
            for instrument in (
                self._begin_trail,
                self._instrument_backward,
                self._instrument_optimizer,
                self._instrument_modules,
                self._instrument_generator,
            ):
                self._agent.attempt(instrument, module)
        elif name == "torch.utils.data.dataloader":
            self._instrument_loader(module)
        elif name == "torch._dynamo.eval_frame":
            # What dynamo runs of ours between its graphs must not be compiled in its turn: it would find
            # itself inside of is_compiling() and tell nothing.
            for code in own_code():
                module.skip_code(code)
        else:
            package = "torch.cuda" if name == "torch.cuda.random" else "torch"
            for function in ("manual_seed", "manual_seed_all"):
                call = f"{package}.{function}"
                replace(module, function, lambda original, call=call: seeding(self._agent.seeds, call, original))  # type: ignore[misc]

    def _instrument_generator(self, torch: Any) -> None:
        ledger, call = self._agent.seeds, "torch.Generator.manual_seed"
        replace_in_static_type(torch.Generator, "manual_seed", lambda method: seeding_method(ledger, call, method))

    # The trail

    def _begin_trail(self, torch: Any) -> None:
        from .. import trail

        library = trail.load(self._agent.run)
        if library is not None:
            from .torch_trail import TorchTrail

            self._trail = TorchTrail(self._agent, library, torch)
            os.register_at_fork(before=lambda: self._trail_does("pause"))
            for owner, name in [
                (sys.modules["torch.optim.optimizer"].Optimizer, "zero_grad"),
                (torch.nn.Module, "zero_grad"),
                (torch.nn.Module, "load_state_dict"),
            ]:
                replace(owner, name, self._make_change)

    def _trail_does(self, what: str, *arguments: Any) -> None:
        """What subclasses and modes make of a tensor's methods does not count here."""
        if self._trail is not None:
            with self._torch._C.DisableTorchFunction():
                self._trail_goes_on(what, *arguments)

    def _trail_goes_on(self, what: str, *arguments: Any) -> None:
        """A trail that fails ends, with a warning, and the training goes on."""
        trail = self._trail
        if trail is None:
            return
        try:
            getattr(trail, what)(*arguments)
        except Exception as error:
            self._trail, self._broken = None, trail
            self._agent.warn(f"no further step is kept in the trail: {type(error).__name__}: {error}")

    def _settle(self) -> None:
        """Wait for who reads gradients and parameters, as they are about to change."""
        if self._trail is not None and self._trail.reading:
            self._trail_does("settle")

    def _make_change(self, original: Function) -> Function:
        """Around a function that changes gradients or parameters in place, which may still be read."""
        is_compiling, settle = self._is_compiling, self._settle
        parameter = inspect.signature(original).parameters.get("set_to_none")
        by_default = parameter is not None and parameter.default is True

        def change(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            if not is_compiling() and (arguments or keywords or not by_default):  # else they are replaced, not changed
                settle()
            return original(owner, *arguments, **keywords)

        return change

    # Losses

    def _instrument_backward(self, torch: Any) -> None:
        # Tensor.backward calls torch.autograd.backward, so that one wrapper sees both and Tensor stays as it is.
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._is_compiling)
        replace(torch.autograd, "backward", self._make_backward)

    def _make_backward(self, original: Function) -> Function:
        inside, agent, note_loss, is_compiling = self._thread, self._agent, self._note_loss, self._is_compiling
        settle = self._settle

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling() or getattr(inside, "backward", False):
                return original(tensors, *arguments, **keywords)
            settle()
            agent.attempt(note_loss, tensors)
            inside.backward = True  # checkpointing calls backward within backward
            is_freed = False
            try:
                original(tensors, *arguments, **keywords)
                is_freed = not _keeps_graph(*arguments, **keywords)
            finally:
                inside.backward = False
                if not is_freed:
                    self._trail_does("let_graph_go")

        return backward

    def _note_loss(self, tensors: Any) -> None:
        torch = self._torch
        in_engine = getattr(torch._C, "_current_graph_task_id", None)
        if in_engine is not None and in_engine() != -1:
            return
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        with torch._C.DisableTorchFunction():
            if isinstance(loss, torch.Tensor) and is_plain(loss):
                self._trail_goes_on("lost", loss)
                name, epoch = on_thread("loss"), getattr(self._thread, "epoch", None)
                step = self._agent.number(name)
                if loss.device.type == "cpu":
                    self._write_loss(name, step, loss, epoch)
                elif not self._is_capturing(loss):
                    self._pending.append((name, step, loss.detach().clone(), epoch))
        if len(self._pending) >= MAX_PENDING:
            self._flush()

    def _is_capturing(self, loss: Any) -> bool:
        """Whether a CUDA graph is being recorded, into which nothing of ours may get."""
        capturing = getattr(self._torch.cuda, "is_current_stream_capturing", None)
        return loss.device.type == "cuda" and capturing is not None and bool(capturing())

    def _write_loss(self, name: str, step: int, loss: Any, epoch: Epoch | None) -> None:
        if loss.numel() != 1:
            value = {"dtype": "str", "text": entry("", loss)[3]}
            self._agent.journal.write("log", {"name": name, "step": step, "epoch": None, "value": value})
            return
        described = scalar(loss)
        self._agent.journal.write_loss(name, step, described)
        if epoch is not None and dtype_name(loss) not in ("complex64", "complex128"):
            epoch.losses.append(float(loss.item()))
            epoch.last = described

    def _flush(self) -> None:
        """Read the losses that wait on a GPU."""
        pending, self._pending = self._pending, []
        for name, step, loss, epoch in pending:
            self._agent.attempt(self._write_loss, name, step, loss.cpu(), epoch)

    # Optimizers and models

    def _instrument_optimizer(self, _torch: Any) -> None:
        module: Any = sys.modules["torch.optim.optimizer"]
        replace(module.Optimizer, "__init__", self._make_initializer)
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            module.register_optimizer_step_pre_hook(self._make_step_pre_hook())
            register(self._make_step_hook())
        else:  # PyTorch before 2.0 wraps step in this, once for each class
            replace(module.Optimizer, "_hook_for_profile", self._make_profile_hook)

    def _make_initializer(self, original: Function) -> Function:
        agent, is_compiling, record = self._agent, self._is_compiling, self._record

        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not is_compiling():
                agent.attempt(record, optimizer)

        return initialize

    def _make_step_hook(self) -> Function:
        agent, is_compiling, stepped = self._agent, self._is_compiling, self._stepped

        def step_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if not is_compiling():  # what dynamo traces must not reach our records
                agent.attempt(stepped, optimizer)

        return step_hook

    def _make_step_pre_hook(self) -> Function:
        agent, is_compiling, settle, begins = self._agent, self._is_compiling, self._settle, self._begins

        def step_pre_hook(optimizer: Any, _arguments: Any, _keywords: Any) -> None:
            if not is_compiling():
                settle()
                agent.attempt(begins, optimizer)

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
        is_compiling, registered = self._is_compiling, self._modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)

    def _record(self, optimizer: Any) -> OptimizerRecord:
        record = OptimizerRecord(optimizer, self._agent.generation)
        self._optimizers[optimizer] = record
        if self._trail is not None:
            record.generators = self._trail.generators()
            record.untouched = self._agent.generators.untouched()
        weakref.finalize(optimizer, self._agent.attempt, self._optimizer_ends, record).atexit = False
        return record

    def _begins(self, optimizer: Any) -> None:
        record = self._optimizers.get(optimizer)
        if record is not None:
            self._trail_does("begins", record)
        epoch, trained = getattr(self._thread, "epoch", None), getattr(self._thread, "trained", None)
        if epoch is not trained:
            self._thread.trained = epoch
            if trained is not None and trained.exhausted:
                self._agent.attempt(self._end_epoch, trained, True)

    def _stepped(self, optimizer: Any) -> None:
        record = self._optimizers.get(optimizer)
        if record is None:
            record = self._record(optimizer)
        record.stepped(optimizer)
        if not record.name:
            self._adopt(record)
        self._trail_does("stepped", record)
        epoch = getattr(self._thread, "epoch", None)
        if epoch is not None:
            epoch.steps += 1
        if self._agent.observer is not None:
            self._agent.observer.step()

    def _adopt(self, record: OptimizerRecord) -> None:
        """Name the optimizer, and the models whose parameters it has, at its first step."""
        record.name = self._agent.name("optimizer")
        owners = self._modules.owners(record.parameters(), self._torch.nn.Module)
        models = [self._model(module) for module in owners]
        record.name_parameters(models)
        if models:
            self._trail_does("has_buffers", record, [buffers for model in models for buffers in model.buffers()])

    def _model(self, module: Any) -> ModelRecord:
        model = self._models.get(id(module))
        if model is None:
            model = ModelRecord(module, self._agent.name("model"))
            self._models[id(module)] = model
            weakref.finalize(module, self._agent.attempt, self._model_ends, id(module), model).atexit = False
        return model

    # Epochs

    def _instrument_loader(self, module: Any) -> None:
        replace(module.DataLoader, "__iter__", self._make_iter)
        replace(module._BaseDataLoaderIter, "__next__", self._make_next)

    def _make_iter(self, original: Function) -> Function:
        agent, begin = self._agent, self._begin_epoch

        def iterate(loader: Any) -> Any:
            epoch = agent.attempt(begin, loader, sys._getframe(1))
            iterator = original(loader)
            agent.attempt(setattr, iterator, "_reprokit_epoch", epoch)
            return iterator

        return iterate

    def _make_next(self, original: Function) -> Function:
        def fetch(iterator: Any) -> Any:
            epoch = self._thread.epoch = getattr(iterator, "_reprokit_epoch", None)
            try:
                batch = original(iterator)
            except StopIteration:
                if epoch is not None:
                    epoch.exhausted = True  # not ended: a loop that fetches ahead has batches left
                raise
            self._trail_goes_on("fetched", batch)
            return batch

        return fetch

    def _begin_epoch(self, loader: Any, caller: FrameType) -> Epoch:
        place = caller.f_code.co_filename, caller.f_lineno
        epoch = self._loaders.get(loader)
        if epoch is None:
            epoch = self._loaders[loader] = self._taken_over(place) or self._new_epoch(loader, place)
        self._end_epoch(epoch)
        for other in self._former():
            if other.exhausted:  # nobody will begin it again to end it
                self._end_epoch(other)
        return epoch

    def _former(self) -> list[Epoch]:
        """Those of this thread's loaders that are gone."""
        alive, thread = set(map(id, self._loaders.values())), on_thread("")
        return [epoch for epoch in self._epochs if id(epoch) not in alive and epoch.thread == thread]

    def _taken_over(self, place: tuple[str, int]) -> Epoch | None:
        """The epochs of a loader that is gone, where one made anew is begun at the same place: each time, as a rule."""
        return next((epoch for epoch in self._former() if epoch.place == place), None)

    def _new_epoch(self, loader: Any, place: tuple[str, int]) -> Epoch:
        epoch = Epoch(self._agent.name("loader"), place)
        self._epochs.append(epoch)
        self._agent.computed(epoch.name, "loader", {"workers": getattr(loader, "num_workers", None)})
        return epoch

    def _end_epoch(self, epoch: Epoch, late: bool = False) -> None:
        """Write what an epoch came to; late: another loader's first step has computed its gradients."""
        if not epoch.steps:
            return
        self._flush()
        line = {"name": epoch.name, "epoch": epoch.number, "values": epoch.values(), "steps": epoch.steps}
        self._agent.journal.write("epoch", line)
        thread = on_thread("")  # another thread's models are in the midst of their training
        records: list[ModelRecord | OptimizerRecord] = [*self._models.values(), *self._optimizers.values()]
        for record in records:
            has_changed = late and isinstance(record, ModelRecord) and any(record.buffers())
            if record.thread == thread and not has_changed:
                self._agent.attempt(self._write_weights, record, "epoch", epoch.number)
        epoch.next()

    # The end

    def _write_weights(self, record: ModelRecord | OptimizerRecord, at: str, epoch: int | None) -> None:
        if isinstance(record, ModelRecord):
            record.refresh()
        elif not record.used:
            return
        elif not record.name:
            self._adopt(record)  # it stepped in compiled code only
        if self._torch.cuda.is_initialized() and self._torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{record.name} was not read, as a CUDA graph is being recorded")
        with self._torch.no_grad(), self._torch._C.DisableTorchFunction():
            tensors = record.tensors()
        line = weights_line(at, epoch, record.name, record.kind, tensors, full=at == "end")
        self._agent.journal.write("weights", line)

    def _model_ends(self, key: int, record: ModelRecord) -> None:
        if self._models.get(key) is record:
            self._end_epochs()
            del self._models[key]
            self._write_weights(record, "end", None)

    def _optimizer_ends(self, record: OptimizerRecord) -> None:
        if record.ended or not record.used or record.generation != self._agent.generation:
            return
        record.ended = True
        if record.series is not None:
            self._trail_does("ended", record.series)
        self._end_epochs()
        self._write_weights(record, "end", None)
        line = {"object": record.name, "class": record.kind, "steps": record.steps}
        self._agent.journal.write("optimizer", line)

    def _end_epochs(self, all_of_them: bool = False) -> None:
        self._flush()
        thread = on_thread("")  # another thread may be about to end its own
        for epoch in list(self._epochs):
            if all_of_them or (epoch.exhausted and epoch.thread == thread):
                self._agent.attempt(self._end_epoch, epoch)

    def finish(self) -> None:
        self._trail_does("finish")
        self._agent.attempt(self._end_epochs, True)
        for record in list(self._optimizers.values()):
            self._agent.attempt(self._optimizer_ends, record)
        for key, model in list(self._models.items()):
            self._agent.attempt(self._model_ends, key, model)

    def random_states(self) -> None:
        if self._torch is None:
            return
        self._write_state("torch", self._torch.random.get_rng_state())
        if self._torch.cuda.is_initialized():
            for device in range(self._torch.cuda.device_count()):
                self._write_state(f"torch.cuda:{device}", self._torch.cuda.get_rng_state(device))

    def _write_state(self, name: str, state: Any) -> None:
        self._agent.journal.write("random_state", {"name": name, "digest": entry(name, state)[3]})


def own_code() -> Iterator[CodeType]:
    """The code of every function of the agent."""
    package = __name__.partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            owners = [value for value in vars(module).values() if isinstance(value, type)]
            for owner in [module, *owners]:
                for value in list(vars(owner).values()):
                    function = getattr(value, "fget", value)
                    if getattr(function, "__module__", "") == name and hasattr(function, "__code__"):
                        yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _with_inner(constant)
