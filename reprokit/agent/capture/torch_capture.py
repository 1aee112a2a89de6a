"""Captures the step of a PyTorch training whose gradients or loss are not finite, before it is applied.

The gradients are tested when an optimizer is about to apply them. Whatever a step changes before that (buffers, random
states) or lets go of (batches) is held from its first forward pass on; everything else is still what it was.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref

from .. import trail
from ..frameworks.torch_records import Modules, named_tensors, parts_of
from ..patching import replace
from .random_states import RandomStates
from .settings import ROLLBACK, STOP
from .torch_gradients import Gradients
from .torch_held import Held, Threads
from .torch_ranks import Ranks
from .torch_snapshot import Names, Snapshooter
from .torch_state import Copy
from .torch_watched import Epoch, NotApplied, Record, Watched, loss_target, user_frames
from .words import in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType, ModuleType
    from typing import Any

    from . import Capture

    Function = Callable[..., Any]
    Trigger = dict[str, Any]

HOOK = "reprokit"  # our key among the hooks before each module's call
PROBATION = 16  # steps after which it is known whether the root model is called more than once in each
SMALLEST_SCALE = 2.0**-10  # of a GradScaler: with less than that gradients overflow by themselves
MAX_OVERFLOWS = 64  # in a row
SCALE_EACH = 32  # steps of which one looks at the scale of a fused optimizer, which skips by itself
WARM = 10  # norms of gradients whose mean is worth comparing with
MEMORY = 0.95  # of the running mean
MAX_ENTRIES = 64


class TorchCapture:
    """What this process captures of PyTorch."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._settings = capture.settings
        self._rolls_back = capture.settings.action == ROLLBACK
        self._mark = f"_reprokit_captured_{id(capture)}"  # a script may guard several trainings by several captures
        self._modules = Modules()
        self._watched = Watched()
        self._torch: Any = None
        self._is_compiling: Callable[[], bool] = lambda: False
        self._only: set[int] | None = None  # optimizers that the script guards by itself
        self._armed = 0  # threads whose next module call is looked at
        self._hook = self._entered
        self._copy: Copy | None = None  # the state to roll back to
        self._since_copy = 0
        self._steps = 0
        self._calls_often = False  # the root model, in each step

    def forget(self) -> None:
        """In a forked child: what the parent held is the parent's."""
        if self._torch is not None:
            self._threads = self._new_threads()
            self._armed = 0
            self._hooks.pop(HOOK, None)
            if self._watched.records:
                self._arm(self._threads.held)

    # ---- attaching ---------------------------------------------------------------------------------------------------

    def begin(self, name: str, module: ModuleType) -> None:
        """Attach to PyTorch, and to those of its modules that may come later."""
        if name == "torch" and self._torch is None:
            self._begin(module)
            for later in ("torch.utils.data.dataloader", "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler"):
                if later in sys.modules:
                    self._capture.attempt(self._instrument, later, sys.modules[later])
        elif self._torch is not None:
            self._instrument(name, module)

    def _begin(self, torch: Any) -> None:
        self._torch = torch
        self._is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", self._is_compiling)
        self._is_grad_enabled = torch.is_grad_enabled
        self._tensor = torch.Tensor
        self._above = self._settings.conditions.loss_above
        self._jumps = self._settings.conditions.gradient_jump is not None
        path = self._settings.library
        self._library = self._capture.attempt(trail.Library, path) if path else None
        self._gradients = Gradients(torch, self._library)
        self._threads = self._new_threads()
        self._hooks = sys.modules["torch.nn.modules.module"]._global_forward_pre_hooks
        self._snapshooter = Snapshooter(torch, self._gradients, self._watched)
        self._ranks = Ranks(torch)
        for instrument in (
            self._instrument_optimizers,
            self._instrument_schedules,
            self._instrument_modules,
            self._instrument_clipping,
            self._instrument_compile,
        ):
            self._capture.attempt(instrument, torch)
        replace(torch.autograd, "backward", self._make_backward, self._mark)
        if self._settings.conditions.activations:
            torch.nn.modules.module.register_module_forward_hook(self._make_activation_hook())

    def _new_threads(self) -> Threads:
        return Threads(lambda: Held(self._torch, RandomStates(self._library, self._torch)))

    def _instrument(self, name: str, module: Any) -> None:
        if name == "torch.utils.data.dataloader":
            replace(module.DataLoader, "__iter__", self._make_iter, self._mark)
            replace(module._BaseDataLoaderIter, "__next__", self._make_next, self._mark)
        elif name == "torch._dynamo.eval_frame":
            self._instrument_dynamo(module)
        else:
            replace(module.GradScaler, "__init__", self._make_noting(self._watched.scalers), self._mark)
            replace(module.GradScaler, "scale", self._make_scale, self._mark)
            replace(module.GradScaler, "step", self._make_scaler_step, self._mark)

    def _instrument_optimizers(self, _torch: Any) -> None:
        optimizer_class = sys.modules["torch.optim.optimizer"].Optimizer
        replace(optimizer_class, "__init__", self._make_initializer, self._mark)

    def _instrument_schedules(self, torch: Any) -> None:
        module = torch.optim.lr_scheduler
        for name in ("LRScheduler", "_LRScheduler", "ReduceLROnPlateau"):
            if hasattr(module, name):
                replace(getattr(module, name), "__init__", self._make_noting(self._watched.schedules), self._mark)

    def _instrument_modules(self, _torch: Any) -> None:
        module, is_compiling = sys.modules["torch.nn.modules.module"], self._is_compiling
        registered = self._modules.registered

        def hook(owner: Any, name: str, value: Any) -> None:
            if not is_compiling():
                registered(owner, name, value)

        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(hook)

    def _instrument_clipping(self, torch: Any) -> None:
        module = sys.modules["torch.nn.utils.clip_grad"]
        replace(module, "clip_grad_norm_", self._make_clip, self._mark)
        torch.nn.utils.clip_grad_norm_ = module.clip_grad_norm_

    def _instrument_compile(self, torch: Any) -> None:
        replace(torch, "compile", self._make_compile, self._mark)

    def _instrument_dynamo(self, module: Any) -> None:
        """What dynamo runs of ours between its graphs must not be compiled in its turn."""
        from ..frameworks.torch import own_code

        for code in own_code():
            module.skip_code(code)
        if hasattr(module, "OptimizedModule"):
            replace(module.OptimizedModule, "__call__", self._make_optimized_call, self._mark)

    def guard(self, model: Any, optimizers: Iterable[Any]) -> Guard:
        """Watch these optimizers, and none that was not given; under the launcher all are watched as it is."""
        if self._capture.agent is not None:
            return Guard(self, [])
        optimizers = list(optimizers)
        self._only = (self._only or set()) | set(map(id, optimizers))
        self._modules.registered(model, "", None)
        for optimizer in optimizers:
            self._record(optimizer)
            if "step" in vars(optimizer):  # a schedule has put its own in front
                optimizer.step = self._make_own_step(optimizer, optimizer.step)
        for name in ("torch.utils.data.dataloader", "torch._dynamo.eval_frame"):
            if name in sys.modules:
                self._capture.attempt(self._instrument, name, sys.modules[name])
        return Guard(self, optimizers)

    def release(self, optimizers: Iterable[Any]) -> None:
        """Watch these no longer."""
        for optimizer in optimizers:
            if self._only is not None:
                self._only.discard(id(optimizer))
            self._watched.records.pop(id(optimizer), None)
        if not self._watched.records:
            self._disarm(self._threads.held)
            self._threads.held.end(None)

    # ---- optimizers, schedules, scalers ------------------------------------------------------------------------------

    def _make_initializer(self, original: Function) -> Function:
        attempt, is_compiling, record = self._capture.attempt, self._is_compiling, self._record

        def initialize(optimizer: Any, *arguments: Any, **keywords: Any) -> None:
            original(optimizer, *arguments, **keywords)
            if not is_compiling() and self._only is None:
                attempt(record, optimizer)

        return initialize

    def _record(self, optimizer: Any) -> Record:
        known = self._watched.records.get(id(optimizer))
        if known is not None and known.reference() is optimizer:
            return known
        record = self._watched.add(optimizer)
        self._threads.held.buffers.known = False
        if not self._threads.held.armed and not self._threads.held.began:
            self._arm(self._threads.held)
        for owner in type(optimizer).__mro__:
            if "step" in vars(owner) and owner is not object:
                replace(owner, "step", self._make_step, self._mark)
                break
        return record

    def _make_noting(self, found: weakref.WeakKeyDictionary[Any, bool]) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def initialize(owner: Any, *arguments: Any, **keywords: Any) -> None:
                original(owner, *arguments, **keywords)
                if self._only is None:
                    found[owner] = True

            return initialize

        return make

    def _make_step(self, original: Function) -> Function:
        is_compiling, take = self._is_compiling, self._step

        def step(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return original(self, *arguments, **keywords)
            return take(original, self, arguments, keywords)

        return step

    def _make_own_step(self, optimizer: Any, original: Function) -> Function:
        reference = weakref.ref(optimizer)

        @functools.wraps(original)
        def step(*arguments: Any, **keywords: Any) -> Any:
            def bare(_optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
                return original(*arguments, **keywords)

            return self._step(bare, reference(), arguments, keywords)

        return step

    def _step(self, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """An optimizer's step, unless it must not be applied."""
        held, record = self._threads.held, self._watched.records.get(id(optimizer))
        if held.inside or (record is None and self._only is not None):
            return original(optimizer, *arguments, **keywords)
        held.inside = True
        try:
            if record is None or record.reference() is not optimizer:
                record = self._record(optimizer)  # a copy, or one that was unpickled
            if record.thread != held.thread:
                record.thread, held.buffers.known = held.thread, False
            if arguments or keywords:
                closure = arguments[0] if arguments else keywords.get("closure")
                if callable(closure) and not hasattr(closure, "_modules"):
                    return self._step_with_closure(original, optimizer, record, closure, arguments, keywords)
            if not self._is_fine(held, record, optimizer) and self._capture.attempt(
                self._refuses, held, record, optimizer
            ):
                self._skipped(held, record)
                return None
            result = original(optimizer, *arguments, **keywords)
            self._applied(held, record)
            return result
        finally:
            held.inside = False

    def _is_fine(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether the gradients of the only optimizer lie here and are finite, as in most steps."""
        if held.triggers or held.skipped or held.far or held.clean[0] or self._jumps or len(self._watched.records) > 1:
            return False
        try:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
            return self._gradients.are_finite_here(record.table, gradients)
        except Exception:  # whatever it is, the slower way knows it, or says so
            return False

    def _applied(self, held: Held, record: Record) -> None:
        record.steps += 1
        record.round = held.round
        self._steps += 1
        self._since_copy += 1
        if held.epoch is not None:
            held.epoch.steps += 1
        held.end(record)
        if not held.armed:
            held.armed = True
            self._armed += 1
            self._hooks[HOOK] = self._hook

    def _skipped(self, held: Held, record: Record) -> None:
        """Its optimizer's turn has passed, those of the others that were to apply the same gradients come yet."""
        remaining = held.skipped - {id(record)}
        record.steps += 1
        record.round = held.round
        self._steps += 1
        self._put_buffers_back(held)
        self._end(held, record)
        held.skipped = remaining

    def _put_buffers_back(self, held: Held) -> None:
        """What the forward pass of a step that is left out has moved, unless an older state takes its place."""
        if held.has_buffers and self._settings.action != ROLLBACK:
            self._capture.attempt(held.buffers.put_back)

    def _end(self, held: Held, record: Record) -> None:
        held.end(record)
        if not held.armed:
            self._arm(held)

    def _refuses(self, held: Held, record: Record, optimizer: Any) -> bool:
        """Whether the gradients must not be applied; where training is to stop it does so here."""
        if id(record) in held.skipped:
            return True
        if self._torch.cuda._initialized and self._torch.cuda.is_current_stream_capturing():
            return False  # nothing of ours may get into a CUDA graph that is being recorded
        records = [record]
        if len(self._watched.records) > 1:
            records += self._watched.following(record, held.round)
        is_scaled = getattr(optimizer, "found_inf", None) is not None  # it skips on the device, by itself
        triggers = held.triggers + self._triggers(held, records, is_scaled)
        if not triggers:
            return False
        self._alarm(held, records, triggers)
        return True

    def _triggers(self, held: Held, records: list[Record], is_scaled: bool) -> list[Trigger]:
        """What is wrong with the gradients that are about to be applied, or with losses that lie on a GPU."""
        far, found = held.far, []
        for one in records:
            gradients = [] if is_scaled else one.gradients()
            if gradients and not self._are_clean(held, gradients):
                if not self._gradients.are_finite(one.table, gradients, far):
                    found += self._snapshooter.gradient_triggers(self._models(), [one])
                    found += self._far_triggers(far)
                far = []
            if gradients and self._settings.conditions.gradient_jump is not None:
                found += self._jump(held, gradients)
        if held.far and (far or self._settings.conditions.loss_above is not None):
            found += self._far_triggers(held.far)
        return found

    def _are_clean(self, held: Held, gradients: list[Any]) -> bool:
        """Whether these were tested when they were clipped, and are what they were then."""
        tested, versions = held.clean
        if len(tested) != len(gradients) or held.far:
            return False
        same = all(a is b for a, b in zip(tested, gradients))  # noqa: B905
        return same and sum([gradient._version for gradient in gradients]) == versions

    def _far_triggers(self, losses: list[Any]) -> list[Trigger]:
        found = [self._loss_trigger(float(loss.item())) for loss in losses]
        return [trigger for trigger in found if trigger is not None]

    def _loss_trigger(self, value: float) -> Trigger | None:
        above = self._settings.conditions.loss_above
        if value - value != 0:
            return {"kind": "loss", "what": "nan" if value != value else "inf" if value > 0 else "-inf"}
        if above is not None and value > above:
            word = next(word for word in self._settings.conditions.words if word.replace(" ", "").startswith("loss>"))
            return {"kind": "condition", "what": word, "limit": above.hex(), "value": value.hex()}
        return None

    def _jump(self, held: Held, gradients: list[Any]) -> list[Trigger]:
        """Whether the norm of the gradients is far above its mean so far."""
        factor, norm = self._settings.conditions.gradient_jump or 0.0, self._gradients.norm(gradients)
        if norm - norm != 0:
            return []
        mean = held.mean
        if mean is not None and held.norms >= WARM and norm > factor * mean:
            word = next(word for word in self._settings.conditions.words if "jump" in word)
            return [{"kind": "condition", "what": word, "limit": (factor * mean).hex(), "value": norm.hex()}]
        held.mean = norm if mean is None else MEMORY * mean + (1 - MEMORY) * norm
        held.norms += 1
        return []

    def _warn(self, where: str, error: Exception) -> None:
        def fail() -> None:
            raise error

        fail.__qualname__ = f"TorchCapture.{where}"
        self._capture.attempt(fail)

    # ---- what is done about it ---------------------------------------------------------------------------------------

    def _alarm(self, held: Held, records: list[Record], triggers: list[Trigger]) -> None:
        """Save the state of the step's start, and see that its gradients are not applied."""
        step = records[0].steps
        triggers = self._capture.attempt(self._ranks.heard, triggers, self._parameters) or triggers
        triggers[0].setdefault("where", user_frames(sys._getframe(1)))
        triggers[0].setdefault("optimizers", self._watched.names(records))
        path = self._capture.attempt(self._save, held, step, triggers)
        held.triggers = []
        held.skipped = set(map(id, records))
        if self._settings.action == STOP:
            self._capture.attempt(self._ranks.wait)
        self._capture.captured(step, in_words(triggers[0]), path)
        if self._settings.action == ROLLBACK and self._copy is not None:
            self._capture.attempt(self._copy.put_back)

    def _save(self, held: Held, step: int, triggers: list[Trigger]) -> str | None:
        torch = self._torch
        with torch.no_grad(), torch._C.DisableTorchFunction():
            contents = self._snapshooter.contents(held, self._models(), step, triggers)
            header, parts = self._ranks.complete(*contents)
        return self._capture.save(header, parts)

    def _parameters(self) -> dict[str, Any]:
        """The parameters of all optimizers, by their names."""
        return Names(self._models(), self._watched).parameters

    def _models(self) -> list[Any]:
        """The models that have parameters of any optimizer."""
        parameters = [p for record in self._watched.alive() for p in record.parameters()]
        return self._modules.owners(parameters, self._torch.nn.Module)

    def _keep_copy(self) -> None:
        """Where training is to be rolled back: the state to go back to, now and then."""
        if self._copy is not None and self._since_copy < self._settings.rollback_every:
            return
        tensors = {id(t): t for model in self._models() for _, t in named_tensors(parts_of(model))}
        optimizers = [record.reference() for record in self._watched.alive()]
        for record in self._watched.alive():
            tensors.update({id(parameter): parameter for parameter in record.parameters()})
        others = [*self._watched.scalers, *self._watched.schedules]
        self._copy, self._since_copy = Copy(self._torch, tensors.values(), optimizers, others), 0

    # ---- closures ----------------------------------------------------------------------------------------------------

    def _step_with_closure(
        self, original: Function, optimizer: Any, record: Record, closure: Function, arguments: Any, keywords: Any
    ) -> Any:
        """The closure's gradients are tested each time that it was called; what it moved before is put back."""
        held = self._threads.held
        held.closure = guarded = _Closure(self, held, record, optimizer, closure)
        try:
            if arguments:
                result = original(optimizer, guarded, *arguments[1:], **keywords)
            else:
                result = original(optimizer, **{**keywords, "closure": guarded})
        except NotApplied:
            self._skipped(held, record)
            return guarded.loss
        finally:
            held.closure = None
        record.repeats = guarded.calls > 1 or (record.repeats and record.steps > 0)
        self._applied(held, record)
        return result

    def evaluated(self, held: Held, record: Record, optimizer: Any, closure: _Closure) -> None:
        """A closure was called; raises NotApplied where what it came to must not be applied."""
        if self._capture.attempt(self._refuses_evaluation, held, record, optimizer, closure):
            raise NotApplied

    def _refuses_evaluation(self, held: Held, record: Record, optimizer: Any, closure: _Closure) -> bool:
        triggers = held.triggers + self._triggers(held, [record], is_scaled=False)
        if not triggers:
            if record.repeats and closure.copy is None:
                closure.copy = Copy(self._torch, record.parameters(), [optimizer], ())
            return False
        for trigger in triggers:
            trigger["evaluation"] = closure.calls
        if closure.calls > 1 and closure.copy is not None:
            closure.copy.put_back()
        self._alarm(held, [record], triggers)
        return True

    # ---- the beginning of a step -------------------------------------------------------------------------------------

    def _arm(self, held: Held) -> None:
        """Look at the next module that is called. A hook that is only there until then costs the others nothing."""
        held.armed = True
        self._armed += 1
        self._hooks[HOOK] = self._hook

    def _disarm(self, held: Held) -> None:
        self._armed -= held.armed
        held.armed = False
        if self._armed <= 0:
            self._armed = 0
            self._hooks.pop(HOOK, None)

    def _entered(self, module: Any, arguments: Any) -> None:
        """A module is called."""
        held = self._threads.held
        if not held.armed or held.fetching or self._is_compiling():
            return
        if not self._is_grad_enabled():
            held.looked = True
            if module.training and not held.has_buffers:
                self._capture.attempt(self._keep_buffers, held, module)
        elif held.root is None or held.root is module:
            try:
                self._enter(held, module, arguments, None if arguments else sys._getframe(1))
            except Exception as error:
                self._warn("_entered", error)

    def _enter(self, held: Held, module: Any, arguments: Any, frame: FrameType | None) -> None:
        """The root model is called: the step begins, or goes on with its next batch."""
        keywords = {} if frame is None else frame.f_locals.get("kwargs") or {}
        if held.began or self._rolls_back or not held.buffers.is_empty:
            self._begin_step(held, module)
        else:  # the same in short
            held.random.keep()
            held.began = held.has_random = held.has_buffers = True
            held.began_at = held.round, module
        held.looked = False
        if held.saw_loader:
            self._disarm(held)
            if len(held.entry) < MAX_ENTRIES:
                held.entry.append((module, [arguments, dict(keywords)]))
            return
        held.batches.add("forward", [arguments, dict(keywords)], module)
        self._calls_often = self._calls_often or held.root is not None
        if held.closure is not None or not (self._calls_often or self._steps < PROBATION):
            self._disarm(held)
        held.root = module

    def _begin_step(self, held: Held, module: Any) -> None:
        if held.began:
            return
        held.began = True
        held.began_at = held.round, module
        if self._rolls_back:
            self._capture.attempt(self._keep_copy)
        held.random.keep()
        held.has_random = True
        if not held.has_buffers:
            self._keep_buffers(held, module)

    def _keep_buffers(self, held: Held, module: Any) -> None:
        if not held.buffers.known:
            held.buffers.watch(self._models() or ([] if module is None else [module]))
        held.buffers.keep()
        held.has_buffers = True

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _make_iter(self, original: Function) -> Function:
        attempt, begin = self._capture.attempt, self._begin_epoch

        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            attempt(begin, loader, iterator)
            return iterator

        return iterate

    def _begin_epoch(self, loader: Any, iterator: Any) -> None:
        epochs = self._watched.epochs
        epochs[loader] = epochs.get(loader, -1) + 1
        iterator._reprokit_captured = Epoch(epochs[loader])

    def _make_next(self, original: Function) -> Function:
        fetched = self._fetched

        def fetch(iterator: Any) -> Any:
            held = self._threads.held
            held.fetching = True
            try:
                batch = original(iterator)
            except StopIteration:
                held.exhausted()
                raise
            finally:
                held.fetching = False
            try:
                fetched(held, iterator, batch)
            except Exception as error:
                self._warn("_fetched", error)
            return batch

        return fetch

    def _fetched(self, held: Held, iterator: Any, batch: Any) -> None:
        """A DataLoader gave this. What is fetched without gradients, or only looked at, is no part of a step."""
        if not self._is_grad_enabled() or not self._watched.records:
            return
        if held.began and not held.is_trained():
            held.began = held.has_random = False  # an evaluation that left gradients on, or a trial
            held.looked = True
        if not held.began:
            if held.looked:
                held.batches.restart()
                held.looked = False
            held.entry, held.root = [], None
            held.has_buffers = False
            if not held.saw_loader:
                held.batches.restart()
            if not held.saw_forward:
                held.random.keep()
                held.has_random = True
            if not held.armed:
                self._arm(held)
        held.saw_loader = True
        held.batches.add("loader", batch)
        held.epoch = getattr(iterator, "_reprokit_captured", None)

    # ---- losses ------------------------------------------------------------------------------------------------------

    def _make_backward(self, original: Function) -> Function:
        is_compiling, attempt, lost, after = self._is_compiling, self._capture.attempt, self._lost, self._after_backward
        task: Function = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.backwards or task() != -1:
                return original(tensors, *arguments, **keywords)
            try:
                lost(held, tensors)
            except Exception as error:
                self._warn("_lost", error)
            held.backwards = True  # checkpointing calls backward within backward
            try:
                result = original(tensors, *arguments, **keywords)
            finally:
                held.backwards = False
            held.round += 1
            held.root = None
            if held.triggers or held.compiled or (held.began and not held.armed):
                attempt(after, held)
            return result

        return backward

    def _lost(self, held: Held, tensors: Any) -> None:
        """backward() is called of this."""
        if not self._watched.records:
            return
        if not self._is_plain_loss(held, tensors):
            loss = tensors if hasattr(tensors, "data_ptr") else next(iter(tensors), None)
            if loss is None or loss.numel() == 0:
                return
            held.loss = loss.detach()
            if not held.is_scaled:  # with what a GradScaler multiplies, it may well overflow
                self._judge(held, loss)
            if held.triggers or held.far:
                self._tell_ranks(held, tensors)
        if not (held.saw_loader or held.batches.earlier or held.closure):
            target = loss_target(tensors)
            if target is not None:
                held.batches.add("loss", {"target": target[1]}, target[0])

    def _is_plain_loss(self, held: Held, loss: Any) -> bool:
        """Whether it is a finite number on the CPU, as in most steps; then it is kept as such."""
        if type(loss) is not self._tensor or not loss.is_cpu or held.is_scaled or self._above is not None:
            return False
        value = loss.item() if loss.numel() == 1 else None
        if type(value) is not float or value - value != 0:
            return False
        held.losses.append(value)
        held.loss = value, loss.dtype, loss.shape
        return True

    def _tell_ranks(self, held: Held, tensors: Any) -> None:
        """What other processes cannot see in the gradients goes with them."""
        if not self._ranks.are_several:
            return
        if held.triggers:
            self._ranks.tell(held.triggers[0], self._parameters().values())
        elif hasattr(tensors, "register_hook"):
            self._ranks.tell_from_device(tensors, held.far[-1], self._settings.conditions.loss_above)

    def _judge(self, held: Held, loss: Any) -> None:
        if loss.numel() == 1 and not loss.is_complex():
            if loss.is_cpu:
                value = float(loss.item())
                held.losses.append(value)
                if value - value != 0 or self._settings.conditions.loss_above is not None:
                    trigger = self._loss_trigger(value)
                    held.triggers += [] if trigger is None else [trigger]
                return
            far = loss.detach()
            held.losses.append(far)
            held.far.append(far)
        elif loss.is_cpu and not bool(self._torch.isfinite(loss.detach()).all()):
            held.triggers.append({"kind": "loss", "what": "not finite"})

    def _after_backward(self, held: Held) -> None:
        if held.closure is not None or not self._watched.records:
            return
        if held.compiled and not held.triggers:
            self._test_compiled(held)
        if held.triggers and self._ranks.have_heard(held.began_at[1]):
            records = self._due(held)
            triggers = self._snapshooter.gradient_triggers(self._models(), records)
            self._alarm(held, records, held.triggers + triggers)
            if held.compiled:
                self._drop_gradients(held)
        if held.began and not held.armed:
            self._arm(held)

    def _due(self, held: Held) -> list[Record]:
        """The optimizers whose turn comes after this backward pass, first those that stepped last."""
        records = sorted(self._watched.alive(), key=lambda record: -record.round)
        return [record for record in records if record.gradients()] or records

    # ---- clipping ----------------------------------------------------------------------------------------------------

    def _make_clip(self, original: Function) -> Function:
        is_compiling, attempt, test, tested = self._is_compiling, self._capture.attempt, self._clip, self._clipped

        def clip_grad_norm_(parameters: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or not self._watched.records:
                return original(parameters, *arguments, **keywords)
            if not hasattr(parameters, "data_ptr"):
                parameters = list(parameters)  # it may be a generator
            gradients = attempt(test, held, parameters)
            if gradients is None and held.skipped:
                keywords.pop("error_if_nonfinite", None)
                return original(parameters, *arguments[:2], **keywords)
            result = original(parameters, *arguments, **keywords)
            if gradients:
                attempt(tested, held, gradients)
            return result

        return clip_grad_norm_

    def _clip(self, held: Held, parameters: Any) -> list[Any] | None:
        """Test gradients before clipping spreads what is not finite to all of them; None where they must go."""
        if held.is_scaled:  # a GradScaler has found out by itself
            return []
        if held.skipped:
            return None
        parameters = [parameters] if hasattr(parameters, "data_ptr") else parameters
        gradients = [gradient for gradient in [parameter.grad for parameter in parameters] if gradient is not None]
        wanted = set(map(id, parameters))
        records = [one for one in self._watched.alive() if any(id(p) in wanted for p in one.parameters())]
        if not gradients or not records or self._gradients.are_finite(self._watched.clipped, gradients, held.far):
            return gradients if records else []
        held.triggers += self._snapshooter.gradient_triggers(self._models(), records) + self._far_triggers(held.far)
        if not held.triggers or held.closure is not None:  # whose evaluation is judged when it is over
            return []
        self._alarm(held, records, held.triggers)
        return None

    def _clipped(self, held: Held, gradients: list[Any]) -> None:
        held.clean = gradients, sum([gradient._version for gradient in gradients])
        held.far = []

    # ---- GradScaler --------------------------------------------------------------------------------------------------

    def _make_scale(self, original: Function) -> Function:
        is_compiling, attempt, judge = self._is_compiling, self._capture.attempt, self._judge

        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if scaled is not outputs and hasattr(outputs, "data_ptr") and not is_compiling() and self._watched.records:
                held = self._threads.held
                held.is_scaled = True
                attempt(judge, held, outputs)
            return scaled

        return scale

    def _make_scaler_step(self, original: Function) -> Function:
        attempt, after = self._capture.attempt, self._after_scaler

        def step(scaler: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            record = self._watched.records.get(id(optimizer))
            before = -1 if record is None else record.steps
            result = original(scaler, optimizer, *arguments, **keywords)
            if record is not None:
                attempt(after, scaler, record, before)
            return result

        return step

    def _after_scaler(self, scaler: Any, record: Record, before: int) -> None:
        """Overflows are how a GradScaler finds its scale; that it finds none is an alarm."""
        if not getattr(scaler, "_enabled", True):
            return
        held, has_stepped = self._threads.held, record.steps != before
        if has_stepped:
            record.overflows = 0
            optimizer = record.reference()
            if not getattr(optimizer, "_step_supports_amp_scaling", False) or record.steps % SCALE_EACH:
                return
        record.overflows += not has_stepped
        triggers = [] if has_stepped else self._untold(held)
        scale = float(scaler.get_scale())
        if scale < SMALLEST_SCALE or record.overflows >= MAX_OVERFLOWS:
            triggers += self._scale_trigger(record, scale)
        if triggers:
            self._alarm(held, [record], triggers)
            record.overflows = 0
        if not has_stepped:
            self._skipped_by_scaler(held, record)

    def _untold(self, held: Held) -> list[Trigger]:
        """What is no overflow, though it looks like one to a GradScaler."""
        return held.triggers + self._far_triggers(held.far) or self._ranks.told(self._parameters)

    def _scale_trigger(self, record: Record, scale: float) -> list[Trigger]:
        gradients = self._snapshooter.gradient_triggers(self._models(), [record])
        what = f"the scale of the gradients has fallen to {scale:.3g}, after {record.overflows} overflows in a row"
        return [{"kind": "condition", "what": what, "limit": SMALLEST_SCALE.hex()}, *gradients]

    def _skipped_by_scaler(self, held: Held, record: Record) -> None:
        if held.skipped:
            self._put_buffers_back(held)
            held.skipped = set()
        self._end(held, record)

    # ---- torch.compile -----------------------------------------------------------------------------------------------

    def _make_compile(self, original: Function) -> Function:
        def compile_(model: Any = None, *arguments: Any, **keywords: Any) -> Any:
            compiled = original(model, *arguments, **keywords)
            if model is None or hasattr(compiled, "_modules") or not inspect.isroutine(compiled):
                return compiled
            owner = getattr(model, "__self__", None)
            return self._watching(compiled, owner if hasattr(owner, "_modules") else None)

        return compile_

    def _watching(self, compiled: Function, module: Any) -> Function:
        """A compiled function: an optimizer's step may be in it, which no hook sees."""
        is_compiling, attempt = self._is_compiling, self._capture.attempt

        @functools.wraps(compiled)
        def call(*arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.fetching:
                return compiled(*arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            held.compiled += 1
            try:
                return compiled(*arguments, **keywords)
            finally:
                held.compiled -= 1
                attempt(self._leave_compiled, held, seen)

        return call

    def _enter_compiled(self, held: Held, module: Any, arguments: Any, keywords: Any) -> tuple[bool, int, int]:
        """Dynamo must not find our hook, with which it would compile all again."""
        was_armed = held.armed
        if was_armed:
            self._disarm(held)
            if self._is_grad_enabled():
                was_armed = False
                self._begin_step(held, module)
                if not held.saw_loader:
                    held.batches.add("forward", [arguments, dict(keywords)], "" if module is None else module)
            else:
                held.looked = True
        if module is None and held.round != held.tested and not held.skipped:
            self._test_compiled(held)
            if held.triggers:
                self._alarm(held, self._due(held), held.triggers)
        if module is None and held.skipped:
            self._drop_gradients(held)
        return was_armed, self._steps, 0 if module is not None else self._watched.versions()

    def _leave_compiled(self, held: Held, seen: tuple[bool, int, int] | None) -> None:
        if seen is None:
            return
        was_armed, steps, versions = seen
        if was_armed and not held.armed:
            self._arm(held)
        if not versions or steps != self._steps:
            return
        if held.skipped:
            for record in self._watched.alive():
                self._skipped(held, record)
        elif versions != self._watched.versions():
            for record in self._watched.alive():  # its step was compiled
                self._applied(held, record)

    def _test_compiled(self, held: Held) -> None:
        """Gradients that compiled code is about to apply, perhaps."""
        held.tested = held.round
        if not held.is_scaled:
            held.triggers += self._triggers(held, self._due(held), is_scaled=False)

    def _drop_gradients(self, held: Held) -> None:
        for record in self._watched.alive():
            for parameter in record.parameters():
                parameter.grad = None

    def _make_optimized_call(self, original: Function) -> Function:
        is_compiling, attempt = self._is_compiling, self._capture.attempt

        def call(module: Any, *arguments: Any, **keywords: Any) -> Any:
            held = self._threads.held
            if is_compiling() or held.fetching or not held.armed:
                return original(module, *arguments, **keywords)
            seen = attempt(self._enter_compiled, held, module, arguments, keywords)
            try:
                return original(module, *arguments, **keywords)
            finally:
                attempt(self._leave_compiled, held, seen)

        return call

    # ---- activations -------------------------------------------------------------------------------------------------

    def _make_activation_hook(self) -> Function:
        is_compiling, attempt, look = self._is_compiling, self._capture.attempt, self._look

        def hook(module: Any, _arguments: Any, output: Any) -> None:
            if not is_compiling() and self._is_grad_enabled():
                attempt(look, module, output)

        return hook

    def _look(self, module: Any, output: Any) -> None:
        held = self._threads.held
        if not held.began or held.fetching or any(trigger["kind"] == "activation" for trigger in held.triggers):
            return
        outputs = output if isinstance(output, (list, tuple)) else [output]
        for tensor in outputs:
            if hasattr(tensor, "data_ptr") and tensor.is_floating_point():
                count, of = self._gradients.count(tensor.detach())
                if count:
                    name = self._snapshooter.module_name(self._models(), module)
                    held.triggers.append({"kind": "activation", "name": name, "count": count, "of": of})
                    return


class Guard:
    """Watches a script's own optimizers until it is closed; also as a context."""

    def __init__(self, capture: TorchCapture, optimizers: list[Any]) -> None:
        self._capture = capture
        self._optimizers = optimizers

    def close(self) -> None:
        """Watch no longer."""
        self._capture.release(self._optimizers)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _Closure:
    """A closure whose gradients are tested before the optimizer gets its loss."""

    def __init__(self, capture: TorchCapture, held: Held, record: Record, optimizer: Any, closure: Function) -> None:
        self._capture = capture
        self._held = held
        self._record = record
        self._optimizer = optimizer
        self._closure = closure
        self.calls = 0
        self.loss: Any = None
        self.copy: Copy | None = None

    def __call__(self) -> Any:
        self.loss = self._closure()
        self.calls += 1
        self._capture.evaluated(self._held, self._record, self._optimizer, self)
        return self.loss
