"""Reads and restores what PyTorch's steps start from: models, averages, optimizers, schedules, scalers, generators."""

from __future__ import annotations

import atexit
import math
import sys

from ..capture import torch_state
from ..core.live_objects import LiveObjects
from ..core.patching import replace
from ..core.state_entries import StateKind
from ..events import steps as events
from ..pytorch import private_api
from ..pytorch.events import recording_hooks
from ..pytorch.state import entries_of
from ..pytorch.training_state import NOTES
from .answers import StateAnswers, generator_digests, shorten, text_digest
from .pytorch_batches import BatchStream
from .pytorch_variables import TorchVariables
from .pytorch_view import KINDS, VARIABLES, TrainingView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.agent import Agent
    from ..core.state_entries import StateEntry
    from ..events.steps import Handler, TrainingEvent
    from .script_variables import VariableReader

WITH_NOTES = frozenset([StateKind.SETTINGS, StateKind.SCHEDULE, StateKind.SCALER])
SETTERS = (  # functions by which a script loads the states of generators
    ("torch", "set_rng_state"),
    ("torch.random", "set_rng_state"),
    ("random", "setstate"),
    ("numpy.random", "set_state"),
)


class PytorchState:
    """Reads and restores the state of a training when a model is first called in a step."""

    def __init__(self, agent: Agent, answers: StateAnswers) -> None:
        self._agent, self._answers, self.failed = agent, answers, answers.failed
        self._torch: Any = sys.modules["torch"]
        self._view = TrainingView(self._torch, lambda: recording_hooks(agent).modules)  # type: ignore[union-attr]
        self._records = LiveObjects()  # of the optimizers, by which updates are counted
        # The states of generators after the last update, and when a loader began or returned a batch.
        self._at_update: Any = None
        self._at_loader: Any = None
        self._at_batch: Any = None
        self._variables_at_batch: list[Any] | None = None
        self._batches = BatchStream(answers)
        self._model_calls = 0  # of the current step
        self._due_call = 1  # the call before which the state of the current step is read
        self._searches = 2  # of the heap for copies of models: where a state is first read, and at the question's step
        atexit.register(agent.attempt, self._batches.finish)
        if answers.parts:
            for name, setter in SETTERS:
                if name in sys.modules:
                    replace(sys.modules[name], setter, self._make_setter)

    def handlers(self) -> dict[type[TrainingEvent], Handler]:
        restoring: dict[type[TrainingEvent], Handler] = {
            events.TensorsChange: self._tensors_change,
            events.BatchDue: self._batches.due,
        }
        return {
            **(restoring if self._answers.parts else {}),
            **self._view.handlers(),
            events.OptimizerMade: self._optimizer_made,
            events.LoaderBegan: self._loader_began,
            events.BatchFetched: self._batch_fetched,
            events.LoaderExhausted: self._batches.exhausted,
            events.ModelCalled: self._model_called,
            events.UpdateDone: self._updated,
        }

    # Events

    def _optimizer_made(self, event: events.OptimizerMade) -> None:
        self._view.objects.optimizers.add(event.target)
        if event.optimizer is not None:
            self._records.add(event.optimizer)

    def _make_setter(self, original: Any) -> Any:
        def set_state(*arguments: Any, **keywords: Any) -> None:
            original(*arguments, **keywords)
            self._agent.attempt(self._tensors_change)

        return set_state

    def _tensors_change(self, _event: events.TensorsChange | None = None) -> None:
        """Restore the generators once a checkpoint is loaded, as the script may draw before its first step."""
        if self._answers.is_first and not self._model_calls:
            file = self._answers.snapshot_to_restore("state")
            if file is not None:
                self._restore_generators(file, "random_at_update")

    def _loader_began(self, event: events.LoaderBegan) -> None:
        """Restore and read the generators before a loader draws its order."""
        self._view.loader_began(event)
        is_next = self._answers.is_first and self._model_calls < self._due_call
        file = self._answers.snapshot_to_restore("state") if is_next else None
        if file is not None:
            self._restore_generators(file, "random_at_loader")
        if self._answers.saves_state:
            self._at_loader = self._view.states()

    def _batch_fetched(self, event: events.BatchFetched) -> None:
        """Restore and read the generators before the script uses a batch, as to add noise."""
        answers = self._answers
        self._batches.fetched(event)
        if not answers.is_first or self._model_calls >= self._due_call:
            return
        file = answers.snapshot_to_restore("state") if self._batches.is_at_first else None
        if file is not None:
            self._restore_generators(file, "random_at_batch")
            self._restore_variables(file, f"{VARIABLES}_at_batch")
        if answers.saves_state:
            self._at_batch = self._view.states()
            self._variables_at_batch = answers.attempt(VARIABLES, self._read_variables, True)

    def _model_called(self, event: events.ModelCalled) -> None:
        if not event.has_gradients or not getattr(event.module, "training", True):
            return
        self._model_calls += 1
        answers = self._answers
        if self._model_calls != self._due_call or not (answers.is_logged or answers.is_first):
            return
        if not list(self._view.objects.optimizers):
            return
        if self._searches == 2 or (self._searches and answers.is_first):
            self._searches -= 1
            self._view.search()
        file = answers.snapshot_to_restore("state") if answers.is_first else None
        if file is not None:
            self._restore(file)
        if answers.is_logged:
            answers.log_parts(self._digests(), fetched=self._batches.fetched_by_place())
        if answers.is_first and answers.saves_state:
            answers.attempt("the state was not kept", self._save)
            self._batches.start_saving()

    def _updated(self, event: events.UpdateDone) -> None:
        answers = self._answers
        if not answers.window.updated(event.optimizer, self._records):
            return
        if answers.window.step <= answers.first + 1 and not answers.every:
            answers.log(calls=self._model_calls)
        # Like the step before, the first one may accumulate gradients of more calls than a training that resumes in it.
        is_within = answers.is_first and 0 < answers.calls < self._model_calls
        self._due_call = 1 + (self._model_calls - answers.calls if is_within else 0)
        self._model_calls, self._at_loader, self._at_batch = 0, None, None
        self._variables_at_batch = None
        self._at_update = self._view.states() if answers.is_first and answers.saves_state else None
        self._batches.updated()

    # Reading

    def _entries(self, *, has_details: bool = True) -> list[StateEntry]:
        return self._view.entries(has_details=has_details, are_named=not self._answers.every)

    def _digests(self) -> dict[str, dict[str, str]]:
        is_brief, details = bool(self._answers.every), (StateKind.GRADIENTS, StateKind.MODULES)
        digests: dict[str, dict[str, str]] = {kind.value: {} for kind in KINDS if not (is_brief and kind in details)}
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            for entry in self._entries(has_details=not is_brief):
                digests[entry.kind.value].update(_digests_of(entry))
            if self._answers.is_first and not is_brief:
                reader = self._variable_reader()
                digests[VARIABLES] = self._answers.attempt(VARIABLES, reader.texts, sys._getframe(), text_digest) or {}
        return {**digests, **generator_digests(self._view.generators())}

    def _variable_reader(self, copies: bool = False) -> VariableReader:
        others = self._view.tensors(self._entries())
        return self._view.variable_reader(TorchVariables(others, copies=copies))

    def _read_variables(self, copies: bool = False) -> list[Any]:
        with self._torch.no_grad(), private_api.without_overrides(self._torch):
            return self._variable_reader(copies).differing(sys._getframe(), text_digest, self._answers.resumed)

    # Saving and restoring

    def _save(self) -> None:
        tensors = torch_state.SnapshotTensors()
        header: dict[str, Any] = {"entries": self._view.pack_entries(tensors, self._entries())}
        moments = {
            "random": self._view.states(),
            "random_at_update": self._at_update,
            "random_at_loader": self._at_loader,
            "random_at_batch": self._at_batch,
        }
        for moment, taken in moments.items():
            header.update({} if taken is None else {moment: torch_state.take_random(tensors, taken(), moment)})
        moments_of_variables = {VARIABLES: self._answers.attempt(VARIABLES, self._read_variables)}
        moments_of_variables[f"{VARIABLES}_at_batch"] = self._variables_at_batch
        for moment, rows in moments_of_variables.items():
            header[moment] = [[head, tail, tensors.fill(moment, node)] for head, tail, node in rows or []]
        self._answers.save("state", header, tensors.parts)

    def _restore(self, file: Any) -> None:
        """Restore the parts of the state that the question names, the generators last."""
        reader, entries = torch_state.SnapshotReader(self._torch, file.tensors), self._entries()
        for kind in KINDS:
            if kind.value in self._answers.parts:
                saved = file.header["entries"][kind.value]
                self._answers.attempt(kind.value, self._view.put_back_entries, kind, entries, saved, reader)
        self._restore_generators(file, "random")
        self._restore_variables(file, VARIABLES)

    def _restore_variables(self, file: Any, moment: str) -> None:
        if VARIABLES in self._answers.parts:
            reader = torch_state.SnapshotReader(self._torch, file.tensors)
            rows, names = file.header[moment], self._answers.variables
            self._answers.attempt(VARIABLES, self._view.put_back_variables, rows, reader, names)

    def _restore_generators(self, file: Any, moment: str) -> None:
        reader, parts = torch_state.SnapshotReader(self._torch, file.tensors), self._answers.parts
        chosen = [entry for entry in self._view.generators() if entry.kind.value in parts]
        self._answers.attempt("generators", torch_state.put_random, chosen, file.header.get(moment) or {}, reader)


def _digests_of(entry: StateEntry) -> dict[str, str]:
    """Return the digests of the tensors and values in an entry; numbers of models as they are."""
    value = entry.read()
    if entry.kind is StateKind.MODULES:
        return {entry.name: repr(value)[:16]} if math.isfinite(value) else {}
    if value is None:
        return {entry.name: ""} if entry.kind is StateKind.GRADIENTS else {}
    if entry.kind in WITH_NOTES:
        value = {key: value[key] for key in value if key not in NOTES}
    return {key: shorten(digest) for key, _, _, digest in entries_of(entry.name, value)}
