"""The tensors of a run by name and step, with the methods that SageMaker Debugger's trials have.

Steps are numbered per mode. Where no mode is given, the steps of all modes count, and a value is the training's
before that of an evaluation.
"""

from __future__ import annotations

import bisect
import difflib
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from reprokit import object_stores, run_home, rundir
from reprokit.errors import NothingSaved, RunDamaged, TensorUnavailable
from reprokit.model.run import RUNNING
from reprokit.rundir import RunDirectory
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.index import IndexLine, WorkerIndex, keys
from reprokit.saved_tensors.reductions import reduced
from reprokit.saved_tensors.step_states import (
    InvalidWorker,
    NoMoreData,
    StepAvailability,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from reprokit.saved_tensors.stored import StoredTensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

DIRECTORY: Final = rundir.TENSORS
TRAIN, EVAL, PREDICT, GLOBAL = "train", "eval", "predict", "global"
MODES: Final = (TRAIN, EVAL, PREDICT, GLOBAL)  # in the order in which a step without a mode is looked for
POLL = 0.2  # seconds between looks at a run that is being written
RENEWED = 1.0  # seconds for which the state of the launcher is believed
MAX_VALUES = 20_000_000  # in the indexes of a run
MAX_NAMES = 1_000_000
MAX_DROPPED = 10_000
WHY = {"disk-full": "the disk was full", "buffer": "the buffer was full", "unreadable": "it could not be read"}


@dataclass(frozen=True)
class TensorCollection:
    """A named group of tensors."""

    name: str
    tensor_names: tuple[str, ...]


class TensorTrial:
    """The saved tensors of one run. It follows a run that is being written; several can be open at once."""

    def __init__(self, run: str | Path) -> None:
        self._stored = StoredTensors(str(run)) if object_stores.is_remote(str(run)) else None
        self.path = run_home.resolve(str(run)) if self._stored is None else self._stored.path
        self.name = self.path.name if self._stored is None else str(run)
        self._run = RunDirectory(self.path) if self._stored is None else None
        self.loaded_all_steps = False
        self.follows = True  # whether each question looks for new steps first
        self.reads = 0  # values and reductions that were given
        self._indexes: dict[str, WorkerIndex] = {}
        self._tensors: dict[str, TrialTensor] = {}
        self._dropped: dict[tuple[str, int], str] = {}
        self._count = 0
        self._renewed = time.monotonic()
        self.refresh()
        if self.loaded_all_steps and not self._indexes:
            raise NothingSaved(
                f"{self.path} holds no tensors; 'reprokit record --tensors' saves them, 'reprokit ask' gets them later"
            )

    def __repr__(self) -> str:
        return f"<TensorTrial of {self.path}: {len(self._tensors)} tensors>"

    @property
    def run(self) -> RunDirectory:
        """The run directory; None for a run in a store."""
        if self._run is None:
            raise NothingSaved(f"{self.name} is no run directory; 'reprokit pull' makes one of it")
        return self._run

    def refresh(self, *, is_over: bool = False) -> None:
        """Read what was written since the last look, after which nothing more comes if the run is over."""
        if self.loaded_all_steps:
            return
        is_over = is_over or self._is_over()  # before the last look, so that nothing can come behind it
        directory = self.path / DIRECTORY
        for key in keys(directory):
            index = self._indexes.setdefault(key, WorkerIndex(directory, key))
            for line in index.new_lines():
                self._add(index, line)
        self.loaded_all_steps = is_over

    def _is_over(self) -> bool:
        """Return whether the run has ended. Of a launcher on another machine only the end of the run is seen."""
        if self._stored is not None:
            return self._stored.refresh()
        now = time.monotonic()
        if self.run.run.status == RUNNING and now - self._renewed > RENEWED:
            self._run, self._renewed = RunDirectory(self.path), now
        return self.run.run.status != RUNNING or self.run.orphaned

    def _add(self, index: WorkerIndex, line: IndexLine) -> None:
        if line.tensor is not None:
            self._named(line.tensor).describe(line)
        elif line.step is not None and line.name:
            self._count += 1
            self._named(line.name).add(index, line)
        elif line.dropped is not None and len(self._dropped) < MAX_DROPPED:
            self._dropped[line.name, line.dropped] = WHY.get(line.why, line.why)
        if self._count > MAX_VALUES or len(self._tensors) > MAX_NAMES:
            raise RunDamaged(f"{self.path} has more than {MAX_VALUES} values or {MAX_NAMES} names; use fewer steps")

    def _named(self, name: str) -> TrialTensor:
        if name not in self._tensors:
            self._tensors[name] = TrialTensor(self, name)
        return self._tensors[name]

    def require_shard(self, name: str) -> None:
        """Fetch a shard if the run is in a store."""
        if self._stored is not None:
            self._stored.require(name)

    def look(self) -> None:
        """Refresh, unless the caller does so itself."""
        if self.follows:
            self.refresh()

    def why_dropped(self, name: str, step: int) -> str:
        """Return why a value was not saved; nothing where nobody said so."""
        why = self._dropped.get((name, step)) or self._dropped.get(("", step), "")
        return f", as {why}" if why else ""

    # Names

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: object = None,
        regex: str | Sequence[str] | None = None,
        collection: str | TensorCollection | None = None,
    ) -> list[str]:
        """Return the names of tensors that were saved: at a step, in a mode, by regular expression or collection."""
        self.look()
        tensors: Iterable[TrialTensor] = self._tensors.values()
        if step is not None or mode_name(mode) is not None:
            tensors = [tensor for tensor in tensors if tensor.was_saved(step, mode)]
        else:
            tensors = [tensor for tensor in tensors if tensor.steps_of_modes]
        if regex is None and collection is None:
            return sorted(tensor.name for tensor in tensors)
        patterns = [re.compile(one) for one in ([regex] if isinstance(regex, str) else regex or [])]
        wanted = collection.name if isinstance(collection, TensorCollection) else collection
        return sorted(
            tensor.name
            for tensor in tensors
            if wanted in tensor.collections or any(pattern.search(tensor.name) for pattern in patterns)
        )

    def has_tensor(self, name: str) -> bool:
        """Return whether a tensor of this name, or alias, has been saved so far."""
        self.look()
        return self._by_name(name) is not None

    def tensor(self, name: str) -> TrialTensor:
        """Return a tensor by its name or by an alias, as tied weights have them."""
        self.look()
        found = self._by_name(name)
        if found is None:
            near = difflib.get_close_matches(name, list(self._tensors)[:10_000], 3)
            advice = f"; near names: {', '.join(near)}" if near else ""
            yet = "" if self.loaded_all_steps else " yet"
            steps = [step for dropped, step in self._dropped if dropped == name]
            why = self.why_dropped(name, steps[0]) if steps else ""
            raise TensorUnavailable(f"{self.path} holds no tensor {name!r}{yet}{why}{advice}")
        return found

    def _by_name(self, name: str) -> TrialTensor | None:
        found = self._tensors.get(name)
        return found or next((tensor for tensor in self._tensors.values() if name in tensor.aliases), None)

    def collections(self) -> dict[str, TensorCollection]:
        """Return the collections by name."""
        self.look()
        found: dict[str, list[str]] = {}
        for name, tensor in sorted(self._tensors.items()):
            for collection in tensor.collections:
                found.setdefault(collection, []).append(name)
        return {name: TensorCollection(name, tuple(names)) for name, names in sorted(found.items())}

    def collection(self, name: str) -> TensorCollection:
        """Return a collection; an empty one where nothing of it was saved."""
        return self.collections().get(name, TensorCollection(name, ()))

    def workers(self) -> list[str]:
        """Return the processes that saved tensors, by rank where they have one."""
        self.look()
        return sorted({index.name for index in self._indexes.values()})

    # Steps

    def modes(self) -> list[str]:
        """Return the modes in which steps were saved."""
        self.look()
        return [mode for mode in MODES if any(mode in tensor.steps_of_modes for tensor in self._tensors.values())]

    def steps(self, mode: object = None, show_incomplete_steps: bool = False) -> list[int]:
        """Return the steps at which tensors were saved; those of which more may come only where asked for."""
        self.look()
        every = {step for tensor in self._tensors.values() for step in tensor.all_steps(mode)}
        return sorted(step for step in every if show_incomplete_steps or self._is_complete(step, mode))

    def _is_complete(self, step: int, mode: object) -> bool:
        wanted = mode_name(mode)
        modes = MODES if wanted is None else (wanted,)
        passed = (any(index.has_passed(one, step) for one in modes) for index in self._indexes.values())
        return self.loaded_all_steps or (bool(self._indexes) and all(passed))

    def order(self) -> list[tuple[str, int]]:
        """Return modes and steps in the order of the first process, as far as all processes have passed them."""
        self.look()
        if not self._indexes:
            return []
        first = min(self._indexes.values(), key=lambda index: index.name)
        return [entry for entry in first.order if self._is_complete(entry[1], entry[0])]

    def has_passed_step(self, step: int, mode: object = None) -> StepAvailability:
        """Return whether the values of a step are there, may still come, or will not come."""
        self.look()
        if self._is_complete(step, mode):
            is_there = any(tensor.was_saved(step, mode) for tensor in self._tensors.values())
            return StepAvailability.AVAILABLE if is_there else StepAvailability.UNAVAILABLE
        return StepAvailability.NOT_YET_AVAILABLE

    def wait_for_steps(self, required_steps: Iterable[int], mode: object = None) -> None:
        """Wait until these steps have been saved; raises StepUnavailable or NoMoreData where one never will be."""
        for step in required_steps:
            while (state := self.has_passed_step(step, mode)) is StepAvailability.NOT_YET_AVAILABLE:
                time.sleep(POLL)
                self.refresh()
            if state is StepAvailability.UNAVAILABLE:
                self.raise_unavailable(step, mode)

    def raise_unavailable(self, step: int, mode: object) -> None:
        """Raise what says why nothing of this step is there."""
        shown = f"step {step}" + (f" of mode {mode_name(mode)}" if mode_name(mode) else "")
        if self.has_passed_step(step, mode) is StepAvailability.NOT_YET_AVAILABLE:
            raise StepNotYetAvailable(f"{self.path} has not come to {shown} yet; wait_for_steps waits for it")
        steps = self.steps(mode)
        if not steps or step > steps[-1]:
            raise NoMoreData(f"{self.path} has no {shown}: its last saved step is {steps[-1] if steps else 'none'}")
        near = ", ".join(map(str, steps[max(0, bisect.bisect(steps, step) - 1) :][:2]))
        raise StepUnavailable(f"{self.path} saved nothing at {shown}{self.why_dropped('', step)}; near steps: {near}")

    # What the model was given, and gave

    def inputs(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return the saved inputs of a step by name."""
        return self._of_step(self.tensor_names(step=step, mode=mode, collection="inputs"), step, mode, worker)

    def predictions(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return what the loss compared with the labels: of the collection of this name, or else its first inputs."""
        return self._of_step(self.given_to_loss("predictions", 0, step, mode), step, mode, worker)

    def labels(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return the labels: of the collection of this name, or else the second inputs of the loss."""
        return self._of_step(self.given_to_loss("labels", 1, step, mode), step, mode, worker)

    def given_to_loss(self, collection: str, position: int, step: int | None = None, mode: object = None) -> list[str]:
        """Return the names of a collection, or else of the inputs of loss modules at a position."""
        names = self.tensor_names(step=step, mode=mode, collection=collection)
        losses = rf"Loss\w*_input_{position}$"
        return names or self.tensor_names(step=step, mode=mode, regex=losses)

    def _of_step(self, names: list[str], step: int, mode: object, worker: str | None) -> dict[str, Array]:
        if not names and self.has_passed_step(step, mode) is not StepAvailability.AVAILABLE:
            self.raise_unavailable(step, mode)
        return {name: self.tensor(name).value(step, mode, worker) for name in names}


class TrialTensor:
    """One tensor through the steps of a run."""

    def __init__(self, trial: TensorTrial, name: str) -> None:
        self.trial, self.name = trial, name
        self.collections: tuple[str, ...] = ()
        self.aliases: tuple[str, ...] = ()
        self.module = self.layer = ""  # the module that it belongs to, and the name of its class
        self.place: tuple[str, int] | None = None  # file and line that made it
        self.steps_of_modes: dict[str, dict[int, dict[str, list[tuple[str, IndexLine]]]]] = {}

    def __repr__(self) -> str:
        return f"<TrialTensor {self.name!r}: {len(self.all_steps(None))} steps>"

    def describe(self, line: IndexLine) -> None:
        """Take over what the index says of the tensor."""
        self.collections = tuple(dict.fromkeys((*self.collections, *line.collections)))
        self.aliases = tuple(dict.fromkeys((*self.aliases, *line.aliases)))
        self.module, self.layer = line.module or self.module, line.layer or self.layer
        self.place = line.place or self.place

    def add(self, index: WorkerIndex, line: IndexLine) -> None:
        """Take over a value, or reductions of one."""
        assert line.step is not None
        workers = self.steps_of_modes.setdefault(line.mode, {}).setdefault(line.step, {})
        workers.setdefault(index.name, []).append((index.key, line))

    def all_steps(self, mode: object) -> set[int]:
        """Return the steps at which it was saved, complete or not."""
        wanted = mode_name(mode)
        modes = MODES if wanted is None else (wanted,)
        return {step for one in modes for step in self.steps_of_modes.get(one, ())}

    def was_saved(self, step: int | None, mode: object) -> bool:
        """Return whether it was saved at a step; without one, at any."""
        wanted = mode_name(mode)
        modes = MODES if wanted is None else (wanted,)
        return any(step is None or step in self.steps_of_modes[one] for one in modes if one in self.steps_of_modes)

    def steps(self, mode: object = None, show_incomplete_steps: bool = False) -> list[int]:
        """Return the steps at which it was saved."""
        self.trial.look()
        complete = (
            set(self.trial.steps(mode)) if not show_incomplete_steps and not self.trial.loaded_all_steps else None
        )
        return sorted(step for step in self.all_steps(mode) if complete is None or step in complete)

    def prev_steps(self, step: int, n: int | None = None, mode: object = None) -> list[int]:
        """Return the last n steps up to this one, or all."""
        steps = self.steps(mode)
        steps = steps[: bisect.bisect_right(steps, step)]
        return steps[-n:] if n else steps

    def workers(self, step_num: int, mode: object = None) -> list[str]:
        """Return the processes that saved it at a step."""
        return sorted(self._at(step_num, mode))

    def calls(self, step_num: int, mode: object = None, worker: str | None = None) -> int:
        """Return how many values it has at a step: more than one where its module was called several times."""
        return len(self._calls(step_num, mode, worker))

    def value(self, step_num: int, mode: object = None, worker: str | None = None, call: int = 0) -> Array:
        """Return its value; of several calls in the step that of the call with this number."""
        key, line = self._line(step_num, mode, worker, call)
        if line.shard is None:
            text = f"of {self.name!r} only reductions were saved at step {step_num}: {', '.join(line.reductions)}"
            raise TensorUnavailableForStep(f"{text}; reduction_value gives them")
        self.trial.reads += 1
        self.trial.require_shard(shards.name_of(key, line))
        return shards.read(self.trial.path / DIRECTORY, key, line)

    def values(self, mode: object = None, worker: str | None = None) -> dict[int, Array]:
        """Return its values by step."""
        return {step: self.value(step, mode, worker) for step in self.steps(mode)}

    def has_value(self, step_num: int, mode: object = None) -> bool:
        """Return whether its value was saved at a step, and not only reductions."""
        return self._line(step_num, mode, None, 0)[1].shard is not None

    def fingerprint(self, step_num: int, mode: object = None) -> tuple[object, ...]:
        """Return what is equal for equal values: digest and reductions, without reading the value."""
        self.trial.reads += 1
        lines = [line for _, line in self._calls(step_num, mode, None)]
        return tuple(
            (line.digest or (line.shard, line.key), *sorted(line.reductions.items(), key=str)) for line in lines
        )

    def shape(self, step_num: int, mode: object = None, worker: str | None = None) -> tuple[int, ...]:
        """Return its shape at a step."""
        return tuple(self._line(step_num, mode, worker, 0)[1].shape)

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: object = None,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002  # SageMaker Debugger's name
        call: int = 0,
    ) -> float:
        """Return a number that stands for the tensor: the saved one, or else computed from the value."""
        line = self._line(step_num, mode, worker, call)[1]
        saved = line.reductions.get(f"abs_{reduction_name}" if abs else reduction_name)
        if saved is not None:
            self.trial.reads += 1
            return float(saved)
        return reduced(self.value(step_num, mode, worker, call), reduction_name, is_absolute=abs)

    def reduction_values(
        self, step_num: int, mode: object = None, worker: str | None = None
    ) -> dict[tuple[str, bool], float]:
        """Return the reductions that were saved, by their name and whether they are of absolute values."""
        saved = self._line(step_num, mode, worker, 0)[1].reductions
        return {
            (name.removeprefix("abs_"), name.startswith("abs_")): float(number)
            for name, number in saved.items()
            if number is not None
        }

    def _at(self, step: int, mode: object) -> dict[str, list[tuple[str, IndexLine]]]:
        self.trial.look()
        wanted = mode_name(mode)
        for one in MODES if wanted is None else (wanted,):
            found = self.steps_of_modes.get(one, {}).get(step)
            if found is not None:
                return found
        if self.trial.has_passed_step(step, mode) is not StepAvailability.AVAILABLE:
            self.trial.raise_unavailable(step, mode)
        why = self.trial.why_dropped(self.name, step)
        raise TensorUnavailableForStep(
            f"{self.name!r} was not saved at step {step}{why}; steps() lists those that were"
        )

    def _calls(self, step: int, mode: object, worker: str | None) -> list[tuple[str, IndexLine]]:
        workers = self._at(step, mode)
        if worker is not None and worker not in workers:
            raise InvalidWorker(
                f"{self.name!r} was saved by {', '.join(sorted(workers))} at step {step}, not {worker!r}"
            )
        return workers[min(workers) if worker is None else worker]

    def _line(self, step: int, mode: object, worker: str | None, call: int) -> tuple[str, IndexLine]:
        calls = self._calls(step, mode, worker)
        if not 0 <= call < len(calls):
            raise TensorUnavailableForStep(f"{self.name!r} has {len(calls)} values at step {step}, none of call {call}")
        return calls[call]


def mode_name(mode: object) -> str | None:
    """Return the name of a mode, also of SageMaker Debugger's; None where all are meant."""
    name = str(getattr(mode, "name", mode) or GLOBAL).lower()
    if name not in MODES:
        raise TensorUnavailable(f"no mode is called {name[:40]!r}; there are {', '.join(MODES)}")
    return None if name == GLOBAL else name
