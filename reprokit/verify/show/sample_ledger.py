"""Presents the ledger of samples: epochs, one step, one sample, or everything as a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from reprokit.core.errors import NoLedger, NotInLedger
from reprokit.core.printable import printable
from reprokit.core.screen import Cells, print_rows
from reprokit.run_files import ledgers as sample_ledgers
from reprokit.run_files.ledgers import BatchUse, Sample, SampleBatch, SampleStep
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.divergence_words import counted
from reprokit.verify.categories.samples import BATCHES, DRAWN, EpochCoverage, counted_as, coverage
from reprokit.verify.verdict import epochs_headline

FORMAT = 1
LISTED = 200  # rows on a terminal; a JSON document has all
MAX_FOUND = 100_000  # places listed for one sample
COLUMNS = ("process", "optimizer", "step", "loader", "epoch", "worker", "number", "sample", "drawn", "use")
USES = {
    BatchUse.UNWATCHED: "whether it reached the update is not known",
    BatchUse.UNSEEN: "not seen to reach the update",
    BatchUse.REACHED: "reached the update, with samples that are not known",
    BatchUse.PARTLY: "reached the update in part",
    BatchUse.WHOLLY: "reached the update",
}


@dataclass(frozen=True)
class LedgerPlace:
    """A batch used in a step of a process."""

    process: str
    step: SampleStep
    batch: SampleBatch

    @property
    def where(self) -> str:
        """Return the step, in words."""
        before = "before " if self.step.is_drawn else ""
        return f"{before}step {self.step.number:,} of {self.step.optimizer} of process {self.process}"

    @property
    def source(self) -> str:
        """Return the loader, in words."""
        batch = self.batch
        worker = f", batch {batch.number:,} of worker {batch.worker}" if batch.worker is not None else ""
        return f"{batch.loader.name}, epoch {batch.epoch:,}{worker}"


def places(run: RunDirectory) -> Iterator[LedgerPlace]:
    """Yield every batch of every step; raise NoLedger if nothing was recorded."""
    ledgers = sample_ledgers.ledgers(run)
    if not ledgers:
        no_batches = "no step of an optimizer that is watched followed a batch of a DataLoader or of Keras' fit"
        trail = run.run.trail
        reason = no_batches if trail is None or trail.is_on else f"trail {trail.words}"
        if sample_ledgers.never_begun(run):
            reason = "there was no room on the disk to begin it"
        raise NoLedger(f"{run.path} has no ledger of samples ({reason}); 'reprokit record' keeps one")
    for ledger in ledgers:
        for step in ledger.read():
            if isinstance(step, SampleStep):
                for batch in step.batches:
                    yield LedgerPlace(ledger.process, step, batch)


def of_step(run: RunDirectory, number: int) -> list[LedgerPlace]:
    """Return the batches of this step of every optimizer; raise NotInLedger if there is none."""
    places_found, last = [], -1
    for place in places(run):
        last = max(last, place.step.number)
        if place.step.number == number:
            places_found.append(place)
    if not places_found:
        raise NotInLedger(f"{run.path} has no samples of step {number:,}; the last step that has is {last:,}")
    return places_found


def of_sample(run: RunDirectory, text: str) -> list[LedgerPlace]:
    """Return the batches with this sample; raise NotInLedger if there is none."""
    forms: set[Sample] = {text, *([int(text)] if text.isascii() and text.isdecimal() and len(text) < 20 else [])}
    places_found, example, highest = [], None, -1
    for place in places(run):
        samples = place.batch.samples
        if not forms.isdisjoint(samples):
            places_found.append(place)
        elif samples:
            example = samples[0]
            highest = max([highest, *(sample for sample in samples if isinstance(sample, int))])
        if len(places_found) >= MAX_FOUND:
            break
    if not places_found:
        hint = f"indices go up to {highest:,}" if highest >= 0 else f"one that was is {example!r}"
        raise NotInLedger(f"{run.path}: no step had the sample {text!r}; {hint}")
    return places_found


def record(place: LedgerPlace) -> dict[str, Any]:
    """Return a batch for a JSON document."""
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
        "drawn": place.step.is_drawn,
        "use": batch.use.name.lower(),
    }


def document(places_found: Sequence[LedgerPlace]) -> dict[str, Any]:
    """Return batches as a JSON document."""
    return {"format": FORMAT, "batches": [record(place) for place in places_found]}


def print_step(places_found: Sequence[LedgerPlace]) -> None:
    """Print the samples of a step."""
    rows = [
        Cells((place.where, place.source, USES[place.batch.use], " ".join(map(str, place.batch.samples))))
        for place in places_found[:LISTED]
    ]
    footer = [f"and {len(places_found) - LISTED:,} more: --json has all"] if len(places_found) > LISTED else []
    footer += [f"drawn before the step: {DRAWN}"] if any(place.step.is_drawn for place in places_found) else []
    print_rows(f"step {places_found[0].step.number:,}: {counted_as(len(places_found), BATCHES)}", rows, footer)


def print_sample(places_found: Sequence[LedgerPlace]) -> None:
    """Print the steps in which a sample was used."""
    rows = [Cells((place.where, place.source, USES[place.batch.use])) for place in places_found[:LISTED]]
    footer = [f"and {len(places_found) - LISTED:,} more: --json has all"] if len(places_found) > LISTED else []
    print_rows(f"in {counted_as(len(places_found), BATCHES)}", rows, footer)


@dataclass(frozen=True)
class LedgerOverview:
    """The coverage of a training's epochs."""

    runs: tuple[Path, ...]
    steps: int
    epochs: tuple[EpochCoverage, ...]

    @property
    def findings(self) -> list[EpochCoverage]:
        """Return epochs with repeated or missing samples."""
        return [row for row in self.epochs if row.is_finding]


def overview(runs: Sequence[RunDirectory]) -> LedgerOverview:
    """Return the epochs of one run, or of several, each of which resumes the previous one."""
    steps, last = 0, None
    for run in runs:
        for place in places(run):
            steps += place.step is not last
            last = place.step
    return LedgerOverview(tuple(run.path for run in runs), steps, tuple(coverage(runs)))


def overview_document(overview: LedgerOverview) -> dict[str, Any]:
    """Return the overview as a JSON document."""
    names = ("run", "process", "epoch", "batches", "drawn", "distinct", "repeated", "most", "never", "resumed")
    rows = [
        {
            **msgspec.to_builtins(row.loader),
            "loader": row.loader.name,
            **{name: getattr(row, name) for name in names},
            "only_drawn": row.is_drawn,
            "uses": {use.name.lower(): row.uses.get(use, 0) for use in BatchUse},
            "digests": row.is_digest,
            "whole": row.is_whole,
            "finding": row.is_finding,
            "text": row.words,
        }
        for row in overview.epochs
    ]
    return {
        "format": FORMAT,
        "runs": list(map(str, overview.runs)),
        "steps": overview.steps,
        "epochs": rows,
    }


def print_overview(overview: LedgerOverview) -> None:
    """Print a row for each epoch; if there are too many, findings come first."""
    count = len(overview.findings)
    epochs = overview.epochs
    headline = (
        f"{counted_as(count, ('epoch', 'epochs'))} to look at"
        if count
        else epochs_headline(
            are_complete=all(row.is_complete for row in epochs), are_used=all(row.is_used for row in epochs)
        )
    )
    shown = overview.epochs if len(overview.epochs) <= LISTED else (*overview.findings, *overview.epochs)[:LISTED]
    rows = [Cells(_cells(row), "bold red" if row.is_finding else "") for row in shown]
    footer = [f"and {len(overview.epochs) - LISTED:,} more: --json has all"] if len(overview.epochs) > LISTED else []
    footer += [f"drawn before steps: {DRAWN}"] if any(row.is_drawn for row in overview.epochs) else []
    names = ", ".join(map(str, overview.runs))
    print_rows(f"{headline}: {names}, {counted(overview.steps)}", rows, footer, "bold red" if count else "bold green")


def _cells(epoch: EpochCoverage) -> tuple[str, ...]:
    size = f" of {epoch.loader.samples:,}" if epoch.loader.samples is not None and not epoch.is_digest else ""
    yielded = f"{counted_as(epoch.drawn, epoch.unit)}{size}"
    return (f"process {epoch.process}", f"{epoch.loader.name}, epoch {epoch.epoch:,}", yielded, epoch.words)


def write(run: RunDirectory, file: IO[str], *, as_csv: bool) -> int:
    """Write one line for each sample of each step, and return their number."""
    table = csv.writer(file, lineterminator="\n")
    if as_csv:
        table.writerow(COLUMNS)
    count = 0
    for place in places(run):
        batch = place.batch
        use = batch.use.name.lower()
        fields = (place.process, place.step.optimizer, place.step.number, batch.loader.name, batch.epoch)
        for sample in batch.samples:
            printable_sample = printable(sample) if isinstance(sample, str) else sample
            row = (*fields, batch.worker, batch.number, printable_sample, place.step.is_drawn, use)
            if as_csv:
                table.writerow(row)
            else:
                file.write(json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n")
            count += 1
    return count
