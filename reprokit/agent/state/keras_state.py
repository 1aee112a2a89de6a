"""Reads and restores the state that steps of Keras' fit, of functions, or of eager loops start from.

It consists of the variables of model, metrics and optimizer, of random generators, and of the batches.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import sys
import weakref

from ..capture import trees
from ..capture.random_states import generator_entries
from ..capture.tensorflow_restore import iterator_over, restore_entries, value_of
from ..capture.tensorflow_state import TensorCollector, take_random
from ..core.state_entries import StateKind, put_back, values_of
from ..events.steps import BatchFetched, EpochEnded, FirstCallDue, ForwardBegan, UpdateDone, UpdateDue, tell
from ..tensorflow import private_api
from ..tensorflow.loops import step_of_loop
from ..tensorflow.state import OptimizerStep
from ..tensorflow.tensors import entry
from ..tensorflow.training_state import as_array, eager_entry, variable_entries, variables_of
from .answers import StateAnswers, generator_digests, shorten, text_digest
from .script_variables import VariableReader, VariableSetter
from .tensorflow_variables import TensorflowVariables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent
    from ..events.steps import Events, Handler, TrainingEvent

DATA, VARIABLES = StateKind.DATA.value, StateKind.VARIABLES.value
MAX_BYTES = 512 << 20  # of saved batches


class KerasState:
    """Reads and restores state when a step is due: of fit before its batch is read, of a loop when a tape begins."""

    def __init__(self, agent: Agent, answers: StateAnswers, events: Events) -> None:
        self._answers, self._events, self.failed = answers, events, answers.failed
        self._loop_step: OptimizerStep | None = None  # one object for all steps of an eager loop
        self._may_be_loop = True  # until something else trains
        self._is_step_due = False  # the loop's step has begun: it may use several tapes
        self._differentiating: weakref.WeakSet[Any] = weakref.WeakSet()  # functions in which a tape records
        self._has_tape = False  # whether one began to record in the function that is being built
        self._batches = FitBatches(answers)
        atexit.register(agent.attempt, self._batches.finish)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        return {
            BatchFetched: self._batches.fetched,
            FirstCallDue: self._first_call_due,
            ForwardBegan: self._forward_began,
            UpdateDue: self._update_due,
            UpdateDone: self._updated,
            EpochEnded: self._batches.epoch_ended,
        }

    def _first_call_due(self, event: FirstCallDue) -> None:
        """Build a function's graph, so that the variables it updates are known before its first call."""
        build = getattr(event.function, "get_concrete_function", None)
        if build is not None:
            self._has_tape = False
            self._answers.attempt("a function was not built", lambda: build(*event.arguments, **event.keywords))
            if self._has_tape:
                self._differentiating.add(event.function)

    def _forward_began(self, event: ForwardBegan) -> None:
        """Begin a step of a loop that updates eagerly, when a tape starts to record or a function with one is due."""
        if not private_api.executing_eagerly():
            self._has_tape = True
            return
        is_forward_only = event.is_compiled and event.module not in self._differentiating
        if self._is_step_due or not self._may_be_loop or is_forward_only:
            return
        self._loop_step = self._loop_step or self._answers.attempt("a loop was not understood", step_of_loop)
        self._may_be_loop = self._loop_step is not None
        if self._loop_step is not None:
            self._is_step_due = True
            self._loop_step.arguments = self._batches.last_arguments
            tell(self._events.update_due, UpdateDue(self._loop_step))

    def _update_due(self, event: UpdateDue) -> None:
        step, answers = event.optimizer, self._answers
        self._may_be_loop = self._may_be_loop and step.is_eager
        if step.optimizer is None or step.arguments is None:
            return
        snapshot = answers.snapshot_to_restore("state") if answers.is_first else None
        if snapshot is not None:
            self._restore(snapshot, step)
        parts = self._digests(step) if answers.is_logged else {}
        if answers.is_first and answers.saves_state:
            answers.attempt("the state was not kept", self._save, step)
        self._batches.due(step)
        if answers.is_logged:
            fetched = {"": self._batches.count} if step.is_eager else {}
            answers.log_parts({**parts, DATA: self._batches.digests()}, fetched=fetched)

    def _updated(self, event: UpdateDone) -> None:
        self._is_step_due = False
        if self._answers.window.updated(event.optimizer) and self._answers.window.is_over:
            self._batches.finish()

    def _digests(self, step: OptimizerStep) -> dict[str, dict[str, str]]:
        digests = {
            kind.value: {entry.name: _digest(entry.read()) for entry in variable_entries(kind, variables)}
            for kind, variables in variables_of(step).items()
        }
        digests.update(generator_digests([*generator_entries(), eager_entry()]))
        if self._answers.is_first and not self._answers.every:
            reader = self._variable_reader(step)
            digests[VARIABLES] = self._answers.attempt(VARIABLES, reader.texts, sys._getframe(), text_digest) or {}
        return digests

    def _variable_reader(self, step: OptimizerStep) -> VariableReader:
        access = TensorflowVariables(itertools.chain(*variables_of(step).values()))
        return VariableReader(access, [step.optimizer])

    def _save(self, step: OptimizerStep) -> None:
        collector = TensorCollector()
        variables = {
            kind.value: collector.tensors(
                f"{kind.value}.", [(entry.name, entry.read()) for entry in variable_entries(kind, variables)]
            )
            for kind, variables in variables_of(step).items()
        }
        random = take_random(collector, values_of([*generator_entries(), eager_entry()]), {}, [])
        differing, resumed = self._variable_reader(step).differing, self._answers.resumed
        rows = self._answers.attempt(VARIABLES, differing, sys._getframe(), text_digest, resumed) or []
        put = functools.partial(collector.value, VARIABLES)
        own = [[head, tail, trees.with_leaves(node, put)] for head, tail, node in rows]
        self._answers.save("state", {"variables": variables, "random": random, "script": own}, collector.parts)

    def _restore(self, snapshot: Any, step: OptimizerStep) -> None:
        """Restore the parts of the state that the question names."""
        parts, attempt = self._answers.parts, self._answers.attempt
        private_api.build(step.optimizer, getattr(step.model, "trainable_variables", step.model))
        for kind, variables in variables_of(step).items():
            if kind.value in parts:
                saved = snapshot.header["variables"][kind.value]
                attempt(kind.value, restore_entries, snapshot, saved, variable_entries(kind, variables), kind.value)
        chosen = [entry for entry in [*generator_entries(), eager_entry()] if entry.kind.value in parts]
        get = functools.partial(value_of, snapshot, has_arrays=True)
        attempt("generators", put_back, chosen, snapshot.header["random"], get)
        if VARIABLES in parts:
            access = TensorflowVariables(itertools.chain(*variables_of(step).values()), snapshot)
            setter = VariableSetter(access, self._answers.variables)
            attempt(VARIABLES, setter.restore, snapshot.header["script"], sys._getframe())


class FitBatches:
    """Saves the batches of a training's steps and the ends of its epochs, or replaces them by another run's."""

    def __init__(self, answers: StateAnswers) -> None:
        self._answers = answers
        self._collector = TensorCollector()
        self._nodes: list[Any] = []  # of the batches saved or restored; None: the end of an epoch
        self._snapshot: Any = None  # of the batches that replace this run's
        self._position = 0  # of the next node to be restored
        self._batch: Any = None  # of the step that is due, if known
        self._is_saved = False
        self.count = 0  # batches that the script itself fetched
        self.last_arguments: tuple[Any, ...] = ()  # the last fetched batch

    def fetched(self, event: BatchFetched) -> None:
        """Count a batch that the script fetched; replace it in an eager loop, from the loop's first step on."""
        self.count += 1
        if 0 < self._answers.fetched.get("", 0) <= self.count and DATA in self._answers.parts:
            self._open_snapshot()
            if self._position < len(self._nodes):
                event.batch = _with_tensors(event.batch, value_of(self._snapshot, self._nodes[self._position]))
                self._position += 1
        self.last_arguments = (event.batch,)

    def due(self, step: OptimizerStep) -> None:
        """Save what a step is called with, fit's batches or a function's arguments, and pass it on; or replace it."""
        answers, self._batch = self._answers, None
        is_of_fit = hasattr(step.model, "weights")
        iterator = step.arguments[0] if step.arguments and is_of_fit else None
        if is_of_fit and not isinstance(iterator, _tensorflow().data.Iterator):
            return
        if DATA in answers.parts and not step.is_eager:
            self._replace(step, iterator)
        elif self._is_saving or (answers.is_logged and not answers.every):
            if iterator is None:
                self._batch = _tensors_of(step.arguments)
            else:
                self._batch = list(itertools.islice(iterator, private_api.steps_at_once(step.model)))
            if not self._batch:  # the epoch ends here, or the batch is unknown
                return
            if iterator is not None:
                step.arguments = (iterator_over(self._batch, iterator.element_spec),)
            if self._is_saving:
                self._nodes.append(self._collector.value(f"batch.{len(self._nodes)}", self._batch))

    @property
    def _is_saving(self) -> bool:
        """Whether batches are being saved."""
        is_asked = self._answers.saves_state and self._answers.window.is_open and not self._is_saved
        return is_asked and sum(part.nbytes for part in self._collector.parts) < MAX_BYTES

    def digests(self) -> dict[str, str]:
        """Return the digests of the current batch, if it is known."""
        if self._batch is None:
            return {}
        leaves = _tensorflow().nest.flatten(self._batch, expand_composites=True)
        return {f"batch.{number}": _digest(leaf) for number, leaf in enumerate(leaves)}

    def epoch_ended(self, _event: EpochEnded) -> None:
        """Save the end of an epoch of fit, or skip the one in the snapshot."""
        if self._nodes and self._is_saving:
            self._nodes.append(None)
        elif self._snapshot is not None and self._is_at_epoch_end:
            self._position += 1

    @property
    def _is_at_epoch_end(self) -> bool:
        """Whether the snapshot's next entry is the end of an epoch."""
        return self._position < len(self._nodes) and self._nodes[self._position] is None

    def _open_snapshot(self) -> None:
        """Open the snapshot of batches that replace this run's own."""
        if self._snapshot is None:
            self._snapshot = self._answers.snapshot_to_restore(DATA)
            self._nodes = self._snapshot.header["batches"]

    def _replace(self, step: OptimizerStep, iterator: Any) -> None:
        self._open_snapshot()
        if self._position >= len(self._nodes):
            return
        if self._is_at_epoch_end:
            step.arguments = None
            return
        self._batch = value_of(self._snapshot, self._nodes[self._position])
        if iterator is None:
            step.arguments = _with_tensors(step.arguments, self._batch)
        else:
            step.arguments = (iterator_over(self._batch, iterator.element_spec),)
        self._position += 1

    def finish(self) -> None:
        """Write the saved batches to a snapshot."""
        if self._nodes and self._snapshot is None and not self._is_saved:
            self._is_saved = True
            self._answers.save(DATA, {"batches": self._nodes}, self._collector.parts)


def _tensors_of(arguments: Any) -> list[Any]:
    """Return the tensors and arrays among a function's arguments."""
    return [leaf for leaf in _tensorflow().nest.flatten(arguments) if _is_tensor(leaf)]


def _with_tensors(arguments: Any, tensors: list[Any]) -> Any:
    """Return a function's arguments with these tensors; unchanged if the number of tensors differs."""
    nest, rest = _tensorflow().nest, iter(tensors)
    if len(_tensors_of(arguments)) != len(tensors):
        return arguments
    return nest.pack_sequence_as(
        arguments, [next(rest) if _is_tensor(leaf) else leaf for leaf in nest.flatten(arguments)]
    )


def _is_tensor(value: Any) -> bool:
    return private_api.has_value(value) or type(value).__module__ == "numpy"


def _digest(value: Any) -> str:
    return shorten(entry("", as_array(value))[3])


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]
