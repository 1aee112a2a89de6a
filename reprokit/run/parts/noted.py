"""Notes the first step whose loss is not finite (--on-nan note), at the end of a run, from the losses that it recorded.

The training is not touched: nothing of this runs in it.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reprokit.core.messages import say
from reprokit.core.printable import printable
from reprokit.model.plan import RECORD
from reprokit.run.part import Closing, RunPart
from reprokit.run.rundirectory import shown
from reprokit.run_files import numbers, trails
from reprokit.run_files.rundir import RunDirectory

LOSS, EPOCH = "loss", "epoch"
TENSORFLOW = "tensorflow"
TAKEN = {"torch", TENSORFLOW}  # of which `snapshot take` takes any step


class BadLoss(msgspec.Struct, frozen=True):
    """The first loss of a process that is not finite."""

    process: str
    number: int  # of the losses before it
    value: float
    count: int  # of the process's losses


class NotedPart(RunPart):
    """The first bad loss of a run."""

    _words = ""
    _step: int | None = None
    _is_taken = False

    def finish(self, closing: Closing) -> None:
        run = RunDirectory(closing.path)
        bad = min(_bad_losses(run), key=lambda bad: bad.number, default=None)
        seen = None if bad else min(bad_steps(run), default=None)
        if seen is not None:
            step, process, is_ruined = seen
            self._step, self._is_taken = step, not is_ruined
            what = "a weight behind it" if is_ruined else "what it returned, or a gradient,"
            self._words = f"step {step:,}: {what}{_of_process(process)} is not finite, the first that was seen"
        elif bad is None:
            self._words = _bad_epoch(run)
        else:
            updates = self._updates(run, bad)
            self._step = step_of(bad, updates)
            # Where losses are over, a GradScaler may have left out a step before this one: its number is a guess.
            self._words = _words(bad, self._step if updates and not bad.count % updates else None)
        if self._words:
            closing.warn(f"{self._words}; the training went on", "not-finite")

    def _updates(self, run: RunDirectory, bad: BadLoss) -> int:
        series = [each for trail in trails.read(run) for each in trail.series if each.process == bad.process]
        self._is_taken = bool(series) and {each.framework for each in series} <= TAKEN
        return max((each.count for each in series), default=0)

    def leave(self, closing: Closing) -> None:
        if not self._words or closing.plan.mode != RECORD:
            return
        say(f"to take the snapshot of this step: {shlex.join(self._command(closing.path))}")

    def _command(self, run: Path) -> list[str]:
        if not self._is_taken or self._step is None:
            return ["reprokit", "replay", "--on-nan", "capture", shown(run)]
        step = str(self._step)
        return ["reprokit", "snapshot", "take", shown(run), "--step", step, "-o", f"step-{step}"]


def step_of(bad: BadLoss, updates: int) -> int | None:
    """Return the step of a loss, if each step has equally many; the last one may be unfinished."""
    if not updates:
        return None
    passes = bad.count // updates
    return bad.number // passes if passes and bad.count - passes * updates <= passes else None


def _bad_losses(run: RunDirectory) -> Iterator[BadLoss]:
    """Yield the first loss that is not finite of each process that has one."""
    for process in numbers.read(run):
        counts: Counter[str] = Counter()
        first: tuple[int, float] | None = None
        for part in process.parts():
            if part.series.kind != LOSS:
                continue
            steps, values = part.columns()
            counts[part.series.name] += len(steps)
            if first is None and not all(map(math.isfinite, values)):
                first = next((step, value) for step, value in zip(steps, values, strict=True) if value - value != 0)
        if first is not None:
            yield BadLoss(process.process, first[0], first[1], sum(counts.values()))


def bad_steps(run: RunDirectory) -> Iterator[tuple[int, str, bool]]:
    """Yield the first step of each series in which TensorFlow had a number that is not finite, and its process.

    And whether that was a weight, which is looked at in some steps only.
    """
    for series in (each for trail in trails.read(run) for each in trail.series if each.framework == TENSORFLOW):
        step = next((step for step in series.steps() if step.not_finite or step.ruined), None)
        if step is not None:
            yield step.number, series.process, not step.not_finite


def _of_process(process: str) -> str:
    return f" of process {printable(process)}" if process not in ("", "0") else ""


def _words(bad: BadLoss, step: int | None) -> str:
    where = f"loss {bad.number:,} (they begin with 0)" if step is None else f"step {step:,}: the loss"
    return f"{where} is {bad.value}{_of_process(bad.process)}, the first that is not finite"


def _bad_epoch(run: RunDirectory) -> str:
    """Return which epoch first had a value that is not finite: where no loss of a step is known."""
    for line in run.metrics():
        values = line.get("values")
        if line.get("k") != EPOCH or not isinstance(values, dict):
            continue
        for name, value in values.items():
            if isinstance(value, dict) and "bits" in value and value.get("decimal") is None:
                return printable(f"epoch {line.get('epoch')} of {line.get('name')}: the {name} is not finite")
    return ""


PART = NotedPart
