"""Gives access to the saved tensors of a run by name and step, with the methods of SageMaker Debugger's trials.

Steps are numbered per mode. Without a mode, the steps of all modes count, and a value of the training takes
precedence over one of an evaluation. SageMaker Debugger's global steps are these: the numbers that modes share.
"""

from __future__ import annotations

import bisect
import difflib
import enum
import math
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from reprokit.core.errors import NothingSaved, RunDamaged, TensorUnavailable
from reprokit.model.run import RUNNING
from reprokit.run_files import home as run_home
from reprokit.run_files import object_stores, rundir
from reprokit.run_files.rundir import RunDirectory
from reprokit.saved_tensors import shards
from reprokit.saved_tensors.index import IndexLine, ProcessIndex, WorkerIndex, keys
from reprokit.saved_tensors.object_store import StoredTensors

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]
    import numpy as np

DIRECTORY: Final = rundir.TENSORS
TRAIN, EVAL, PREDICT, GLOBAL = "train", "eval", "predict", "global"
MODES: Final = (TRAIN, EVAL, PREDICT, GLOBAL)  # in the order of precedence for a step without a mode
FROZEN: Final = "frozen"  # the collection of parameters of PyTorch whose requires_grad is False
POLL = 0.2  # seconds between polls of a run that is being written
RUN_FILE_AGE = 1.0  # seconds between reads of run.json
MAX_VALUES = 20_000_000  # in all indexes of a run
MAX_NAMES = 1_000_000
MAX_DROPPED = 10_000
_WORKER = re.compile(r"worker_(\d{1,6})")
WHY = {
    "disk-full": "the disk was full",
    "buffer": "the buffer was full",
    "unreadable": "it could not be read",
    "compiled": "torch.compile runs its model as one",
}
NAMES = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")


@dataclass(frozen=True)
class TensorCollection:
    """A named group of tensors."""

    name: str
    tensor_names: tuple[str, ...]


class TensorTrial:
    """The saved tensors of one run, which may still be written; several trials can be open at once."""

    def __init__(
        self,
        run: str | Path,
        name: str | None = None,
        range_steps: tuple[int | None, int | None] | None = None,
        indexes: Iterable[ProcessIndex] = (),
    ) -> None:
        self._range = _checked_range(range_steps)
        self._stored = StoredTensors(str(run)) if object_stores.is_remote(str(run)) else None
        self.path = run_home.resolve(str(run)) if self._stored is None else self._stored.path
        self._where = str(self.path) if self._stored is None else str(run)
        self.name = name or (self.path.name if self._stored is None else str(run))
        self._run = RunDirectory(self.path) if self._stored is None else None
        self.loaded_all_steps = False
        self.follows = True  # whether each query reads new steps first
        self.reads = 0  # number of values and reductions that were read
        self._indexes: dict[str, ProcessIndex] = {index.key: index for index in indexes}
        self._tensors: dict[str, TrialTensor] = {}
        self._dropped: dict[tuple[str, int], str] = {}
        self._count = 0
        self._read_at = time.monotonic()
        self.refresh()
        if self.loaded_all_steps and not self._indexes:
            advice = "'reprokit record --tensors' saves them, 'reprokit ask' gets them later"
            pushed = "'reprokit push --follow' writes those that the run has saved"
            raise NothingSaved(f"{self._where} holds no tensors; {advice if self._stored is None else pushed}")

    def __repr__(self) -> str:
        return f"<TensorTrial of {self._where}: {len(self._tensors)} tensors>"

    @property
    def run(self) -> RunDirectory:
        """Return the run directory; raises NothingSaved for a run in an object store."""
        if self._run is None:
            raise NothingSaved(f"{self._where} is no run directory; 'reprokit pull' makes one of it")
        return self._run

    def refresh(self, *, is_over: bool = False) -> None:
        """Read what was written since the last call; if the run is over, all steps are loaded then."""
        if self.loaded_all_steps:
            return
        is_over = is_over or self._is_over()  # checked before the last read, so that nothing can be written after it
        directory = self.path / DIRECTORY
        for key in keys(directory):
            self._indexes.setdefault(key, WorkerIndex(directory, key))
        for index in self._indexes.values():
            for line in index.new_lines():
                self._add(index, line)
        self.loaded_all_steps = is_over

    def _is_over(self) -> bool:
        """Return whether the run has ended; a launcher that died on another machine is not noticed."""
        if self._stored is not None:
            return self._stored.refresh()
        now = time.monotonic()
        if self.run.run.status == RUNNING and now - self._read_at > RUN_FILE_AGE:
            self._run, self._read_at = RunDirectory(self.path), now
        return self.run.run.status != RUNNING or self.run.orphaned

    def _add(self, index: ProcessIndex, line: IndexLine) -> None:
        if line.tensor is not None:
            self._tensor_named(line.tensor).describe(index, line)
        elif line.step is not None and line.name:
            if not self._has_step(line.step):
                return
            self._count += 1
            self._tensor_named(line.name).add(index, line)
        elif line.dropped is not None and len(self._dropped) < MAX_DROPPED:
            self._dropped[line.name, line.dropped] = WHY.get(line.why, line.why)
        if self._count > MAX_VALUES or len(self._tensors) > MAX_NAMES:
            raise RunDamaged(f"{self._where} has more than {MAX_VALUES} values or {MAX_NAMES} names; use fewer steps")

    def _has_step(self, step: int) -> bool:
        """Return whether a step is in the range that was asked for."""
        first, end = self._range
        return (first is None or step >= first) and (end is None or step < end)

    def _tensor_named(self, name: str) -> TrialTensor:
        if name not in self._tensors:
            self._tensors[name] = TrialTensor(self, name)
        return self._tensors[name]

    def require_shard(self, name: str) -> None:
        """Fetch a shard if the run is in an object store."""
        if self._stored is not None:
            self._stored.require(name)

    def look(self) -> None:
        """Refresh, unless the caller refreshes the trial itself."""
        if self.follows:
            self.refresh()

    def why_dropped(self, name: str, step: int) -> str:
        """Return why a value was not saved, as the end of a sentence; empty if that was not recorded."""
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
        """Return the names of saved tensors: those of a step, of a mode, of a collection, that match an expression.

        What is given narrows the names together; of several expressions one must be found in a name.
        """
        self.look()
        tensors: Iterable[TrialTensor] = self._tensors.values()
        if step is not None or mode_name(mode) is not None:
            tensors = [tensor for tensor in tensors if tensor.was_saved(step, mode)]
        else:
            tensors = [tensor for tensor in tensors if tensor.steps_of_modes]
        patterns = [re.compile(expression) for expression in ([regex] if isinstance(regex, str) else regex or [])]
        collection_name = collection.name if isinstance(collection, TensorCollection) else collection
        return sorted(
            tensor.name
            for tensor in tensors
            if (collection_name is None or collection_name in tensor.collections)
            and (regex is None or any(pattern.search(tensor.name) for pattern in patterns))
        )

    def has_tensor(self, name: str) -> bool:
        """Return whether a tensor of this name, or alias, has been saved so far."""
        self.look()
        return self._by_name(name) is not None

    def tensor(self, name: str) -> TrialTensor:
        """Return a tensor by its name or an alias, such as that of a tied weight."""
        self.look()
        tensor = self._by_name(name)
        if tensor is None:
            near = difflib.get_close_matches(name, list(self._tensors)[:10_000], 3)
            advice = f"; near names: {', '.join(near)}" if near else ""
            yet = "" if self.loaded_all_steps else " yet"
            steps = [step for dropped, step in self._dropped if dropped == name]
            why = self.why_dropped(name, steps[0]) if steps else ""
            raise TensorUnavailable(f"{self._where} holds no tensor {name!r}{yet}{why}{advice}")
        return tensor

    def _by_name(self, name: str) -> TrialTensor | None:
        exact = self._tensors.get(name)
        return exact or next((tensor for tensor in self._tensors.values() if name in tensor.aliases), None)

    def collections(self) -> dict[str, TensorCollection]:
        """Return the collections by name."""
        self.look()
        names_of: dict[str, list[str]] = {}
        for name, tensor in sorted(self._tensors.items()):
            for collection in tensor.collections:
                names_of.setdefault(collection, []).append(name)
        return {name: TensorCollection(name, tuple(names)) for name, names in sorted(names_of.items())}

    def collection(self, name: str) -> TensorCollection:
        """Return a collection; it is empty if none of its tensors was saved."""
        return self.collections().get(name, TensorCollection(name, ()))

    def workers(self) -> list[str]:
        """Return the processes that saved tensors, named by rank if they have one.

        Wherever a worker is named, SageMaker Debugger's "worker_N" is also the N-th rank, or else the N-th process.
        """
        self.look()
        return sorted({index.name for index in self._indexes.values()})

    def worker_named(self, name: str | None) -> str | None:
        """Return the name here of a worker that may have SageMaker Debugger's name."""
        number = _WORKER.fullmatch(name or "")
        if number is None:
            return name
        workers = sorted({index.name for index in self._indexes.values()}, key=lambda worker: (len(worker), worker))
        position, rank = int(number[1]), f"rank{number[1]}"
        return rank if rank in workers else workers[position] if position < len(workers) else name

    # Steps

    def modes(self) -> list[str]:
        """Return the modes in which steps were saved."""
        self.look()
        return [mode for mode in MODES if any(mode in tensor.steps_of_modes for tensor in self._tensors.values())]

    def steps(self, mode: object = None, show_incomplete_steps: bool = False) -> list[int]:
        """Return the steps at which tensors were saved; incomplete ones only on request."""
        self.look()
        every = {step for tensor in self._tensors.values() for step in tensor.all_steps(mode)}
        return sorted(step for step in every if show_incomplete_steps or self._is_complete(step, mode))

    def _is_complete(self, step: int, mode: object) -> bool:
        only = mode_name(mode)
        modes = MODES if only is None else (only,)
        passed = (any(index.has_passed(name, step) for name in modes) for index in self._indexes.values())
        return self.loaded_all_steps or (bool(self._indexes) and all(passed))

    def order(self) -> list[tuple[str, int]]:
        """Return modes and steps, in the order of the first process, that all processes have completed."""
        self.look()
        if not self._indexes:
            return []
        first = min(self._indexes.values(), key=lambda index: index.name)
        return [entry for entry in first.order if self._is_complete(entry[1], entry[0])]

    def has_passed_step(self, step: int, mode: object = None) -> StepAvailability:
        """Return whether the values of a step exist, may still arrive, or will never arrive."""
        self.look()
        if self._is_complete(step, mode):
            is_saved = any(tensor.was_saved(step, mode) for tensor in self._tensors.values())
            return StepAvailability.AVAILABLE if is_saved else StepAvailability.UNAVAILABLE
        return StepAvailability.NOT_YET_AVAILABLE

    def wait_for_steps(self, required_steps: Iterable[int], mode: object = None) -> None:
        """Wait until these steps are saved; raises StepUnavailable or NoMoreData for one that never will be."""
        for step in required_steps:
            while (state := self.has_passed_step(step, mode)) is StepAvailability.NOT_YET_AVAILABLE:
                time.sleep(POLL)
                self.refresh()
            if state is StepAvailability.UNAVAILABLE:
                self.raise_unavailable(step, mode)

    def raise_unavailable(self, step: int, mode: object) -> None:
        """Raise the error that explains why this step has no values."""
        shown = f"step {step}" + (f" of mode {mode_name(mode)}" if mode_name(mode) else "")
        if self.has_passed_step(step, mode) is StepAvailability.NOT_YET_AVAILABLE:
            raise StepNotYetAvailable(f"{self._where} has not come to {shown} yet; wait_for_steps waits for it")
        steps = self.steps(mode)
        if not steps or step > steps[-1]:
            raise NoMoreData(f"{self._where} has no {shown}: its last saved step is {steps[-1] if steps else 'none'}")
        near = ", ".join(map(str, steps[max(0, bisect.bisect(steps, step) - 1) :][:2]))
        raise StepUnavailable(f"{self._where} saved nothing at {shown}{self.why_dropped('', step)}; near steps: {near}")

    def mode(self, global_step: int) -> str:
        """Return the mode whose values count at a step without a mode; raises as a value of that step would."""
        found = next((mode for mode in MODES if any(t.was_saved(global_step, mode) for t in self._all())), None)
        if found is None:
            self.raise_unavailable(global_step, None)
            raise AssertionError("unreachable")
        return found

    def mode_step(self, global_step: int) -> int:
        """Return the number that a step has in its mode, which is the same one."""
        self.mode(global_step)
        return global_step

    def global_step(self, mode: object, mode_step: int) -> int:
        """Return the number of a mode's step without its mode, which is the same one; its value needs the mode."""
        if not any(tensor.was_saved(mode_step, mode) for tensor in self._all()):
            self.raise_unavailable(mode_step, mode)
        return mode_step

    def _all(self) -> list[TrialTensor]:
        self.look()
        return list(self._tensors.values())

    # Inputs and outputs of the model

    def inputs(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return the saved inputs of a step by name."""
        return self._of_step(self.tensor_names(step=step, mode=mode, collection="inputs"), step, mode, worker)

    def predictions(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return the predictions: the collection of this name, or else the first inputs of the loss."""
        return self._of_step(self.given_to_loss("predictions", 0, step, mode), step, mode, worker)

    def labels(self, step: int, mode: object = None, worker: str | None = None) -> dict[str, Array]:
        """Return the labels: the collection of this name, or else the second inputs of the loss."""
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
    """One tensor over the steps of a run."""

    def __init__(self, trial: TensorTrial, name: str) -> None:
        self.trial, self.name = trial, name
        self.collections: tuple[str, ...] = ()
        self.aliases: tuple[str, ...] = ()
        self.module = self.layer = ""  # its module, and the class of the module
        self.place: tuple[str, int] | None = None  # file and line of the code that made it
        self.placements: dict[str, str] = {}  # which part of a DTensor each process has
        self.steps_of_modes: dict[str, dict[int, dict[str, list[tuple[str, IndexLine]]]]] = {}

    def __repr__(self) -> str:
        return f"<TrialTensor {self.name!r}: {len(self.all_steps(None))} steps>"

    def describe(self, index: ProcessIndex, line: IndexLine) -> None:
        """Add the description of the tensor in an index."""
        if line.placement:
            self.placements[index.name] = line.placement
        self.collections = tuple(dict.fromkeys((*self.collections, *line.collections)))
        self.aliases = tuple(dict.fromkeys((*self.aliases, *line.aliases)))
        self.module, self.layer = line.module or self.module, line.layer or self.layer
        self.place = line.place or self.place

    def add(self, index: ProcessIndex, line: IndexLine) -> None:
        """Add a value, or its reductions, of an index."""
        assert line.step is not None
        workers = self.steps_of_modes.setdefault(line.mode, {}).setdefault(line.step, {})
        calls = workers.setdefault(index.name, [])
        if not calls or (calls[-1][0] == index.key and calls[-1][1].call < line.call):
            calls.append((index.key, line))
            return
        for number, (key, earlier) in enumerate(calls):  # a value and its reductions have a line each
            if key == index.key and earlier.call == line.call:
                calls[number] = key, _merged(earlier, line)
                return
        calls.append((index.key, line))

    def all_steps(self, mode: object) -> set[int]:
        """Return the steps at which it was saved, complete or not."""
        only = mode_name(mode)
        modes = MODES if only is None else (only,)
        return {step for name in modes for step in self.steps_of_modes.get(name, ())}

    def was_saved(self, step: int | None, mode: object) -> bool:
        """Return whether it was saved at a step, or at any step."""
        only = mode_name(mode)
        modes = MODES if only is None else (only,)
        return any(step is None or step in self.steps_of_modes[name] for name in modes if name in self.steps_of_modes)

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
        """Return its number of values at a step: more than one if its module was called several times."""
        return len(self._calls(step_num, mode, worker))

    def value(self, step_num: int, mode: object = None, worker: str | None = None, call: int = 0) -> Array:
        """Return its value at a step, for the call with this number."""
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
        """Return whether its value was saved at a step, not only reductions."""
        return self._line(step_num, mode, None, 0)[1].shard is not None

    def digests(self, step_num: int, mode: object = None) -> dict[str, str]:
        """Return the digest of its first value at a step, by process; empty where there is none."""
        self.trial.reads += 1
        return {worker: calls[0][1].digest for worker, calls in self._at(step_num, mode).items()}

    def fingerprint(self, step_num: int, mode: object = None) -> tuple[object, ...]:
        """Return digest and reductions, which are equal for equal values, without reading the value."""
        self.trial.reads += 1
        lines = [line for _, line in self._calls(step_num, mode, None)]
        return tuple(
            (line.digest or (line.shard, line.key), *sorted(line.reductions.items(), key=str)) for line in lines
        )

    def is_eager(self, step_num: int, mode: object = None, worker: str | None = None, call: int = 0) -> bool:
        """Return whether its value is of an eager replay of compiled code, which is the run by the trail."""
        return self._line(step_num, mode, worker, call)[1].eager

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
        """Return a reduction: the saved one, or else computed from the value."""
        line = self._line(step_num, mode, worker, call)[1]
        saved = line.reductions.get(f"abs_{reduction_name}" if abs else reduction_name)
        if saved is not None:
            self.trial.reads += 1
            return float(saved)
        return reduced(self.value(step_num, mode, worker, call), reduction_name, is_absolute=abs)

    def reduction_values(
        self, step_num: int, mode: object = None, worker: str | None = None
    ) -> dict[tuple[str, bool], float]:
        """Return the saved reductions, by name and whether they are of absolute values."""
        saved = self._line(step_num, mode, worker, 0)[1].reductions
        return {
            (name.removeprefix("abs_"), name.startswith("abs_")): float(number)
            for name, number in saved.items()
            if number is not None
        }

    def _at(self, step: int, mode: object) -> dict[str, list[tuple[str, IndexLine]]]:
        self.trial.look()
        only = mode_name(mode)
        for name in MODES if only is None else (only,):
            workers = self.steps_of_modes.get(name, {}).get(step)
            if workers is not None:
                return workers
        if self.trial.has_passed_step(step, mode) is not StepAvailability.AVAILABLE:
            self.trial.raise_unavailable(step, mode)
        why = self.trial.why_dropped(self.name, step)
        raise TensorUnavailableForStep(
            f"{self.name!r} was not saved at step {step}{why}; steps() lists those that were"
        )

    def _calls(self, step: int, mode: object, worker: str | None) -> list[tuple[str, IndexLine]]:
        workers = self._at(step, mode)
        worker = self.trial.worker_named(worker)
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


@contextmanager
def as_they_are(trials: Iterable[TensorTrial]) -> Iterator[None]:
    """Have trials read nothing new meanwhile."""
    before = [(trial, trial.follows) for trial in trials]
    try:
        for trial, _ in before:
            trial.follows = False
        yield
    finally:
        for trial, follows in before:
            trial.follows = follows


def _checked_range(steps: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Return the first step and the one behind the last; raises TensorUnavailable for anything else."""
    if steps is None:
        return None, None
    if len(steps) != 2 or not all(step is None or isinstance(step, int) for step in steps):
        raise TensorUnavailable(f"range_steps={steps!r} is not (first, end): two steps, of which each may be None")
    return steps


def _merged(earlier: IndexLine, line: IndexLine) -> IndexLine:
    """Return a line that has what two lines say about the same value."""
    value = earlier if line.shard is None else line
    reductions = {**earlier.reductions, **line.reductions}
    return msgspec.structs.replace(value, reductions=reductions, eager=earlier.eager or line.eager)


def mode_name(mode: object) -> str | None:
    """Return the name of a mode, also for SageMaker Debugger's constants; None for all modes."""
    name = str(getattr(mode, "name", mode) or GLOBAL).lower()
    if name not in MODES:
        raise TensorUnavailable(f"no mode is called {name[:40]!r}; there are {', '.join(MODES)}")
    return None if name == GLOBAL else name


def reduced(value: np.ndarray[Any, Any], name: str, *, is_absolute: bool = False) -> float:
    """Return a reduction in double precision; NaN if it is undefined for an empty tensor."""
    numpy = shards.numpy()
    if name not in NAMES:
        raise TensorUnavailable(f"no reduction is called {name[:40]!r}; there are {', '.join(NAMES)}")
    numbers = (numpy.abs(value) if is_absolute or value.dtype.kind == "c" else value).astype("float64").ravel()
    if not numbers.size and name not in ("sum", "prod", "l1", "l2"):
        return math.nan
    with numpy.errstate(all="ignore"):
        if name == "l1":
            return float(numpy.abs(numbers).sum())
        if name == "l2":
            return float(numpy.sqrt((numbers * numbers).sum()))
        return float(getattr(numbers, "var" if name == "variance" else name)())


class StepAvailability(enum.Enum):
    """Whether the values of a step exist, may still arrive, or will never arrive."""

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2


class TensorUnavailableForStep(TensorUnavailable):
    """The tensor was not saved at this step, or only its reductions were."""


class StepUnavailable(TensorUnavailable):
    """Nothing was saved at this step, and nothing will be."""


class StepNotYetAvailable(TensorUnavailable):
    """The training has not come to this step yet."""


class NoMoreData(TensorUnavailable):
    """The run has ended before this step."""


class InvalidWorker(TensorUnavailable):
    """No process of this name saved the tensor."""
