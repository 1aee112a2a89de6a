"""Drives the trials of a captured step: to reproduce it, to make its batch smaller, to explain it.

How a step is executed, and on which part of its batch, a framework's part knows. It asks here which samples are wanted
next, and tells what came of them; the launcher reads the result and the progress.

The search for a smaller batch is bisection first, then ddmin of Zeller and Hildebrandt ("Simplifying and Isolating
Failure-Inducing Input", 2002): what is left at its end is 1-minimal, without any one of its samples it does not happen
any more. Nothing is tried twice.
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
MAX_DIFFERENT = 1000  # names of gradients that are told
MAX_TRIALS = 1000


class StepOutcome:
    """What an executed step came to, whatever its framework."""

    def __init__(
        self,
        not_finite: Sequence[Trigger | None] = (),
        digests: Mapping[str, str] | None = None,
        loss: tuple[float | None, str] = (None, ""),
        norm: float | None = None,
        worst_loss: float | None = None,
    ) -> None:
        self.not_finite = [trigger for trigger in not_finite if trigger is not None]
        self.digests = dict(digests or {})  # of all gradients, by name
        self.loss, self.loss_digest = loss
        self.norm = norm  # of all gradients
        self.worst_loss = self.loss if worst_loss is None else worst_loss

    @property
    def bad_gradients(self) -> set[str]:
        """The names of those that are not finite."""
        return {trigger.name for trigger in self.not_finite if trigger.kind == GRADIENT}

    def named_as(self, names: Sequence[str]) -> StepOutcome:
        """Return the same under other names, in their order: a script that makes fewer models gives others."""
        if len(names) != len(self.digests) or set(names) == set(self.digests):
            return self
        new = dict(zip(self.digests, names))
        triggers = [one.with_(name=new.get(one.name, one.name)) for one in self.not_finite]
        digests = {new[name]: digest for name, digest in self.digests.items()}
        return StepOutcome(triggers, digests, (self.loss, self.loss_digest), self.norm, self.worst_loss)

    def again(self, wanted: Trigger) -> Trigger | None:
        """Return what is there again of what was captured."""
        return checks.seen_again(wanted, self.not_finite, self.worst_loss, self.norm)

    def words(self, again: Trigger | None) -> str:
        """Return in a phrase what was seen."""
        seen = again or next(iter(self.not_finite), None)
        return FINITE if seen is None else in_words(seen)

    def compared(self, header: SnapshotHeader, about: set[str] | None = None) -> dict[str, Any]:
        """Return gradients and loss beside the snapshot's, of all parameters or of these."""
        kept, bad = (
            {name: known[name] for name in known if about is None or name in about}
            for known in (header.gradient_digests, header.gradients)
        )
        same = {name for name in kept if self.digests.get(name) == kept[name]}
        different = [name for name in dict.fromkeys([*kept, *self.digests]) if name not in same]
        before, loss = set(bad), (header.loss or {}).get("digest")
        return {
            "gradients": {
                "equal": len(same),
                "different": [name for name in different if name not in header.given_up][:MAX_DIFFERENT],
                "nonfinite_equal": before == self.bad_gradients and before <= same,
            },
            "loss": {
                "value": None if self.loss is None else self.loss.hex(),
                "equal": None if loss is None else loss == self.loss_digest,
            },
        }

    def is_same(self, header: SnapshotHeader, about: set[str] | None = None) -> bool:
        """Return whether it is what was captured; gradients that are NaN are the same whatever loss they are of."""
        outcome = self.named_as(list(header.gradient_digests))
        compared = outcome.compared(header, about)
        is_other = compared["gradients"]["different"] or compared["loss"]["equal"] is False
        return outcome.again(header.trigger) is not None and not is_other


class RedoDriver:
    """One captured step that is to be done again, as far as this process comes."""

    def __init__(self, capture: CaptureSession) -> None:
        redo = capture.settings.redo
        assert redo is not None
        self._capture = capture
        self._redo = redo
        self.mode = redo.mode
        self.path = own_snapshot(redo.snapshot, os.environ.get("RANK"))
        self._file: SnapshotFile | None = None
        self.problems: list[str] = []  # to be told beside the result
        self.trials = 0  # of this process
        self.is_done = False  # the result is written
        lines = [one for one in redo.trials if isinstance(one, dict)]
        self.fills = any(one.get("filled") is True for one in lines)  # samples stand for those that are left out
        self._known = outcomes(redo.trials)
        # Of the trial of the whole batch, in this process or an earlier one: the result, and where in the step it ended
        # (0: at its update).
        self._whole: dict[str, Any] = next((one["whole"] for one in lines if "whole" in one), {})
        self.whole_place: int | None = next((one["place"] for one in lines if type(one.get("place")) is int), None)

    @property
    def tells(self) -> bool:
        """Whether this process writes the result; other ranks only do their part."""
        return self.path == self._redo.snapshot

    @property
    def file(self) -> SnapshotFile:
        """The snapshot, which is read when it is needed first; raises SnapshotError."""
        if self._file is None:
            file = SnapshotFile(self.path)
            if not file.facts.trigger.is_of_known_condition:
                raise SnapshotError("the snapshot does not say which condition held; capture the step again")
            self._file = file
        return self._file

    @property
    def header(self) -> SnapshotHeader:
        """What the snapshot says of the step."""
        return self.file.facts

    @property
    def is_begun(self) -> bool:
        """Whether the outcome of the whole batch is known."""
        return bool(self._known)

    def problem(self, text: str) -> None:
        """Tell something beside the result, once."""
        if text not in self.problems:
            self.problems.append(text)

    # Trials

    def next(
        self, of: int, indices: Sequence[int] = (), leaves_out: Callable[[Samples], bool] = lambda samples: False
    ) -> Samples:
        """Return the samples to try next, first the whole batch; ends the process where nothing is left to try.

        ``indices`` are those of the samples in the data set; ``leaves_out`` tells parts that are not to be tried.
        """
        whole = tuple(range(of))
        if self.mode != MINIMIZE or not self._known or not self.tells:
            return whole
        if not self._known.get(whole):
            unsearched = {"samples": list(whole), "of": of, "trials": len(self._known), "smallest": False}
            self.finish({**self._whole, "reproduced": False, **unsearched, "only_full": False})
        wanted, found = next_part(of, self._known, leaves_out)
        if wanted is not None:
            return wanted
        line = {**found.line(), "indices": [indices[one] for one in found.samples] if len(indices) == of else None}
        problems = [*(self._whole.get("problems") or []), *[FILLED] * self.fills]
        return self.finish({**self._whole, "reproduced": True, **line, "problems": problems})

    def running(self, samples: Sequence[int]) -> None:
        """Tell of a trial that begins, which may end the process."""
        if self.mode == MINIMIZE and self.tells:
            add_progress(self._redo.progress, {"running": list(samples)})

    def came(
        self,
        samples: Sequence[int],
        of: int,
        outcome: StepOutcome,
        about: set[str] | None = None,
        ended: str | None = None,
        explain: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Take what a trial came to; ``ended`` tells that it was the end of the script, and why.

        In the search for a smaller batch another trial follows; else the process ends with the result.
        """
        outcome = outcome.named_as(list(self.header.gradient_digests))
        again = outcome.again(self.header.trigger)
        told = again or next(iter(outcome.not_finite), None)
        found: dict[str, Any] = {"reproduced": again is not None, "trigger": None if told is None else told.line()}
        found.update(outcome.compared(self.header, about))
        if self.mode == MINIMIZE:
            if not self._known:
                self._whole = {**found, "problems": self.problems}
            self.note(samples, of, ended or outcome.words(again), did=again is not None)
            return
        found["problems"] = self.problems
        if self.mode == EXPLAIN:
            found.update(explain())
        self.write(found)
        if ended is None:
            self._capture.done()

    def note(self, samples: Sequence[int], of: int, why: str, *, did: bool = False) -> None:
        """Note a trial of the search: whether it did the step again, and what came of it."""
        self.trials += 1
        self._known[tuple(samples)] = did
        text = f"trial {len(self._known)}: {len(samples)} of {of} samples: {why}"
        line: dict[str, Any] = {"text": text, "samples": list(samples), "reproduced": did, "why": why}
        if len(self._known) == 1:
            line["whole"], line["place"] = self._whole, self.whole_place
        if self.tells:
            add_progress(self._redo.progress, line)

    def fill(self, samples: Sequence[int]) -> None:
        """Keep the size of batches from the next process on, and try these samples once more."""
        if not self.fills and self.tells:
            add_progress(self._redo.progress, {"filled": True, "retry": list(samples)})

    # Ends

    def attempt(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns; its failure ends the process, as the step cannot be done again."""
        try:
            return function()
        except SnapshotError as error:
            words = str(error)
        except Exception as error:
            text = " ".join(str(error).split())[:500]
            words = f"the step could not be executed again: {type(error).__name__}: {text}"
        return self.trouble(words)

    def require_end(self) -> None:
        """End the process of a script that has caught the exception by which it was to end."""
        if self.is_done:
            sys.stdout.flush()
            os._exit(0)

    def trouble(self, text: str) -> NoReturn:
        """End the process, as the step cannot be done again."""
        self.finish({"trouble": text, "reproduced": False})

    def finish(self, found: Mapping[str, Any]) -> NoReturn:
        """Write the result, and end the process."""
        self.write(found)
        self._capture.done()

    def write(self, found: Mapping[str, Any]) -> None:
        """Write the result whole or not at all."""
        self.is_done = True
        if not self.tells:
            return
        partial = f"{self._redo.result}.{os.getpid()}"
        text = json.dumps({"format": FORMAT, "mode": self.mode, **plain(found)}, allow_nan=False)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(text + "\n")
        os.rename(partial, self._redo.result)


# What is told to the launcher of trials, a line for each, and known of those of earlier processes


def add_progress(path: str | None, line: Mapping[str, Any]) -> None:
    """Add a line; the launcher shows those that have a text."""
    if path is not None:
        data = json.dumps(plain(line), allow_nan=False).encode() + b"\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def outcomes(lines: Iterable[Any]) -> dict[Samples, bool]:
    """Return the trials that earlier processes made; one that ended its process did not reproduce anything."""
    known: dict[Samples, bool] = {}
    for line in lines:
        if isinstance(line, dict) and isinstance(line.get("running"), list):
            known.setdefault(tuple(line["running"]), False)
        elif isinstance(line, dict) and isinstance(line.get("samples"), list):
            known[tuple(line["samples"])] = bool(line.get("reproduced"))
        elif isinstance(line, dict) and isinstance(line.get("retry"), list):
            known.pop(tuple(line["retry"]), None)
    return known


def own_snapshot(path: str, rank: str | None) -> str:
    """Return the snapshot of this process's own rank, where it lies beside the one that was named."""
    directory, _, name = path.rstrip("/").rpartition("/")
    step, mark, named = name.partition("-rank")
    if not mark or rank is None or not rank.isdecimal() or named.partition("-")[0] == rank:
        return path
    beside = f"{directory}/{step}-rank{rank}"
    return beside if os.path.isdir(beside) else path


# The search for a smaller batch


@dataclass(frozen=True)
class SmallestPart:
    """What a search has come to."""

    samples: Samples
    of: int
    trials: int
    smallest: bool  # no sample of it can be left out; False: the search has not come to its end

    @property
    def only_full(self) -> bool:
        """Whether it takes all samples of the batch."""
        return self.smallest and len(self.samples) == self.of

    def line(self) -> dict[str, object]:
        """As it stands in result.json."""
        return {**vars(self), "samples": list(self.samples), "only_full": self.only_full}


def next_part(
    count: int,
    known: Mapping[Samples, bool],
    leaves_out: Callable[[Samples], bool] = lambda samples: False,
    max_trials: int = MAX_TRIALS,
) -> Next:
    """Return the part to try next, which is None at the end of the search, and the smallest that is known to do it.

    The whole batch is taken for doing it; ``known`` tells of other parts; ``leaves_out`` tells those not to be tried.
    """
    best, parts = tuple(range(count)), 2
    while len(best) > 1:
        for part, following in _smaller(best, min(parts, len(best))):
            if part not in known and not leaves_out(part):
                wanted = part if len(known) < max_trials else None
                return wanted, SmallestPart(best, count, len(known), smallest=False)
            if known.get(part):
                best, parts = part, following
                break
        else:
            if parts >= len(best):
                break
            parts *= 2
    return None, SmallestPart(best, count, len(known), smallest=True)


def _smaller(samples: Samples, parts: int) -> Iterator[tuple[Samples, int]]:
    """The samples in so many parts, as equal as can be, then all but one part; and how many parts follow on each."""
    size, more = divmod(len(samples), parts)
    ends = [(number + 1) * size + min(number + 1, more) for number in range(parts)]
    chunks = [(start, end) for start, end in zip([0, *ends], ends)]
    for start, end in chunks:
        yield samples[start:end], 2
    for start, end in chunks if parts > 2 else ():  # of two each is the other's rest
        yield samples[:start] + samples[end:], max(parts - 1, 2)
