"""The trials of a captured step of PyTorch: each begins with the snapshot's state and ends at the update."""

from __future__ import annotations

import enum
import sys
from _thread import _local

from ..pytorch.tensors import is_finite, numbers
from . import checks
from .header import ACTIVATION, GRADIENT, LOSS, Trigger
from .redo import EXPLAIN, MINIMIZE, RedoDriver, StepOutcome
from .settings import LOSS_ABOVE
from .store import SnapshotError, SnapshotFile
from .torch_batches import LoopIteration, SavedBatch, empties_loader, loop_iterations, samples_by_iteration
from .torch_checks import FiniteTests
from .torch_ranks import are_several
from .torch_state import digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .torch_explain import Explaining
    from .torch_fit import ScriptObjects

MAX_WITHOUT = 1000  # turns of the script's loop in a row that come to nothing
MAX_PASSED = 10_000
NO_FETCH = "the script's step took no batch from a DataLoader, from which the snapshot's came"
NO_LOADER = (
    "no DataLoader gave the batch: what the script computed with besides its model's arguments and its functions' "
    "variables is its own"
)
NOT_CUT = "; what loops choose by their variables cannot be made smaller, and is its own, too"
NOT_CUT_BATCH = "which rows of the batch's tensors belong to which of its samples is not known: it is one sample here"
NO_FORWARD = "the script's step called no module with gradients enabled; the snapshot's began with such a call"
SORTED = "indices in the data set are told as if the script's collate_fn kept the order of samples"
OTHER_RANKS = "the other ranks kept their batches whole: what begins in one of them needs no sample"


class CapturedStep:
    """What the snapshot has of the step; raises SnapshotError where it cannot be done again."""

    def __init__(self, file: SnapshotFile, built: ScriptObjects) -> None:
        self.header = file.facts
        self.trigger = trigger = self.header.trigger
        if self.header.sharded:
            raise SnapshotError("the snapshot holds one rank's shards of a model (FSDP): such a step is not done again")
        self.iterations = loop_iterations([SavedBatch(entry, built.reader) for entry in self.header.batches])
        self.loops = self.header.loops
        self.of = sum(turn.samples for turn in self.iterations)
        self.indices = [index for turn in self.iterations for index in turn.indices]
        self.places: list[range] = []  # of the samples of each turn in the step
        for turn in self.iterations:
            start = self.places[-1].stop if self.places else 0
            self.places.append(range(start, start + (len(turn.indices) or turn.samples)))
        self.may_be_sorted = any(turn.fetched is not None and turn.fetched.may_be_sorted for turn in self.iterations)
        for turn in self.iterations:
            if turn.fetched is not None and turn.fetched.is_empty:
                classes = ", ".join(turn.fetched.left_out)
                raise SnapshotError(f"nothing of the batch was kept, but for its class: {classes}")
        if trigger.updates is not None:
            raise SnapshotError("the snapshot is of a state some updates before the one that did it, and has no batch")

    @property
    def is_about_loss(self) -> bool:
        """Whether what was captured is known before the gradients are."""
        return self.trigger.condition == LOSS_ABOVE or self.trigger.kind in (LOSS, ACTIVATION)

    @property
    def left_out(self) -> list[str]:
        """Classes of what was not kept of the batch."""
        return [name for turn in self.iterations for name in turn.left_out]


class TrialState(enum.Enum):
    """How far a trial has come."""

    WAITING = 0  # for a batch, or a module's call
    UNUSED = 1  # what was handed over was only used without gradients: by an evaluation
    BEGUN = 2  # the script works on it with the snapshot's state
    CALLED = 3  # and has called a module


WAITING, UNUSED, BEGUN, CALLED = TrialState


class TrialInputs:
    """What a trial gives to the script, and how much of it was given."""

    def __init__(self, parts: list[tuple[LoopIteration, list[int]]]) -> None:
        self.fetched = [(turn.fetched, own) for turn, own in parts if turn.fetched is not None]
        self.called = [(batch, own) for turn, own in parts for batch in turn.called]
        self.targets = [(batch, own) for turn, own in parts for batch in turn.targets]
        self.variables = [(batch, own) for turn, own in parts for batch in turn.variables]
        self.judged = 0  # losses whose target was replaced
        self.handed = 0  # batches that the loop was given
        self.calls = 0  # of modules, whose arguments were replaced
        self.root: Any = None  # the module that was called first, since the last backward pass
        self.tensors: list[tuple[str, Any]] = []  # of batches, for who asks where values came from


class Trial:
    """One attempt of the step, from the batch that the loop is given to the update that it does not make."""

    def __init__(self, samples: list[int], parts: list[tuple[LoopIteration, list[int]]]) -> None:
        self.samples = samples
        self.inputs = TrialInputs(parts)
        self.state = WAITING
        self.evaluated: Any = None  # whose batches seem to be for an evaluation that leaves gradients on
        self.is_put = False  # the state was, when the batch was handed over
        self.has_passed = False  # another optimizer's update, which was left out
        self.part: str | None = None  # of the optimizer's step, which was made
        self.passes = 0  # backward
        self.places = 0  # where what was captured may have been seen, other than at its update
        self.losses: list[Any] = []
        self.not_finite: list[Trigger] = []  # modules' outputs, and parameters that the update has made so
        self.updated: list[Any] = []  # those parameters themselves

    @property
    def is_begun(self) -> bool:
        """Whether the script works with the snapshot's state."""
        return self.state in (BEGUN, CALLED)

    @property
    def is_used_up(self) -> bool:
        """Whether all that the loop was given went into gradients."""
        return self.passes >= len(self.inputs.fetched)


class RedoThread(_local):
    """Where one thread is."""

    def __init__(self) -> None:
        self.in_closure = False
        self.in_step = False  # which calls its closure
        self.scaled: tuple[Any, Any] = (None, None)  # a loss that a scaler multiplied, and what it was

    def unscaled(self, loss: Any) -> tuple[Any, Any]:
        """Return what a backward pass is begun of, and what it was before a GradScaler multiplied it."""
        scaled, before = self.scaled
        return loss.detach(), (before if scaled is loss else loss).detach()


class StepTrials:
    """The trials of this process."""

    def __init__(self, torch: Any, driver: RedoDriver, built: ScriptObjects, captured: CapturedStep) -> None:
        self.torch = torch
        self.driver = driver
        self.built = built
        self.captured = captured
        self._tests = FiniteTests(torch)
        self.is_ahead = False  # the script was given batches before it used those before them
        self.is_attached = True
        self._without = 0  # turns of the loop since a trial ended
        self._passed = 0  # updates of other optimizers
        self._failed_part: list[int] | None = None  # with which the script cannot make the step
        self.trial: Trial
        self._explaining: Explaining | None
        self._next()

    @property
    def is_active(self) -> bool:
        """Whether the script's step is watched."""
        return self.is_attached and not self.driver.is_done

    def _next(self) -> None:
        captured, driver = self.captured, self.driver
        if any(turn.is_whole for turn in captured.iterations) and driver.mode == MINIMIZE:
            driver.problem(NOT_CUT_BATCH)
        if captured.may_be_sorted and driver.mode == MINIMIZE:
            driver.problem(SORTED)
        samples = driver.next_samples(
            captured.of, captured.indices, lambda part: empties_loader(captured.iterations, part)
        )
        self.trial = Trial(list(samples), samples_by_iteration(captured.iterations, samples))
        self._explaining = None

    def restore_if_built(self) -> None:
        """Put the state in where the batch is handed over, unless the script has its models to make yet."""
        try:
            self.built.restore()
            self.trial.is_put = True
        except SnapshotError:
            self.trial.is_put = False

    def begin(self) -> None:
        """Put the snapshot's state into what the script built."""
        trial = self.trial
        if not trial.is_put:
            if self._explaining is not None:
                self._explaining.end()  # what is put in is no operator's result
            self.driver.attempt(self.built.restore)
        trial.is_put = False
        if self.driver.trials:
            for parameter in self.built.parameters(self.built.optimizers).values():
                parameter.grad = None  # of an earlier trial
        self.driver.begin_trial(trial.samples)
        trial.state, trial.part = BEGUN, None
        trial.inputs.calls = trial.inputs.judged = trial.passes = 0
        trial.losses.clear()
        if self.driver.mode == EXPLAIN:
            self.explain()
        self.restore_random()

    def restore_random(self) -> None:
        """Put generators to the step's begin; what comes before it in a turn goes on from where its batch was given."""
        if self.trial.has_passed or not self.captured.header.random_after_update:
            self.built.restore_random()

    def unused(self) -> None:
        """What was handed over was used by an evaluation that left gradients on, or an error was passed by."""
        self.trial.state = UNUSED
        self._without += 1
        if self._without >= MAX_WITHOUT:
            self.failed("no backward pass came")

    def judge(self, kind: str, name: str, tensor: Any) -> bool:
        """Note where a module's output, or a parameter behind its update, is not finite; whether it is so."""
        found = checks.elements(kind, name, *self._tests.count(tensor))
        self.trial.not_finite += [] if found is None else [found]
        return found is not None

    def outcome(self, *, has_digests: bool = False) -> StepOutcome:
        """Return what was seen so far."""
        trial = self.trial
        return executed(self.torch, trial.losses, self.built.gradients(), trial.not_finite, has_digests=has_digests)

    def is_seen(self) -> bool:
        """Return whether what was captured is there again."""
        return self.trial.is_begun and self.outcome().reproduced_trigger(self.captured.trigger) is not None

    def concludes_early(self) -> bool:
        """Conclude where what was captured is seen before its update, unless it is another model's loss.

        Of the whole batch gradients and loss tell whether it is the captured place; its parts end there, too.
        """
        self.trial.places += 1
        place = self.trial.places
        if not self.is_seen() or self.driver.whole_place not in (None, place):
            return False
        if self.driver.whole_place is None and not self._is_same(self.outcome(has_digests=True)):
            return False
        self.conclude(place=place)
        return True

    def _is_same(self, outcome: StepOutcome) -> bool:
        return outcome.is_same(self.captured.header, self.built.captured_parameters())

    def arrived(self, optimizer: Any) -> None:
        """Take it that the script is at an update."""
        trial = self.trial
        if not trial.is_begun:
            self._without += 1
            if not self.driver.trials and self._without >= MAX_WITHOUT:
                self.driver.give_up(self._why_not_begun())
        elif self.built.is_captured_optimizer(optimizer):
            self.conclude()
        elif not self.concludes_early():
            trial.state, trial.has_passed = WAITING, True  # the snapshot's step began after this optimizer's update
            self.built.restore_random(self.captured.header.random_after_update)
            self._passed += 1
            if self._passed >= MAX_PASSED:
                self.driver.give_up(f"of {MAX_PASSED} updates none was seen to be the captured one")

    def _why_not_begun(self) -> str:
        inputs = self.trial.inputs
        return NO_FETCH if inputs.fetched and not inputs.handed else NO_FORWARD

    def conclude(self, ended: str | None = None, place: int = 0) -> None:
        """The trial has come to its end."""
        if self._explaining is not None:
            self._explaining.end()
        trial, driver, outcome = self.trial, self.driver, self.outcome(has_digests=True)
        self._without, self._failed_part = 0, None
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
            self.captured.of,
            outcome,
            self.built.captured_parameters(),
            ended,
            lambda: self._cause(outcome),
        )
        if ended is None and self.is_ahead:
            driver.finish({"again": True})  # what it works on next is of this trial
        elif ended is None:
            self._next()

    def failed(self, why: str) -> None:
        """Take a part of the batch with which the script cannot make the step; it may pass errors by and go on."""
        if self.driver.mode == MINIMIZE:
            self._without = 0
            self._note_failed(why)
            self._next()

    def _note_failed(self, why: str) -> None:
        if self.driver.mode == MINIMIZE:
            self._failed_part = self.trial.samples
            self.driver.record_trial(self.trial.samples, self.captured.of, why)

    def explain(self) -> None:
        """Watch operators from here on, and know what there is by name."""
        from .torch_explain import Explaining, NotSupportedError

        if self._explaining is None:
            try:
                self._explaining = Explaining(self.torch)
            except NotSupportedError as error:
                return self.driver.problem(str(error))
        self._explaining.begin()
        handed = self.trial.inputs.handed
        if 0 < handed == self.trial.passes + 1:  # what was handed over before is used up
            self._explaining.work_on(self.captured.places[handed - 1])
        else:
            self._explaining.work_on(None)
        self._explaining.know(self.built.names(), self.trial.inputs.tensors)
        return None

    def _cause(self, outcome: StepOutcome) -> dict[str, Any]:
        if self._explaining is None:
            return {}
        bad, gradients = outcome.bad_gradients, self.built.gradients()
        losses = [loss for _, loss in self.trial.losses if not is_finite(loss)]
        targets = self.trial.updated or losses or [gradients[name] for name in gradients if name in bad]
        captured = self.captured
        indices = captured.indices if len(captured.indices) == captured.places[-1].stop else []
        found = self._explaining.cause(targets, captured.of, indices)
        if "indices" in found and captured.may_be_sorted:
            self.driver.problem(SORTED)
        return found

    def ended(self) -> None:
        """The script has ended by itself: within a trial, before the first, or between two."""
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
        elif trial.inputs.handed and why and len(trial.samples) < self.captured.of:  # before it called its model
            self._note_failed(f"the script ended{why}")
        elif self._without and not (driver.trials or why):
            driver.write({"trouble": self._why_not_begun(), "reproduced": False})
        if self.is_active and driver.trials and driver.mode == MINIMIZE:
            part = self._failed_part
            if why and part is not None and 1 < len(part) < self.captured.of:
                driver.retry_with_repeats(part)  # it has ended by what a smaller batch raises
            driver.write({"again": True})


def _exception() -> str:
    value = getattr(sys, "last_value", None)
    return "" if value is None else f": {type(value).__name__}: {str(value)[:200]}"


def executed(
    torch: Any,
    losses: Sequence[tuple[Any, Any]],
    gradients: Mapping[str, Any],
    others: Sequence[Trigger] = (),
    *,
    has_digests: bool = False,
) -> StepOutcome:
    """Return what a step came to: losses as backward() was given them and before any scaling, and what else was bad."""
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
