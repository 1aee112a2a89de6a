"""The trials of a captured PyTorch step: each begins with the snapshot's state and ends at the update."""

from __future__ import annotations

import enum
import sys
from _thread import _local

from ..pytorch.tensors import is_finite, numbers
from . import checks
from .header import ACTIVATION, GRADIENT, LOSS, Trigger
from .redo import EXPLAIN, MINIMIZE, SORTED, RedoDriver, StepOutcome
from .settings import LOSS_ABOVE
from .store import SnapshotError, SnapshotFile
from .torch_batches import LoopIteration, SavedBatch, empties_loader, loop_iterations, samples_by_iteration
from .torch_finite import FiniteTests
from .torch_ranks import are_several
from .torch_state import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ..operators.pytorch.explain import OperatorExplainer
    from .torch_fit import ScriptObjects

MAX_IDLE = 1000  # iterations of the script's loop in a row without a trial
MAX_SKIPPED = 10_000  # updates of other optimizers
NO_FETCH = "the script's step took no batch from a DataLoader, from which the snapshot's came"
NO_LOADER = (
    "no DataLoader gave the batch: what the script computed with besides its model's arguments and its functions' "
    "variables is its own"
)
NOT_CUT = "; what loops choose by their variables cannot be made smaller, and is its own, too"
NOT_CUT_BATCH = "which rows of the batch's tensors belong to which of its samples is not known: it is one sample here"
NO_FORWARD = "the script's step called no module with gradients enabled; the snapshot's began with such a call"
OTHER_RANKS = "the other ranks kept their batches whole: what begins in one of them needs no sample"


class CapturedStep:
    """The captured step as the snapshot has it; raises SnapshotError if it cannot be executed again."""

    def __init__(self, file: SnapshotFile, script_objects: ScriptObjects) -> None:
        self.header = file.facts
        self.trigger = trigger = self.header.trigger
        if self.header.sharded:
            raise SnapshotError("the snapshot holds one rank's shards of a model (FSDP): such a step is not done again")
        self.iterations = loop_iterations([SavedBatch(entry, script_objects.reader) for entry in self.header.batches])
        self.loops = self.header.loops
        self.sample_count = sum(each.samples for each in self.iterations)
        self.indices = [index for each in self.iterations for index in each.indices]
        self.sample_ranges: list[range] = []  # the step's samples in each iteration of the loop
        for each in self.iterations:
            start = self.sample_ranges[-1].stop if self.sample_ranges else 0
            self.sample_ranges.append(range(start, start + (len(each.indices) or each.samples)))
        self.may_be_sorted = any(each.fetched is not None and each.fetched.may_be_sorted for each in self.iterations)
        for each in self.iterations:
            if each.fetched is not None and each.fetched.is_empty:
                classes = ", ".join(each.fetched.left_out)
                raise SnapshotError(f"nothing of the batch was kept, but for its class: {classes}")
        if trigger.updates is not None:
            raise SnapshotError("the snapshot is of a state some updates before the one that did it, and has no batch")

    @property
    def is_about_loss(self) -> bool:
        """Whether the trigger is a loss or an output, known before the gradients are."""
        return self.trigger.condition == LOSS_ABOVE or self.trigger.kind in (LOSS, ACTIVATION)

    @property
    def left_out(self) -> list[str]:
        """Classes of the batch's values that were not saved."""
        return [name for iteration in self.iterations for name in iteration.left_out]


class TrialState(enum.Enum):
    """The progress of a trial."""

    WAITING = 0  # for a batch, or for a module's call
    UNUSED = 1  # the batch was used only without gradients, by an evaluation
    BEGUN = 2  # the script works on the batch with the snapshot's state
    CALLED = 3  # and it has called a module


WAITING, UNUSED, BEGUN, CALLED = TrialState


class TrialInputs:
    """The inputs that a trial gives to the script, and counts of those given so far."""

    def __init__(self, parts: list[tuple[LoopIteration, list[int]]]) -> None:
        self.fetched = [(iteration.fetched, samples) for iteration, samples in parts if iteration.fetched is not None]
        self.called = [(batch, samples) for iteration, samples in parts for batch in iteration.called]
        self.targets = [(batch, samples) for iteration, samples in parts for batch in iteration.targets]
        self.variables = [(batch, samples) for iteration, samples in parts for batch in iteration.variables]
        self.target_count = 0  # losses whose target was replaced
        self.fetched_count = 0  # batches given to the loop
        self.given_by: dict[int, int] = {}  # by iterator: the same, with those that were unused or fetched ahead
        self.calls = 0  # of modules, whose arguments were replaced
        self.root: Any = None  # the first module called since the last backward pass
        self.tensors: list[tuple[str, Any]] = []  # named tensors of the batches, for explanations


class Trial:
    """One trial of the step, from the batch given to the loop to the update, which is skipped."""

    def __init__(self, samples: list[int], parts: list[tuple[LoopIteration, list[int]]]) -> None:
        self.samples = samples
        self.inputs = TrialInputs(parts)
        self.state = WAITING
        self.evaluation_iterator: Any = None  # a loader's, used by an evaluation with gradients enabled
        self.is_restored = False  # the state was restored when the batch was fetched
        self.has_skipped_other = False  # another optimizer's update
        self.part: str | None = None  # name of the part of the optimizer's step that was executed
        self.backward_count = 0  # of backward passes
        self.early_checks = 0  # moments before the update at which the trigger was looked for
        self.losses: list[Any] = []
        self.not_finite: list[Trigger] = []  # modules' outputs, and parameters after the update
        self.updated: list[Any] = []  # the parameters that are not finite after the update

    @property
    def is_begun(self) -> bool:
        """Whether the script works with the snapshot's state."""
        return self.state in (BEGUN, CALLED)

    @property
    def is_used_up(self) -> bool:
        """Whether there was a backward pass for each batch given to the loop."""
        return self.backward_count >= len(self.inputs.fetched)


class RedoThread(_local):
    """What a thread is executing: a closure, an optimizer's step, a scaled loss (a thread-local)."""

    def __init__(self) -> None:
        self.in_closure = False
        self.in_step = False  # an optimizer is calling its closure
        self.scaled: tuple[Any, Any] = (None, None)  # a loss scaled by a GradScaler, and the loss before

    def unscaled(self, loss: Any) -> tuple[Any, Any]:
        """Return the loss of a backward pass, and the loss before a GradScaler scaled it."""
        scaled, before = self.scaled
        return loss.detach(), (before if scaled is loss else loss).detach()


class StepTrials:
    """Runs the trials of this process: restores, observes and concludes each one."""

    def __init__(self, torch: Any, driver: RedoDriver, script_objects: ScriptObjects, captured: CapturedStep) -> None:
        self.torch = torch
        self.driver = driver
        self.script_objects = script_objects
        self.captured = captured
        self._tests = FiniteTests(torch)
        self.is_ahead = False  # the script fetches batches before it uses the ones before them
        self.is_attached = True
        self._idle_iterations = 0  # iterations of the loop since a trial ended
        self._skipped_updates = 0  # updates of other optimizers
        self._failed_part: list[int] | None = None  # samples with which the script failed
        self.trial: Trial
        self._explainer: OperatorExplainer | None
        self._next_trial()

    @property
    def is_active(self) -> bool:
        """Whether the script's steps are being watched."""
        return self.is_attached and not self.driver.is_done

    def _next_trial(self) -> None:
        captured, driver = self.captured, self.driver
        if any(iteration.is_whole for iteration in captured.iterations) and driver.mode == MINIMIZE:
            driver.problem(NOT_CUT_BATCH)
        if captured.may_be_sorted and driver.mode == MINIMIZE:
            driver.problem(SORTED)
        samples = driver.next_samples(
            captured.sample_count, captured.indices, lambda part: empties_loader(captured.iterations, part)
        )
        self.trial = Trial(list(samples), samples_by_iteration(captured.iterations, samples))
        self._explainer = None

    def restore_if_built(self) -> None:
        """Restore the state when the batch is fetched, unless the script has not built its models yet."""
        try:
            self.script_objects.restore()
            self.trial.is_restored = True
        except SnapshotError:
            self.trial.is_restored = False

    def begin(self) -> None:
        """Begin the trial: restore the snapshot's state into the script's objects."""
        trial = self.trial
        if not trial.is_restored:
            if self._explainer is not None:
                self._explainer.end()  # restoring is no operator of the step
            self.driver.attempt(self.script_objects.restore)
        trial.is_restored = False
        if self.driver.trials:
            for parameter in self.script_objects.parameters(self.script_objects.optimizers).values():
                parameter.grad = None  # of an earlier trial
        self.driver.begin_trial(trial.samples)
        trial.state, trial.part = BEGUN, None
        trial.inputs.calls = trial.inputs.target_count = trial.backward_count = 0
        trial.losses.clear()
        if self.driver.mode == EXPLAIN:
            self.explain()
        self.restore_random()

    def restore_random(self) -> None:
        """Restore the random states of the step's start, unless another optimizer's update comes before it."""
        if self.trial.has_skipped_other or not self.captured.header.random_after_update:
            self.script_objects.restore_random()

    def note_unused(self) -> None:
        """Count a batch used only by an evaluation with gradients enabled, or by code whose error was ignored."""
        self.trial.state = UNUSED
        self._idle_iterations += 1
        if self._idle_iterations >= MAX_IDLE:
            self.failed("no backward pass came")

    def note_not_finite(self, kind: str, name: str, tensor: Any) -> bool:
        """Record a module's output, or a parameter after the update, that is not finite; return whether it is."""
        trigger = checks.elements(kind, name, *self._tests.count(tensor))
        self.trial.not_finite += [] if trigger is None else [trigger]
        return trigger is not None

    def outcome(self, *, has_digests: bool = False) -> StepOutcome:
        """Return the outcome of the trial so far."""
        trial = self.trial
        return step_outcome(
            self.torch, trial.losses, self.script_objects.gradients(), trial.not_finite, has_digests=has_digests
        )

    def is_reproduced(self) -> bool:
        """Return whether the captured trigger was seen again."""
        return self.trial.is_begun and self.outcome().reproduced_trigger(self.captured.trigger) is not None

    def conclude_early(self) -> bool:
        """Conclude the trial if the trigger is seen before the update, unless it is another model's loss.

        Gradients and loss of the whole batch decide whether it is the captured moment; parts of it then end there, too.
        """
        self.trial.early_checks += 1
        check_number = self.trial.early_checks
        if not self.is_reproduced() or self.driver.whole_place not in (None, check_number):
            return False
        if self.driver.whole_place is None and not self._is_same(self.outcome(has_digests=True)):
            return False
        self.conclude(place=check_number)
        return True

    def _is_same(self, outcome: StepOutcome) -> bool:
        return outcome.is_same(self.captured.header, self.script_objects.captured_parameters())

    def reach_update(self, optimizer: Any) -> None:
        """Handle the script's arrival at an update: conclude the trial, or skip another optimizer's update."""
        trial = self.trial
        if not trial.is_begun:
            self._idle_iterations += 1
            if not self.driver.trials and self._idle_iterations >= MAX_IDLE:
                self.driver.give_up(self._why_not_begun())
        elif self.script_objects.is_captured_optimizer(optimizer):
            self.conclude()
        elif not self.conclude_early():
            trial.state, trial.has_skipped_other = WAITING, True  # the captured step began after this update
            self.script_objects.restore_random(self.captured.header.random_after_update)
            self._skipped_updates += 1
            if self._skipped_updates >= MAX_SKIPPED:
                self.driver.give_up(f"of {MAX_SKIPPED} updates none was seen to be the captured one")

    def _why_not_begun(self) -> str:
        inputs = self.trial.inputs
        return NO_FETCH if inputs.fetched and not inputs.fetched_count else NO_FORWARD

    def conclude(self, ended: str | None = None, place: int = 0) -> None:
        """Conclude the trial with its outcome, and begin the next."""
        if self._explainer is not None:
            self._explainer.end()
        trial, driver, outcome = self.trial, self.driver, self.outcome(has_digests=True)
        self._idle_iterations, self._failed_part = 0, None
        is_same = self._is_same(outcome)
        if driver.whole_place is None:
            driver.whole_place = place
        if not (trial.inputs.fetched or driver.is_whole_known or is_same):
            driver.problem(NO_LOADER + (NOT_CUT if self.captured.loops and driver.mode == MINIMIZE else ""))
        if driver.mode == MINIMIZE and not driver.is_whole_known and are_several(self.torch):
            driver.problem(OTHER_RANKS)
        left_out = self.captured.left_out
        if left_out and not is_same and not driver.is_whole_known:
            driver.give_up(f"the step is another one without what was not kept of its batch: {left_out[0]}")
        driver.conclude_trial(
            trial.samples,
            self.captured.sample_count,
            outcome,
            self.script_objects.captured_parameters(),
            ended,
            lambda: self._cause(outcome),
        )
        if ended is None and (self.is_ahead or max(trial.inputs.given_by.values(), default=0) > trial.backward_count):
            driver.finish({"again": True})  # the next batches are still this trial's
        elif ended is None:
            self._next_trial()

    def failed(self, why: str) -> None:
        """Record samples with which the script failed; it may handle the error and continue."""
        if self.driver.mode == MINIMIZE:
            self._idle_iterations = 0
            self._note_failed(why)
            self._next_trial()

    def _note_failed(self, why: str) -> None:
        if self.driver.mode == MINIMIZE:
            self._failed_part = self.trial.samples
            self.driver.record_trial(self.trial.samples, self.captured.sample_count, why)

    def explain(self) -> None:
        """Watch operators from here on, with the names of parameters and batches."""
        from ..operators.pytorch.explain import NotSupportedError, OperatorExplainer

        if self._explainer is None:
            try:
                self._explainer = OperatorExplainer(self.torch)
            except NotSupportedError as error:
                return self.driver.problem(str(error))
        self._explainer.begin()
        fetched_count = self.trial.inputs.fetched_count
        if 0 < fetched_count == self.trial.backward_count + 1:  # earlier batches are used up
            self._explainer.begin_samples(self.captured.sample_ranges[fetched_count - 1])
        else:
            self._explainer.begin_samples(None)
        self._explainer.set_names(self.script_objects.names(), self.trial.inputs.tensors)
        return None

    def _cause(self, outcome: StepOutcome) -> dict[str, Any]:
        if self._explainer is None:
            return {}
        bad_names, gradients = outcome.bad_gradients, self.script_objects.gradients()
        losses = [loss for _, loss in self.trial.losses if not is_finite(loss)]
        targets = self.trial.updated or losses or [gradients[name] for name in gradients if name in bad_names]
        captured = self.captured
        indices = captured.indices if len(captured.indices) == captured.sample_ranges[-1].stop else []
        cause = self._explainer.cause(targets, captured.sample_count, indices)
        for problem in self._explainer.problems():
            self.driver.problem(problem)
        if "indices" in cause and captured.may_be_sorted:
            self.driver.problem(SORTED)
        return cause

    def ended(self) -> None:
        """Handle the end of the script: within a trial, before the first, or between two."""
        if not self.is_active:
            return
        trial, driver, why = self.trial, self.driver, _exception()
        if trial.is_begun and (trial.losses or driver.mode == EXPLAIN):
            driver.problem(f"the script ended before its update{why}")
            self.conclude(f"the script ended{why}")
        elif trial.is_begun:
            driver.problem(f"the script ended before its backward pass{why}")
            self._note_failed(f"the script ended{why}")
            if driver.mode != MINIMIZE:
                driver.write({"reproduced": False, "problems": driver.problems})
        elif trial.inputs.fetched_count and why and len(trial.samples) < self.captured.sample_count:  # before any call
            self._note_failed(f"the script ended{why}")
        elif self._idle_iterations and not (driver.trials or why):
            driver.write({"trouble": self._why_not_begun(), "reproduced": False})
        if self.is_active and driver.trials and driver.mode == MINIMIZE:
            part = self._failed_part
            if why and part is not None and 1 < len(part) < self.captured.sample_count:
                driver.retry_with_repeats(part)  # it has ended by what a smaller batch raises
            driver.write({"again": True})


def _exception() -> str:
    value = getattr(sys, "last_value", None)
    return "" if value is None else f": {type(value).__name__}: {str(value)[:200]}"


def step_outcome(
    torch: Any,
    losses: Sequence[tuple[Any, Any]],
    gradients: Mapping[str, Any],
    others: Sequence[Trigger] = (),
    *,
    has_digests: bool = False,
) -> StepOutcome:
    """Return a step's outcome, from pairs of losses (as given to backward(), and unscaled), gradients and triggers."""
    tests, values = FiniteTests(torch), [float(numbers(loss).cpu().double().sum()) for _, loss in losses]
    seen = [checks.elements(GRADIENT, name, *tests.count(gradient)) for name, gradient in gradients.items()]
    last = losses[-1][0] if losses else None
    return StepOutcome(
        [*seen, *map(checks.loss, values), *others],
        {name: digest(gradient) for name, gradient in gradients.items()} if has_digests else {},
        (None if last is None or last.numel() != 1 else float(last), digest(last) if losses and has_digests else ""),
        tests.norm(list(gradients.values())) if gradients else 0.0,
        next((value for value in values if value != value), max(values, default=None)),
    )
