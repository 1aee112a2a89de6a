"""Presents the ledger of samples: what epochs gave, one step, one sample, or all of it as a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from reprokit import sample_ledgers
from reprokit.errors import NoLedger, NotInLedger
from reprokit.printable import printable
from reprokit.rundir import RunDirectory
from reprokit.sample_ledgers import Sample, SampleBatch, SampleStep
from reprokit.screen import Cells, print_rows
from reprokit.verify.compare.divergences import counted
from reprokit.verify.compare.samples import BATCHES, EpochCoverage, counted_as, coverage

FORMAT = 1
LISTED = 200  # rows on the screen; a JSON document has all
MAX_FOUND = 100_000  # places of one sample
COLUMNS = ("process", "optimizer", "step", "loader", "epoch", "worker", "number", "sample")


@dataclass(frozen=True)
class LedgerPlace:
    """A batch of a step of a process."""

    process: str
    step: SampleStep
    batch: SampleBatch

    @property
    def where(self) -> str:
        """The step, for people."""
        return f"step {self.step.number:,} of {self.step.optimizer} of process {self.process}"

    @property
    def source(self) -> str:
        """The loader, for people."""
        batch = self.batch
        worker = f", batch {batch.number:,} of worker {batch.worker}" if batch.worker is not None else ""
        return f"{batch.loader.name}, epoch {batch.epoch:,}{worker}"


def places(run: RunDirectory) -> Iterator[LedgerPlace]:
    """Yield every batch of every step; raises NoLedger where nothing was recorded."""
    found = sample_ledgers.ledgers(run)
    if not found:
        why = "no step of an optimizer that is watched followed a batch of a DataLoader or of Keras' fit"
        trail = run.run.trail
        reason = why if trail is None or trail.is_on else f"trail {trail.words}"
        raise NoLedger(f"{run.path} has no ledger of samples ({reason}); 'reprokit record' keeps one")
    for ledger in found:
        for step in ledger.read():
            if isinstance(step, SampleStep):
                for batch in step.batches:
                    yield LedgerPlace(ledger.process, step, batch)


def of_step(run: RunDirectory, number: int) -> list[LedgerPlace]:
    """Return the batches of this step of every optimizer; raises NotInLedger where there is none."""
    found, last = [], -1
    for place in places(run):
        last = max(last, place.step.number)
        if place.step.number == number:
            found.append(place)
    if not found:
        raise NotInLedger(f"{run.path} has no samples of step {number:,}; the last step that has is {last:,}")
    return found


def of_sample(run: RunDirectory, text: str) -> list[LedgerPlace]:
    """Return the batches that hold this sample; raises NotInLedger where none does."""
    wanted: set[Sample] = {text, *([int(text)] if text.isascii() and text.isdecimal() and len(text) < 20 else [])}
    found, example, most = [], None, -1
    for place in places(run):
        samples = place.batch.samples
        if not wanted.isdisjoint(samples):
            found.append(place)
        elif samples:
            example = samples[0]
            most = max([most, *(sample for sample in samples if isinstance(sample, int))])
        if len(found) >= MAX_FOUND:
            break
    if not found:
        known = f"indices go up to {most:,}" if most >= 0 else f"one that was is {example!r}"
        raise NotInLedger(f"{run.path}: no step had the sample {text!r}; {known}")
    return found


def record(place: LedgerPlace) -> dict[str, Any]:
    """Return a batch as JSON has it."""
    batch = place.batch
    return {
        "process": place.process,
        "optimizer": place.step.optimizer,
        "step": place.step.number,
        "loader": batch.loader.name,
        "epoch": batch.epoch,
        "worker": batch.worker,
        "number": batch.number,
        "digest": batch.is_digest,
        "samples": list(batch.samples),
    }


def document(found: Sequence[LedgerPlace]) -> dict[str, Any]:
    """Return batches as a JSON document."""
    return {"format": FORMAT, "batches": [record(place) for place in found]}


def print_step(found: Sequence[LedgerPlace]) -> None:
    """Print the samples of a step."""
    rows = [Cells((place.where, place.source, " ".join(map(str, place.batch.samples)))) for place in found[:LISTED]]
    more = [f"and {len(found) - LISTED:,} more: --json has all"] if len(found) > LISTED else []
    print_rows(f"step {found[0].step.number:,}: {counted_as(len(found), BATCHES)}", rows, more)


def print_sample(found: Sequence[LedgerPlace]) -> None:
    """Print where a sample was."""
    rows = [Cells((place.where, place.source)) for place in found[:LISTED]]
    more = [f"and {len(found) - LISTED:,} more: --json has all"] if len(found) > LISTED else []
    print_rows(f"in {counted_as(len(found), BATCHES)}", rows, more)


@dataclass(frozen=True)
class LedgerOverview:
    """What the epochs of a training gave."""

    runs: tuple[Path, ...]
    steps: int
    epochs: tuple[EpochCoverage, ...]

    @property
    def findings(self) -> list[EpochCoverage]:
        """Epochs that gave samples twice or not at all."""
        return [row for row in self.epochs if row.is_finding]


def overview(runs: Sequence[RunDirectory]) -> LedgerOverview:
    """Return what the epochs of one run gave, or of several, each of which resumes the one before."""
    steps, last = 0, None
    for run in runs:
        for place in places(run):
            steps += place.step is not last
            last = place.step
    return LedgerOverview(tuple(run.path for run in runs), steps, tuple(coverage(runs)))


def overview_document(found: LedgerOverview) -> dict[str, Any]:
    """Return it as a JSON document."""
    names = ("run", "process", "epoch", "batches", "drawn", "distinct", "repeated", "most", "never", "resumed")
    rows = [
        {
            **msgspec.to_builtins(row.loader),
            "loader": row.loader.name,
            **{name: getattr(row, name) for name in names},
            "digests": row.is_digest,
            "whole": row.is_whole,
            "finding": row.is_finding,
            "text": row.words,
        }
        for row in found.epochs
    ]
    return {"format": FORMAT, "runs": list(map(str, found.runs)), "steps": found.steps, "epochs": rows}


def print_overview(found: LedgerOverview) -> None:
    """Print a row for each epoch, findings first where there are too many."""
    count = len(found.findings)
    verdict = "nothing seen twice or left out" if not count else f"{counted_as(count, ('epoch', 'epochs'))} to look at"
    shown = found.epochs if len(found.epochs) <= LISTED else (*found.findings, *found.epochs)[:LISTED]
    rows = [Cells(_cells(row), "bold red" if row.is_finding else "") for row in shown]
    more = [f"and {len(found.epochs) - LISTED:,} more: --json has all"] if len(found.epochs) > LISTED else []
    names = ", ".join(map(str, found.runs))
    print_rows(f"{verdict}: {names}, {counted(found.steps)}", rows, more, "bold red" if count else "bold green")


def _cells(row: EpochCoverage) -> tuple[str, ...]:
    size = f" of {row.loader.samples:,}" if row.loader.samples is not None else ""
    given = f"{counted_as(row.drawn, row.unit)}{size}"
    return (f"process {row.process}", f"{row.loader.name}, epoch {row.epoch:,}", given, row.words)


def write(run: RunDirectory, file: IO[str], *, as_csv: bool) -> int:
    """Write a line for each sample of each step, and return how many there are."""
    table = csv.writer(file, lineterminator="\n")
    if as_csv:
        table.writerow(COLUMNS)
    count = 0
    for place in places(run):
        batch = place.batch
        head = (place.process, place.step.optimizer, place.step.number, batch.loader.name, batch.epoch)
        for sample in batch.samples:
            shown = printable(sample) if isinstance(sample, str) else sample
            row = (*head, batch.worker, batch.number, shown)
            if as_csv:
                table.writerow(row)
            else:
                file.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")
            count += 1
    return count
