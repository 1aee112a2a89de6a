"""Does a captured step of PyTorch again, at the first step of the user's own script, and again on parts of its batch.

The script builds its model and optimizers and asks its DataLoader for a batch: it is given the snapshot's. Before the
first forward pass the snapshot's state is put into what the script built. Where the optimizer would update, the
gradients are compared, and the update is left out. The next turn of the user's loop is the next trial; a script that
ends before the search does is started again.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from _thread import _local

from ..objects import OtherClassError
from ..observing.torch_inputs import tensors as tensors_in
from ..pytorch.state import Modules
from . import torch_hooks
from .reading import SnapshotError
from .redo import EXPLAIN, MINIMISE, RedoDriver
from .settings import LOSS_ABOVE
from .torch_batches import Batch, Turn, leaves_out, shares, turns
from .torch_fit import Built, UnfitError
from .torch_outcome import Step, judged
from .torch_phases import own_step
from .trigger import ACTIVATION, CONDITION, LOSS, PARAMETER
from .variables import give, parts, standing_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, NoReturn

    from . import Capture
    from .reading import SnapshotFile
    from .torch_explain import Explaining
    from .trigger import Trigger

    Function = Callable[..., Any]

MAX_WITHOUT = 1000  # turns of the script's loop in a row that come to nothing
MAX_PASSED = 10_000
NO_FETCH = "the script's step took no batch from a DataLoader, from which the snapshot's came"
NO_LOADER = (
    "no DataLoader gave the batch: what the script computed with besides its model's arguments and its functions' "
    "variables is its own"
)
NOT_CUT = "; what loops choose by their variables cannot be made smaller, and is its own, too"
NOT_CUT_BATCH = "a batch whose tensors are of several lengths is one sample here"
NO_FORWARD = "the script's step called no module with gradients enabled; the snapshot's began with such a call"


class Trial:
    """One attempt of the step, from the batch that the loop is given to the update that it does not make."""

    def __init__(self, samples: list[int], parts: list[tuple[Turn, list[int]]]) -> None:
        self.samples = samples
        self.fetched = [(turn.fetched, own) for turn, own in parts if turn.fetched is not None]
        self.called = [(batch, own) for turn, own in parts for batch in turn.called]
        self.targets = [(batch, own) for turn, own in parts for batch in turn.targets]
        self.variables = [(batch, own) for turn, own in parts for batch in turn.variables]
        self.judged = 0  # losses whose target was replaced
        self.handed = 0  # batches that the loop was given
        self.calls = 0  # of modules, whose arguments were replaced
        self.is_unused = False  # what was handed was only used without gradients: by an evaluation
        self.evaluated: Any = None  # whose batches seem to be for an evaluation that leaves gradients on
        self.is_put = False  # the state was, when the batch was handed over
        self.is_begun = False  # the script works on it with the snapshot's state
        self.part: str | None = None  # of the optimizer's step, which was made
        self.is_called = False  # a module was, for the first time since then
        self.passes = 0  # backward
        self.root: Any = None  # the module that was called first, since the last backward pass
        self.losses: list[Any] = []
        self.not_finite: list[Trigger] = []  # modules' outputs, and parameters that the update has made so
        self.updated: list[Any] = []  # those parameters themselves
        self.given: list[tuple[str, Any]] = []  # tensors of batches, for who asks where values came from

    @property
    def is_used_up(self) -> bool:
        """Whether all that the loop was given went into gradients."""
        return self.passes >= len(self.fetched)


class _Thread(_local):
    """Where one thread is."""

    def __init__(self) -> None:
        self.depth = 0  # of calls of modules
        self.fetching = False
        self.in_backward = False
        self.in_closure = False
        self.in_step = False  # which calls its closure
        self.stepped = False  # the scaler called the optimizer
        self.scaled: tuple[Any, Any] = (None, None)  # a loss that a scaler multiplied, and what it was


class TorchRedo:
    """Drives the trials of this process."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._driver = RedoDriver(capture)
        self._is_attached = False
        self._torch: Any = None
        self._hooks: torch_hooks.Hooks
        self._thread = _Thread()
        self._modules = Modules()
        self._failed_part: list[int] | None = None  # with which the script cannot make the step
        self._built: Built
        self._without = 0  # turns of the loop since a trial ended
        self._passed = 0  # updates of other optimizers
        self._like: Any = None  # what the script's loader gave
        self._iterator: Any = None  # that handed a batch out last
        self._evaluates: Any = weakref.WeakSet()  # iterators that give their own batches
        self._is_ahead = False  # the script was given batches before it used those before them

    def begin(self, name: str, module: Any) -> None:
        """Attach to PyTorch, or to a module of it."""
        if name == "torch":
            self._begin(module)
        elif self._is_active:
            self._hooks.watch(name, module)

    def _begin(self, torch: Any) -> None:
        self._torch = torch
        self._hooks = torch_hooks.Hooks(torch, self)
        try:
            self._read(self._driver.file)
        except SnapshotError as error:
            self._give_up(str(error))
        except (KeyError, TypeError, ValueError) as error:
            self._give_up(f"{self._driver.path} cannot be used: {error!r}")
        if self._driver.mode == EXPLAIN:
            os.environ["TORCH_COMPILE_DISABLE"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
        for part, found in torch_hooks.loaded_with(torch):
            self._hooks.watch(part, found)
        self._watch_modules()
        if any(turn.targets for turn in self._turns):
            try:
                self._hooks.watch_losses(torch)
            except (AttributeError, TypeError):  # PyTorch before 2.0
                self._driver.problem("targets of losses are the script's own")
        self._is_attached = True
        atexit.register(self._ended)
        self._next_trial()

    def _read(self, snapshot: SnapshotFile) -> None:
        self._built = Built(self._torch, snapshot, self._hooks, self._modules, self._driver.problem)
        self._header = snapshot.header
        if self._header.get("sharded"):
            self._give_up("the snapshot holds one rank's shards of a model (FSDP): such a step is not done again")
        entries = self._header.get("batches") or []
        self._turns = turns([Batch(entry, self._built.reader.value) for entry in entries])
        loops = self._header.get("loops")
        self._loops: dict[str, Any] = loops if isinstance(loops, dict) else {}
        self._of = sum(turn.samples for turn in self._turns)
        self._indices = [index for turn in self._turns for index in turn.indices]
        for turn in self._turns:
            if turn.fetched is not None and turn.fetched.is_empty:
                self._give_up(f"nothing of the batch was kept, but for its class: {', '.join(turn.fetched.left_out)}")
        self._trigger = self._driver.wanted
        if self._trigger.updates is not None:
            self._give_up("the snapshot is of a state some updates before the one that did it, and has no batch")

    @property
    def _is_about_loss(self) -> bool:
        """Whether what was captured is known before the gradients are."""
        return self._trigger.condition == LOSS_ABOVE or self._trigger.kind in (LOSS, ACTIVATION)

    def _watch_modules(self) -> None:
        module: Any = sys.modules["torch.nn.modules.module"]
        for kind in ("parameter", "module"):
            register = getattr(module, f"register_module_{kind}_registration_hook", None)
            if register is not None:
                register(self._modules.registered)
        if self._trigger.kind == ACTIVATION:
            module.register_module_forward_hook(self._look_at_output)

    def forget(self) -> None:
        """A forked child works for the loader."""
        self._is_attached = self._driver.is_done = False

    @property
    def _is_active(self) -> bool:
        return self._is_attached and not self._driver.is_done

    def _require_end(self) -> None:
        """A script that catches everything has caught its end too."""
        if self._driver.is_done:
            sys.stdout.flush()
            os._exit(0)

    # Trials

    def _next_trial(self) -> None:
        if any(turn.is_whole for turn in self._turns) and self._driver.mode == MINIMISE:
            self._driver.problem(NOT_CUT_BATCH)
        samples = list(self._driver.next(self._of, self._indices, lambda part: leaves_out(self._turns, part)))
        self._trial = Trial(samples, shares(self._turns, samples))
        self._explaining: Explaining | None = None

    def _begin_trial(self) -> None:
        """Put the snapshot's state into what the script built."""
        trial = self._trial
        if not trial.is_put:
            try:
                self._built.put()
            except (UnfitError, SnapshotError) as error:
                self._give_up(str(error))
        trial.is_put = False
        if self._driver.trials:
            self._built.forget_gradients()
        self._driver.running(trial.samples)
        trial.is_begun, trial.is_called, trial.part = True, False, None
        trial.calls = trial.judged = trial.passes = 0
        trial.losses.clear()
        if self._driver.mode == EXPLAIN:
            self._explain()
        self._built.put_random()

    # What the hooks tell

    def fetch(self, original: Callable[[], Any], iterator: Any) -> Any:
        """A loader's iterator is asked for its next batch."""
        self._require_end()
        if not self._is_active or not self._trial.fetched or not self._torch.is_grad_enabled():
            return self._next_of(original)
        trial = self._trial
        if trial.evaluated is not None:
            self._evaluates.add(trial.evaluated)
            trial.evaluated = None
        if iterator in self._evaluates:
            return self._next_of(original)
        self._iterator = iterator
        if trial.is_begun and trial.handed >= len(trial.fetched):
            if trial.is_used_up:
                self._conclude()  # the loop goes on to other batches: what it does with ours, it has done
                trial = self._trial
            elif not trial.losses:  # an evaluation that left gradients on, or an error that the script passed by
                trial.is_begun, trial.is_unused = False, True
                self._without += 1
                if self._without >= MAX_WITHOUT:
                    self._failed("no backward pass came")
                    trial = self._trial
        if trial.is_unused:
            trial.handed, trial.is_unused = 0, False
        self._is_ahead = self._is_ahead or trial.handed >= len(trial.fetched)
        if self._like is None:
            self._like = self._next_of(original)
        batch, samples = trial.fetched[min(trial.handed, len(trial.fetched) - 1)]
        trial.handed += 1
        value = self._hand(batch, samples, self._like)
        if not trial.is_begun:
            trial.is_put = self._is_put()
            if self._header.get("parameters") or not self._header.get("models"):
                self._begin_trial()  # parameters of no module may be used before one is called, if any will be
        self._built.put_random(batch.random or None)
        return value

    def _is_put(self) -> bool:
        """Put the state in where the batch is handed over, unless the script has its models to make yet."""
        try:
            self._built.put()
        except (UnfitError, SnapshotError):
            return False
        return True

    def _next_of(self, original: Callable[[], Any]) -> Any:
        self._thread.fetching = True
        try:
            return original()
        finally:
            self._thread.fetching = False

    def _hand(self, batch: Batch, samples: list[int], like: Any) -> Any:
        """The part of a batch as the script is given it."""
        try:
            value = batch.part(samples, like, self._driver.fills)
        except (SnapshotError, OtherClassError) as error:
            self._give_up(str(error))
        if self._driver.mode == EXPLAIN:
            self._trial.given += [("the batch", tensor) for tensor in tensors_in(self._torch, value)]
            self._explain()
        return value

    def call(self, original: Function, module: Any, arguments: Any, keywords: Any) -> Any:
        """A module is called, or a compiled function, which is none."""
        thread = self._thread
        depth = thread.depth
        thread.depth = depth + 1
        try:
            if self._is_active and not depth and not (thread.fetching or thread.in_backward):
                arguments, keywords = self._called(module, arguments, keywords)
            return original(module, *arguments, **keywords)
        except Exception as error:
            if self._is_active and not depth and self._trial.is_begun:
                self._failed(f"{type(error).__name__}: {str(error)[:200]}")
            raise
        finally:
            thread.depth = depth

    def _called(self, module: Any, arguments: Any, keywords: Any) -> tuple[Any, Any]:
        trial = self._trial
        is_training = self._torch.is_grad_enabled() and bool(self._built.optimizers)
        if not is_training or self._is_evaluating(module):
            trial.is_unused = not trial.is_begun
            if trial.is_unused and is_training:
                trial.evaluated = self._iterator
            return arguments, keywords
        if not trial.handed if trial.fetched else not self._is_wanted(module):
            return arguments, keywords
        trial.is_unused, trial.evaluated = False, None
        if not trial.is_begun:
            self._begin_trial()
        if not trial.is_called:
            trial.is_called = True
            self._built.put_random()  # as it was then, whatever was drawn between
        if trial.root is None:
            trial.root = module
        if trial.called and not trial.fetched and trial.root is module and self._is_wanted(module):
            batch, samples = trial.called[min(trial.calls, len(trial.called) - 1)]
            trial.calls += 1
            given = [arguments, keywords]
            value = self._hand(batch, samples, given)
            arguments, keywords = _moved(self._torch, value, given)
            give(sys._getframe(1), standing_for(given, [arguments, keywords]), self._variables)
        return arguments, keywords

    def _variables(self, function: str, known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """What the snapshot has for variables of one of the script's functions."""
        trial = self._trial
        if trial.calls != len(trial.called):  # they are those of the end
            return
        for batch, samples in trial.variables:
            if batch.name != function:
                continue
            value = self._hand(batch, samples, dict(known))
            for name in value if isinstance(value, dict) else ():
                if name in known and _are_alike(known[name], value[name]):
                    yield name, _moved(self._torch, value[name], known[name])
        if self._driver.mode != MINIMISE:  # which would choose all samples of the batch
            loops = self._loops.get(function)
            for name, number in loops.items() if isinstance(loops, dict) else ():
                if type(known.get(name)) is int is type(number):
                    yield name, number

    def target(self, target: Any) -> Any:
        """A loss is computed against this; the snapshot may know the target that it was."""
        trial = self._trial
        if not self._is_active or not trial.is_begun or not trial.targets or not isinstance(target, self._torch.Tensor):
            return target
        batch, samples = trial.targets[min(trial.judged, len(trial.targets) - 1)]
        trial.judged += 1
        try:
            return batch.part(samples, None, self._driver.fills)["target"].to(target.device)
        except SnapshotError as error:
            self._give_up(str(error))

    def _is_wanted(self, module: Any) -> bool:
        """Whether the snapshot's module was called as this one is; the snapshot may not tell."""
        names = {batch.name for batch, _ in self._trial.called}
        if not names or None in names or not hasattr(module, "_modules"):
            return not names or None in names
        try:
            return self._built.fit.name_of(module) in names
        except UnfitError as error:
            self._give_up(str(error))

    def _is_evaluating(self, module: Any) -> bool:
        """Whether the module is not being trained, where the snapshot's models were."""
        models = self._header.get("models") or []
        flags = [(model.get("training") or {}).get("") for model in models]
        is_model = hasattr(module, "_modules")
        return (
            is_model and not module.training and bool(flags) and all(flags) and any(True for _ in module.parameters())
        )

    def _look_at_output(self, module: Any, _inputs: Any, output: Any) -> None:
        if not self._is_active or not self._trial.is_begun:
            return
        for tensor in tensors_in(self._torch, output):
            found = judged(self._torch, ACTIVATION, self._built.name_of(module), tensor)
            self._trial.not_finite += [] if found is None else [found]

    def backward(self, original: Callable[[], Any], tensors: Any) -> Any:
        """A backward pass is begun."""
        if not self._is_active or self._thread.in_backward:
            return original()
        trial = self._trial
        if trial.is_begun:
            losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors)
            trial.losses += [self._unscaled(loss) for loss in losses]
        self._thread.in_backward = True
        try:
            result = original()
        finally:
            self._thread.in_backward = False
        trial.passes += trial.is_begun
        trial.root = None
        if trial.is_begun and self._is_about_loss and not self._thread.in_closure:
            self._conclude_early(all(loss.is_cpu for loss, _ in trial.losses))
        return result

    def _unscaled(self, loss: Any) -> tuple[Any, Any]:
        """What a backward pass is begun of, and what it was before a GradScaler multiplied it."""
        scaled, before = self._thread.scaled
        return loss.detach(), (before if scaled is loss else loss).detach()

    def scale(self, loss: Any, scaled: Any) -> None:
        """A GradScaler has multiplied a loss."""
        self._thread.scaled = (scaled, loss) if isinstance(loss, self._torch.Tensor) else (None, None)

    def clip(self, original: Callable[[], Any]) -> Any:
        """Gradients are to be clipped: captures look at them before."""
        if self._is_active and self._trial.is_begun and self._thread.scaled[0] is None:
            self._conclude_early(self._trigger.kind != CONDITION)
        return original()

    def _conclude_early(self, may: bool) -> None:
        """Before the update, where the capture was made so early: as soon as what it was made for is seen."""
        if may and self._step().again(self._trigger) is not None:
            self._conclude()

    def step(self, original: Function, optimizer: Any, arguments: Any, keywords: Any) -> Any:
        """An optimizer is to update."""
        self._require_end()
        if not self._is_active:
            return original(optimizer, *arguments, **keywords)
        if self._thread.in_step:
            return None  # of an optimizer within another's step
        self._thread.stepped = True
        closure = keywords.get("closure", arguments[0] if arguments else None)
        if callable(closure) and not (own_step(type(optimizer)) and self._is_seen()):
            self._thread.in_step = True
            try:
                return self._step_by(original, optimizer, closure)
            finally:
                self._thread.in_step = False
        if self._trigger.kind == PARAMETER and self._trial.is_begun and self._built.is_held_back(optimizer):
            original(optimizer, *arguments, **keywords)
            self._look_at_parameters(optimizer)
        self._arrived(optimizer)
        return None

    def _look_at_parameters(self, optimizer: Any) -> None:
        """What the captured update, made again, has made of the parameters."""
        for name, parameter in self._built.parameters([optimizer]):
            found = judged(self._torch, PARAMETER, name, parameter)
            if found is not None:
                self._trial.not_finite.append(found)
                self._trial.updated.append(parameter)

    def _is_seen(self) -> bool:
        return self._trial.is_begun and self._step().again(self._trigger) is not None

    def part(self, original: Callable[[], Any], optimizer: Any, name: str) -> Any:
        """An optimizer is to make a part of a step: the first one, with gradients that are good, moves parameters."""
        self._require_end()
        trial = self._trial if self._is_active else None
        if trial is None or self._thread.in_step:
            return original()
        if trial.is_begun and trial.part in (None, name) and not self._is_seen():
            trial.part = name
            return original()
        if trial.is_begun:
            self._arrived(optimizer)
        return None

    def _step_by(self, original: Function, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """The optimizer itself calls what computes loss and gradients, once or more often; it may go on in between."""
        loss = None

        def evaluate() -> Any:
            nonlocal loss
            self._thread.in_closure = True
            try:
                with self._torch.enable_grad():
                    loss = closure()
            finally:
                self._thread.in_closure = False
            trial = self._trial
            if trial.is_begun and self._step().again(self._trigger) is not None:
                self._arrived(optimizer)
                raise _Enough
            return loss

        try:
            original(optimizer, evaluate)
        except _Enough:
            return loss
        self._arrived(optimizer)
        return loss

    def scaled_step(self, original: Function, optimizer: Any) -> Any:
        """A GradScaler is to call an optimizer, or to leave it where gradients overflowed."""
        self._thread.stepped = False
        result = original()
        if self._is_active and not self._thread.stepped:
            self._arrived(optimizer)
        return result

    def _arrived(self, optimizer: Any) -> None:
        """At the update."""
        trial = self._trial
        if not trial.is_begun:
            self._without += 1
            if not self._driver.trials and self._without >= MAX_WITHOUT:
                self._give_up(NO_FETCH if trial.fetched and not trial.handed else NO_FORWARD)
        elif self._built.is_held_back(optimizer) or self._step().again(self._trigger) is not None:
            self._conclude()
        else:
            trial.is_begun = False  # the snapshot's step began after this optimizer's update
            self._built.put_random(self._header.get("random_after_update"))
            self._passed += 1
            if self._passed >= MAX_PASSED:
                self._give_up("the optimizer whose step was captured makes none in this script")

    # Ends

    def _step(self) -> Step:
        return Step(self._torch, self._trial.losses, self._built.gradients(), self._trial.not_finite)

    def _conclude(self, ended: str | None = None) -> None:
        """The trial has come to its end."""
        if self._explaining is not None:
            self._explaining.end()
        step, trial, driver = self._step(), self._trial, self._driver
        outcome = step.outcome()
        self._without, self._failed_part = 0, None
        about = self._built.about()
        different = outcome.compared(self._header, about)["gradients"]["different"]
        is_same = outcome.again(self._trigger) is not None and not different
        if not (trial.fetched or driver.is_begun or is_same):
            driver.problem(NO_LOADER + (NOT_CUT if self._loops and driver.mode == MINIMISE else ""))
        if driver.mode == MINIMISE and not driver.is_begun:
            self._tell_of_ranks()
        left_out = [name for turn in self._turns for name in turn.left_out]
        if left_out and not is_same and driver.mode != MINIMISE:
            self._give_up(f"the step is another one without what was not kept of its batch: {left_out[0]}")
        driver.came(trial.samples, self._of, outcome, about, ended, lambda: self._cause(step))
        if ended is None and self._is_ahead:
            driver.go_on_in_another_process()  # what it works on next is of this trial
        elif ended is None:
            self._next_trial()

    def _failed(self, why: str) -> None:
        """A part of the batch with which the script cannot make the step; a script that passes errors by goes on."""
        if self._driver.mode == MINIMISE:
            self._failed_part, self._without = self._trial.samples, 0
            self._driver.failed(self._trial.samples, self._of, why)
            self._next_trial()

    def _tell_of_ranks(self) -> None:
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            if distributed.get_world_size() > 1:
                self._driver.problem(
                    "the other ranks kept their batches whole: what begins in one of them needs no sample"
                )

    def _explain(self) -> None:
        """Watch operators from here on, and know what there is by name."""
        from .torch_explain import Explaining, NotSupportedError

        if self._explaining is None:
            try:
                self._explaining = Explaining(self._torch)
            except NotSupportedError as error:
                return self._driver.problem(str(error))
            self._explaining.begin()
        self._explaining.know(self._built.layers(), [*self._built.known(), *self._trial.given])
        return None

    def _cause(self, step: Step) -> dict[str, Any]:
        if self._explaining is None:
            return {}
        targets = self._trial.updated or step.bad_losses or [step.gradients[name] for name in step.bad]
        found = self._explaining.cause(targets, self._of)
        rows = [] if found is None else found["samples"]
        if isinstance(rows, list) and rows and len(self._indices) == self._of:
            assert found is not None
            found["indices"] = [self._indices[row] for row in rows]
        return found or {"words": "no operator turned finite values into others", "phase": None, "operation": None}

    def _give_up(self, trouble: str) -> NoReturn:
        self._driver.trouble(trouble)

    def _ended(self) -> None:
        """The script has ended by itself: within a trial, before the first, or between two."""
        if not self._is_active:
            return
        trial, driver, why = self._trial, self._driver, _exception()
        if trial.is_begun and (trial.losses or driver.mode == EXPLAIN):
            driver.problem(f"the script ended before its update{why}")
            self._conclude(f"the script ended{why}")
        elif trial.is_begun:
            driver.problem(f"the script ended before its backward pass{why}")
            if driver.mode == MINIMISE:
                driver.failed(trial.samples, self._of, f"the script ended{why}")
            else:
                driver.write({"reproduced": False, "problems": driver.problems})
        elif trial.handed and why and driver.mode == MINIMISE and len(trial.samples) < self._of:
            self._failed_part = trial.samples  # before it called its model
            driver.failed(trial.samples, self._of, f"the script ended{why}")
        if self._is_active and driver.trials and driver.mode == MINIMISE:
            part = self._failed_part
            if why and part is not None and 1 < len(part) < self._of:
                driver.fill(part)  # it has ended by what a smaller batch raises
            driver.write({"again": True})


class _Enough(Exception):
    """An optimizer need not go on."""


def _exception() -> str:
    value = getattr(sys, "last_value", None)
    return "" if value is None else f": {type(value).__name__}: {str(value)[:200]}"


def _are_alike(one: Any, other: Any) -> bool:
    """Whether a variable of the script's holds what it held when the snapshot was made, and no result of the step."""
    ours, theirs = ([(type(part), part.dtype) for part in parts(value)] for value in (one, other))
    is_result = any(getattr(part, "requires_grad", False) for part in parts(one))
    return type(one) is type(other) and ours == theirs and not is_result


def _put_into(value: Any, like: Any) -> Any:
    """The value, in the script's own tensor where gradients flow through that to what the script computed it from."""
    if like.requires_grad and (like.shape, like.dtype) == (value.shape, value.dtype):
        try:
            like.data.copy_(value)
        except RuntimeError:  # it is expanded: several of its elements are one
            return value
        return like
    return value


def _moved(torch: Any, value: Any, like: Any) -> Any:
    """The snapshot's tensors on the devices where the script's own are."""
    if isinstance(value, torch.Tensor):
        if not isinstance(like, torch.Tensor):
            return value
        return _put_into(value.to(like.device), like)
    if type(value) in (list, tuple) and isinstance(like, (list, tuple)):
        likes = [*like, *[None] * (len(value) - len(like))]
        return type(value)([_moved(torch, item, other) for item, other in zip(value, likes)])  # noqa: B905
    if type(value) is dict and isinstance(like, dict):
        return {key: _moved(torch, value[key], like.get(key)) for key in value}
    return value
