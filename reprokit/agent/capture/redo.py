"""Drives the trials that re-execute a captured step: to reproduce it, to minimize its batch, or to explain it.

A framework's part knows how to execute a step on a part of its batch. It asks here for the samples of the next trial,
and reports its outcome; the launcher reads the result and the progress.

The search for a smaller batch is bisection first, then ddmin of Zeller and Hildebrandt ("Simplifying and Isolating
Failure-Inducing Input", 2002). Its result is 1-minimal: without any single one of its samples the problem disappears.
No part is tried twice.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

from . import CaptureSession, checks
from .header import GRADIENT, SnapshotHeader, Trigger, in_words
from .store import SnapshotError, SnapshotFile, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn, Optional

    Samples = tuple[int, ...]
    Next = tuple[Optional[Samples], "SmallestPart"]

FORMAT = 1
REPRODUCE, MINIMIZE, EXPLAIN = "reproduce", "minimize", "explain"
FINITE = "everything is finite"
FILLED = "the script works with whole batches only: the samples are repeated in the place of those left out"
SORTED = "indices in the data set are told as if the script's collate_fn kept the order of samples"
MAX_DIFFERENT = 1000  # names of gradients that are reported
MAX_TRIALS = 1000


class StepOutcome:
    """The result of an executed step of any framework: triggers, digests of gradients, loss and norm."""

    def __init__(
        self,
        not_finite: Sequence[Trigger | None] = (),
        digests: Mapping[str, str] | None = None,
        loss: tuple[float | None, str] = (None, ""),
        norm: float | None = None,
        worst_loss: float | None = None,
        bad: set[str] | None = None,
    ) -> None:
        self.not_finite = [trigger for trigger in not_finite if trigger is not None]
        self.digests = dict(digests or {})  # of all gradients, by name
        self.loss, self.loss_digest = loss
        self.norm = norm  # L2 norm of all gradients
        self.worst_loss = self.loss if worst_loss is None else worst_loss
        self._bad = bad

    @property
    def bad_gradients(self) -> set[str]:
        """The names of the gradients that are not finite, or of the outputs."""
        triggers = self.not_finite if self._bad is None else ()
        return {trigger.name for trigger in triggers if trigger.kind == GRADIENT} | (self._bad or set())

    def renamed(self, names: Sequence[str]) -> StepOutcome:
        """Return the outcome with gradients renamed in order: a script with fewer models names them otherwise."""
        if len(names) != len(self.digests) or set(names) == set(self.digests):
            return self
        new_names = dict(zip(self.digests, names))
        triggers = [trigger.with_(name=new_names.get(trigger.name, trigger.name)) for trigger in self.not_finite]
        digests = {new_names[name]: digest for name, digest in self.digests.items()}
        bad = None if self._bad is None else {new_names.get(name, name) for name in self._bad}
        return StepOutcome(triggers, digests, (self.loss, self.loss_digest), self.norm, self.worst_loss, bad)

    def reproduced_trigger(self, captured: Trigger) -> Trigger | None:
        """Return the trigger by which the captured problem was seen again, or None."""
        return checks.matching_trigger(captured, self.not_finite, self.worst_loss, self.norm)

    def words(self, reproduced: Trigger | None) -> str:
        """Return a phrase for what was seen."""
        trigger = reproduced or next(iter(self.not_finite), None)
        return FINITE if trigger is None else in_words(trigger)

    def comparison(self, header: SnapshotHeader, names: set[str] | None = None) -> dict[str, Any]:
        """Compare gradients and loss with the snapshot's, of all parameters or of these."""
        digests, bad_values = (
            {name: saved[name] for name in saved if names is None or name in names}
            for saved in (header.gradient_digests, header.gradients)
        )
        same = {name for name in digests if self.digests.get(name) == digests[name]}
        different = [name for name in dict.fromkeys([*digests, *self.digests]) if name not in same]
        bad_before, loss = set(bad_values), (header.loss or {}).get("digest")
        return {
            "gradients": {
                "equal": len(same),
                "different": [name for name in different if name not in header.given_up][:MAX_DIFFERENT],
                "nonfinite_equal": bad_before == self.bad_gradients and bad_before <= same,
            },
            "loss": {
                "value": None if self.loss is None else self.loss.hex(),
                "equal": None if loss is None else loss == self.loss_digest,
            },
        }

    def is_same(self, header: SnapshotHeader, names: set[str] | None = None) -> bool:
        """Return whether trigger, gradients and loss are the captured ones; NaN gradients alone look alike."""
        outcome = self.renamed(list(header.gradient_digests))
        comparison = outcome.comparison(header, names)
        is_other = comparison["gradients"]["different"] or comparison["loss"]["equal"] is False
        return outcome.reproduced_trigger(header.trigger) is not None and not is_other


class RedoDriver:
    """Re-executes a captured step in this process: chooses the samples of each trial, and writes the result."""

    def __init__(self, capture: CaptureSession) -> None:
        redo = capture.settings.redo
        assert redo is not None
        self._capture = capture
        self._redo = redo
        self.mode = redo.mode
        self.path = own_snapshot(redo.snapshot, os.environ.get("RANK"))
        self._file: SnapshotFile | None = None
        self.problems: list[str] = []  # texts that are reported beside the result
        self.trials = 0  # of this process
        self.is_done = False  # the result is written
        lines = [line for line in redo.trials if isinstance(line, dict)]
        self.repeats_samples = any(line.get("filled") is True for line in lines)  # up to the size of a whole batch
        self._results = outcomes(redo.trials)
        # Of the trial of the whole batch, in this process or an earlier one: its result, and where in the step it ended
        # (0: at its update).
        self._whole: dict[str, Any] = next((line["whole"] for line in lines if "whole" in line), {})
        self.whole_place: int | None = next((line["place"] for line in lines if type(line.get("place")) is int), None)

    @property
    def writes_result(self) -> bool:
        """Whether this process writes the result; other ranks only take part."""
        return self.path == self._redo.snapshot

    @property
    def file(self) -> SnapshotFile:
        """The snapshot, read when it is first needed; raises SnapshotError."""
        if self._file is None:
            self._file = SnapshotFile(self.path)
        return self._file

    @property
    def header(self) -> SnapshotHeader:
        """The header of the snapshot."""
        return self.file.facts

    @property
    def is_whole_known(self) -> bool:
        """Whether the outcome of the whole batch is known."""
        return bool(self._results)

    def problem(self, text: str) -> None:
        """Report a text beside the result, once."""
        if text not in self.problems:
            self.problems.append(text)

    # Trials

    def next_samples(
        self, of: int, indices: Sequence[int] = (), is_excluded: Callable[[Samples], bool] = lambda samples: False
    ) -> Samples:
        """Return the samples of the next trial, first the whole batch; ends the process if nothing is left to try.

        ``indices`` are the samples' in the data set; ``is_excluded`` returns whether a part must not be tried.
        """
        whole = tuple(range(of))
        if self.mode != MINIMIZE or not self._results or not self.writes_result:
            return whole
        if not self._results.get(whole):
            unsearched = {"samples": list(whole), "of": of, "trials": len(self._results), "smallest": False}
            self.finish({**self._whole, "reproduced": False, **unsearched, "only_full": False})
        part, smallest = next_part(of, self._results, is_excluded)
        if part is not None:
            return part
        line = {
            **smallest.line(),
            "indices": [indices[sample] for sample in smallest.samples] if len(indices) == of else None,
        }
        problems = [*(self._whole.get("problems") or []), *[FILLED] * self.repeats_samples]
        return self.finish({**self._whole, "reproduced": True, **line, "problems": problems})

    def begin_trial(self, samples: Sequence[int]) -> None:
        """Report a trial that begins, as it may end the process."""
        if self.mode == MINIMIZE and self.writes_result:
            add_progress(self._redo.progress, {"running": list(samples)})

    def conclude_trial(
        self,
        samples: Sequence[int],
        of: int,
        outcome: StepOutcome,
        names: set[str] | None = None,
        ended: str | None = None,
        explain: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Conclude a trial; ``ended`` says why the script ended in it, if it did.

        In the search for a smaller batch another trial follows; else the process ends with the result.
        """
        outcome = outcome.renamed(list(self.header.gradient_digests))
        again = outcome.reproduced_trigger(self.header.trigger)
        trigger = again or next(iter(outcome.not_finite), None)
        result: dict[str, Any] = {
            "reproduced": again is not None,
            "framework": self.header.framework,
            "trigger": None if trigger is None else trigger.line(),
        }
        result.update(outcome.comparison(self.header, names))
        if self.mode == MINIMIZE:
            if not self._results:
                self._whole = {**result, "problems": self.problems}
            self.record_trial(samples, of, ended or outcome.words(again), reproduced=again is not None)
            return
        result["problems"] = self.problems
        if self.mode == EXPLAIN:
            result.update(explain())
        self.write(result)
        if ended is None:
            self._capture.end_process()

    def record_trial(self, samples: Sequence[int], of: int, why: str, *, reproduced: bool = False) -> None:
        """Record a trial of the search: whether it reproduced the step, and why."""
        self.trials += 1
        self._results[tuple(samples)] = reproduced
        text = f"trial {len(self._results)}: {len(samples)} of {of} samples: {why}"
        line: dict[str, Any] = {"text": text, "samples": list(samples), "reproduced": reproduced, "why": why}
        if len(self._results) == 1:
            line["whole"], line["place"] = self._whole, self.whole_place
        if self.writes_result:
            add_progress(self._redo.progress, line)

    def retry_with_repeats(self, samples: Sequence[int]) -> None:
        """Repeat samples up to a whole batch from the next process on, and try these samples once more."""
        if not self.repeats_samples and self.writes_result:
            add_progress(self._redo.progress, {"filled": True, "retry": list(samples)})

    # Ends

    def attempt(self, function: Callable[[], Any]) -> Any:
        """Return a function's result; its failure ends the process, as the step cannot be executed again."""
        try:
            return function()
        except SnapshotError as error:
            words = str(error)
        except Exception as error:
            text = " ".join(str(error).split())[:500]
            words = f"the step could not be executed again: {type(error).__name__}: {text}"
        return self.give_up(words)

    def require_end(self) -> None:
        """End the process at once if the script caught the exception that was to end it."""
        if self.is_done:
            sys.stdout.flush()
            os._exit(0)

    def give_up(self, text: str) -> NoReturn:
        """End the process with an error: the step cannot be executed again."""
        self.finish({"trouble": text, "reproduced": False})

    def finish(self, result: Mapping[str, Any]) -> NoReturn:
        """Write the result, and end the process."""
        self.write(result)
        self._capture.end_process()

    def write(self, result: Mapping[str, Any]) -> None:
        """Write the result atomically."""
        self.is_done = True
        if not self.writes_result:
            return
        partial = f"{self._redo.result}.{os.getpid()}"
        text = json.dumps({"format": FORMAT, "mode": self.mode, **plain(result)}, allow_nan=False)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text + "\n")
        os.rename(partial, self._redo.result)


# Progress: one line a trial, which the launcher shows and passes on to later processes


def add_progress(path: str | None, line: Mapping[str, Any]) -> None:
    """Append a line to the progress file; the launcher shows lines that have a text."""
    if path is not None:
        data = json.dumps(plain(line), allow_nan=False).encode() + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def outcomes(lines: Iterable[Any]) -> dict[Samples, bool]:
    """Return the results of earlier processes' trials; one that ended its process counts as not reproduced."""
    results: dict[Samples, bool] = {}
    for line in lines:
        if isinstance(line, dict) and isinstance(line.get("running"), list):
            results.setdefault(tuple(line["running"]), False)
        elif isinstance(line, dict) and isinstance(line.get("samples"), list):
            results[tuple(line["samples"])] = bool(line.get("reproduced"))
        elif isinstance(line, dict) and isinstance(line.get("retry"), list):
            results.pop(tuple(line["retry"]), None)
    return results


def own_snapshot(path: str, rank: str | None) -> str:
    """Return the snapshot of this process's own rank, if it lies beside the given one."""
    directory, _, name = path.rstrip("/").rpartition("/")
    step, mark, snapshot_rank = name.partition("-rank")
    if not mark or rank is None or not rank.isdecimal() or snapshot_rank.partition("-")[0] == rank:
        return path
    own_path = f"{directory}/{step}-rank{rank}"
    return own_path if os.path.isdir(own_path) else path


# The search for a smaller batch


@dataclass(frozen=True)
class SmallestPart:
    """The smallest part of a batch that is known to reproduce the step."""

    samples: Samples
    of: int
    trials: int
    smallest: bool  # no sample of it can be left out; False: the search has not come to its end

    @property
    def only_full(self) -> bool:
        """Whether no smaller part than the whole batch reproduces the step."""
        return self.smallest and len(self.samples) == self.of

    def line(self) -> dict[str, object]:
        """Return the fields as in result.json."""
        return {**vars(self), "samples": list(self.samples), "only_full": self.only_full}


def next_part(
    count: int,
    results: Mapping[Samples, bool],
    is_excluded: Callable[[Samples], bool] = lambda samples: False,
    max_trials: int = MAX_TRIALS,
) -> Next:
    """Return the part to try next, None at the end of the search, and the smallest part known to reproduce the step.

    The whole batch is assumed to reproduce it; ``results`` has the other tried parts; ``is_excluded`` rules out parts.
    """
    best, parts = tuple(range(count)), 2
    while len(best) > 1:
        for part, following in _smaller(best, min(parts, len(best))):
            if part not in results and not is_excluded(part):
                next_samples = part if len(results) < max_trials else None
                return next_samples, SmallestPart(best, count, len(results), smallest=False)
            if results.get(part):
                best, parts = part, following
                break
        else:
            if parts >= len(best):
                break
            parts *= 2
    return None, SmallestPart(best, count, len(results), smallest=True)


def _smaller(samples: Samples, parts: int) -> Iterator[tuple[Samples, int]]:
    """Yield each of so many equal parts, then the complement of each; with each, into how many to split it next."""
    size, more = divmod(len(samples), parts)
    ends = [(number + 1) * size + min(number + 1, more) for number in range(parts)]
    chunks = [(start, end) for start, end in zip([0, *ends], ends)]
    for start, end in chunks:
        yield samples[start:end], 2
    for start, end in chunks if parts > 2 else ():  # of two parts, each is the complement of the other
        yield samples[:start] + samples[end:], max(parts - 1, 2)
