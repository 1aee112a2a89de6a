"""Compares the samples of each step of two runs, and counts how often the epochs of one run yield each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import msgspec

from reprokit.core.difference import Difference, Role, Side, Verdict, different, group, information
from reprokit.core.printable import listed
from reprokit.run_files import ledgers as sample_ledgers
from reprokit.run_files.ledgers import (
    BatchUse,
    EpochDone,
    LedgerEvent,
    ProcessLedger,
    Sample,
    SampleBatch,
    SampleLoader,
    SampleStep,
)
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify import verdict
from reprokit.verify.categories.divergence_words import counted
from reprokit.verify.categories.match import RunPair
from reprokit.verify.categories.resumption import Resumption
from reprokit.verify.read.scan import natural

NAME = "samples"
MAX_COUNTED = 1 << 22  # distinct samples counted at a time
SAMPLES, BATCHES = ("sample", "samples"), ("batch", "batches")
DRAWN = (
    "its model was called with other tensors than were fetched, or not with all, or updates are not seen, "
    "so which it used is not known"
)


# ---- two runs ----------------------------------------------------------------------------------------------


def compare(runs: RunPair, resumptions: Mapping[tuple[str, str], Resumption]) -> Difference:
    """Return a leaf for each optimizer of each process; a resumed one is compared from where it resumes."""
    ledgers = [{ledger.process: ledger for ledger in sample_ledgers.ledgers(run)} for run in runs.directories]
    if any(ledgers) and not all(ledgers):
        return group(NAME, (information("ledgers", *("recorded" if found else "" for found in ledgers)),))
    leaves = []
    for process in sorted(ledgers[0].keys() & ledgers[1].keys(), key=natural):
        left, right = ledgers[0][process], ledgers[1][process]
        for optimizer in sorted(_optimizers(left) & _optimizers(right), key=natural):
            title = f"samples of {optimizer} of process {process}"
            found = resumptions.get((process, optimizer))
            leaf = _compared(title, optimizer, left, right, found)
            is_unaligned = bool(resumptions) and found is None  # no trail shows from which step it resumes
            leaves.append(replace(leaf, role=Role.CONSEQUENCE) if is_unaligned and leaf.verdict.differs else leaf)
    return group(NAME, tuple(leaves))


def _optimizers(ledger: ProcessLedger) -> set[str]:
    return {step.optimizer for step in _all_steps(ledger)}


def _steps(ledger: ProcessLedger, optimizer: str) -> Iterator[SampleStep]:
    return (step for step in _all_steps(ledger) if step.optimizer == optimizer)


def _all_steps(ledger: ProcessLedger) -> Iterator[SampleStep]:
    return (step for step in ledger.read() if isinstance(step, SampleStep))


def _aligned_steps(
    ledger: ProcessLedger, optimizer: str, resumption: Resumption | None, is_right: bool
) -> Iterator[SampleStep]:
    """Yield steps numbered as in the uninterrupted run, from where the resumed one begins."""
    for step in _steps(ledger, optimizer):
        if resumption is None:
            yield step
        elif is_right is resumption.is_right:
            yield msgspec.structs.replace(step, number=step.number + resumption.steps)
        elif step.number >= resumption.steps:
            yield step


def _pairs(
    left: ProcessLedger, right: ProcessLedger, optimizer: str, resumption: Resumption | None
) -> Iterator[tuple[SampleStep, SampleStep]]:
    """Yield pairs of the steps that both runs took; skipped batches of a resumed run's first step are removed."""
    steps_of_both = (_aligned_steps(ledger, optimizer, resumption, ledger is right) for ledger in (left, right))
    is_first = resumption is not None
    for left_step, right_step in zip(*steps_of_both, strict=False):
        if not is_first:
            yield left_step, right_step
            continue
        count, is_first = min(len(left_step.batches), len(right_step.batches)), False
        trimmed = [msgspec.structs.replace(step, batches=step.batches[-count:]) for step in (left_step, right_step)]
        yield trimmed[0], trimmed[1]


def _compared(
    title: str, optimizer: str, left: ProcessLedger, right: ProcessLedger, resumption: Resumption | None
) -> Difference:
    """Return a leaf for the steps that both runs took; further steps of one are the trail's to report."""
    first_pair: tuple[SampleStep, SampleStep] | None = None
    steps = differing = 0
    for left_step, right_step in _pairs(left, right, optimizer, resumption):
        steps += 1
        if left_step.number != right_step.number or _samples_of_batches(left_step) != _samples_of_batches(right_step):
            differing += 1
            first_pair = first_pair or (left_step, right_step)
    if first_pair is None:
        text = counted(steps)
        return Difference(title, Verdict.IDENTICAL, text, text)
    meaning, figures = _divergence(*first_pair, right, resumption)
    left_text, right_text = (listed(list(map(str, step.samples)), 8, " ") for step in first_pair)
    figures.update(steps=steps, differing_steps=differing)
    counts = f"; in {differing:,} of {counted(steps)}"
    return different(title, left_text, right_text, f"{title}: {meaning}{counts}", figures=figures)


def _samples_of_batches(step: SampleStep) -> list[Sequence[Sample]]:
    return [batch.samples for batch in step.batches]


def _divergence(
    left: SampleStep, right: SampleStep, ledger: ProcessLedger, resumption: Resumption | None
) -> tuple[str, dict[str, Any]]:
    """Describe the first differing step, and when the right run saw the samples of the left one."""
    step, samples = min(left.number, right.number), left.samples
    missing_samples = Counter(samples) - Counter(right.samples)
    count = missing_samples.total()
    figures: dict[str, Any] = {"step": step, "samples": len(samples), "differing_samples": count}
    if left.number != right.number:
        return f"step {step:,} has a batch in one run only", figures
    if not count:
        return f"batch of step {step:,} has the same samples in another order, or more of them", figures
    steps_seen = _first_steps(set(missing_samples), left, ledger, resumption)
    figures.update(
        seen_at=[min(steps_seen.values()), max(steps_seen.values())] if steps_seen else None,
        never=len(missing_samples) - len(steps_seen),
    )
    is_digest = all(batch.is_digest for batch in left.batches)
    amount = "" if is_digest else f": {count:,} of {len(samples):,} samples"
    return (
        f"batch of step {step:,} differs{amount}; {_steps_in_words(len(missing_samples), steps_seen, is_digest)}",
        figures,
    )


def _first_steps(
    samples: set[Sample], left_step: SampleStep, ledger: ProcessLedger, resumption: Resumption | None
) -> dict[Sample, int]:
    """Return the first step in the same epoch at which the run saw each of these samples.

    A resumed run counts its epochs anew: then all compared steps count.
    """
    epochs = {(batch.loader.name, batch.epoch) for batch in left_step.batches}
    steps_seen: dict[Sample, int] = {}
    for step in _aligned_steps(ledger, left_step.optimizer, resumption, True):
        for batch in step.batches:
            if resumption is not None or (batch.loader.name, batch.epoch) in epochs:
                for sample in samples.intersection(batch.samples):
                    steps_seen.setdefault(sample, step.number)
    return steps_seen


def _steps_in_words(count: int, steps_seen: dict[Sample, int], is_digest: bool) -> str:
    pronoun = "it" if is_digest else "them"
    if not steps_seen:
        return f"the other run never saw {pronoun} in that epoch"
    low, high = min(steps_seen.values()), max(steps_seen.values())
    steps = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
    part = f" {len(steps_seen):,} of" if len(steps_seen) < count else ""
    return f"the other run saw{part} {pronoun} at {steps}"


def step_of(category: Difference) -> int | None:
    """Return the first step at which samples differ; None if none do."""
    first = category.first()
    return None if first is None else first.figures["step"]


# ---- one run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochCoverage:
    """How often one epoch of a data loader yielded each sample."""

    run: int  # index of the run in which it ended
    process: str
    loader: SampleLoader
    epoch: int
    batches: int
    drawn: int  # samples; batches if only their digests are known
    distinct: int | None  # None: too many to count
    repeated: int = 0  # samples yielded more than once
    most: int = 1  # how often the most frequent sample was yielded
    is_digest: bool = False
    is_whole: bool = False  # whether the loader was exhausted
    resumed: bool = False  # begun in one run and resumed in the next
    is_drawn: bool = False  # of some samples it is only known that they were drawn before a step
    uses: Mapping[BatchUse, int] = field(default_factory=dict)  # number of batches of which an update had so much

    @property
    def never(self) -> int | None:
        """Return how many samples of the data set were not yielded; None if its size is unknown."""
        size = None if self.is_digest else self.loader.samples
        return None if size is None or self.distinct is None else max(size - self.distinct, 0)

    @property
    def is_finding(self) -> bool:
        """Return whether samples were repeated or missing, although each was due once."""
        if self.loader.replacement:
            return False
        may_repeat = self.is_digest and not (self.is_whole or self.resumed)  # a data set without an end
        is_short = self.is_whole and (self.never or 0) > self.loader.left_over
        return is_short or (bool(self.repeated) and not may_repeat)

    @property
    def is_complete(self) -> bool:
        """Whether it is known that each sample of the data set was drawn once; of digests of batches it is not."""
        return self.is_whole and not self.is_digest and not self.repeated and self.never == 0

    @property
    def is_used(self) -> bool:
        """Whether updates are known to have had all samples of all batches."""
        return self.uses.get(BatchUse.WHOLLY, 0) == self.batches

    @property
    def unit(self) -> tuple[str, str]:
        """Return singular and plural of what is counted."""
        return BATCHES if self.is_digest else SAMPLES

    @property
    def words(self) -> str:
        """Return a description of the epoch."""
        how_often = "twice" if self.most == 2 else f"up to {self.most:,} times"
        verb = "seen" if self.is_used else "drawn"
        parts = [f"{counted_as(self.repeated, self.unit)} {verb} {how_often}"] if self.repeated else []
        if self.distinct is None:
            return f"more than {MAX_COUNTED:,} samples are not counted"
        unknown = self.batches - self.drawn if self.is_digest else 0
        if unknown > 0:
            return f"of {unknown:,} of {counted_as(self.batches, BATCHES)} the samples are not known"
        if self.loader.replacement:
            return "; ".join(["sampled with replacement", *parts])
        if self.is_finding:
            return ", ".join([*parts, *([f"{self.never:,} never"] if self.never else [])])
        if not self.is_whole:
            return "broken off" if not self.resumed else "gone on with where it was broken off"
        left_over = f"; {self.never:,} fill no batch" if self.never else ""
        return f"{verdict.coverage_words(self.batches, self.uses)}{left_over}"


def counted_as(count: int, unit: tuple[str, str]) -> str:
    """Return a number with its unit."""
    return f"{count:,} {unit[count != 1]}"


class _OpenEpoch:
    """An epoch whose samples are still being counted."""

    def __init__(self, run: int, process: str, loader: SampleLoader, epoch: int) -> None:
        self.process, self.loader, self.epoch = process, loader, epoch
        self.current = run, epoch  # the run that continues it, and the epoch's number there
        self.counts: Counter[Sample] | None = Counter()
        self.batches: list[SampleBatch] = []
        self.uses: Counter[BatchUse] = Counter()
        self.is_whole = self.resumed = self.is_drawn = False

    def add(self, batch: SampleBatch) -> None:
        self.batches.append(batch)
        self.uses[batch.use] += 1
        if self.counts is not None:
            self.counts.update(batch.samples)
            if len(self.counts) > MAX_COUNTED:
                self.counts = None

    def resume(self, run: int, first: SampleBatch) -> None:
        """Continue in another run; steps repeated from its checkpoint count once."""
        self.current, self.resumed = (run, first.epoch), True
        before = list(takewhile(lambda batch: batch.samples != first.samples, self.batches))
        if len(before) < len(self.batches) and self.counts is not None:
            self.batches, self.counts, self.uses = [], Counter(), Counter()
            for batch in before:
                self.add(batch)

    def coverage(self) -> EpochCoverage:
        is_digest = any(batch.is_digest for batch in self.batches)  # of the others, too, only batches are counted
        groups = [tuple(batch.samples) for batch in self.batches if is_digest and batch.samples]
        counts = Counter[Any](groups) if is_digest else self.counts
        repeated_counts = [] if counts is None else [count for count in counts.values() if count > 1]
        return EpochCoverage(
            self.current[0],
            self.process,
            self.loader,
            self.epoch,
            len(self.batches),
            len(groups) if is_digest else sum(len(batch.samples) for batch in self.batches),
            None if counts is None else len(counts),
            len(repeated_counts),
            max(repeated_counts, default=1),
            is_digest,
            self.is_whole,
            self.resumed,
            self.is_drawn,
            dict(self.uses),
        )


def coverage(runs: Sequence[RunDirectory]) -> list[EpochCoverage]:
    """Return the coverage of each epoch; each of several runs resumes the previous one."""
    coverages: list[EpochCoverage] = []
    open_epochs: dict[tuple[str, str], _OpenEpoch] = {}
    for number, run in enumerate(runs):
        for ledger in sample_ledgers.ledgers(run):
            exhausted: set[tuple[str, int]] = set()
            for event in ledger.read():
                _count_event(number, ledger.process, event, open_epochs, coverages, exhausted)
    coverages += [epoch.coverage() for epoch in open_epochs.values()]
    return sorted(coverages, key=lambda row: (natural(row.process), natural(row.loader.name), row.run, row.epoch))


def _count_event(
    run: int,
    process: str,
    event: LedgerEvent,
    open_epochs: dict[tuple[str, str], _OpenEpoch],
    coverages: list[EpochCoverage],
    exhausted: set[tuple[str, int]],
) -> None:
    """Count a step or the end of an epoch; an epoch ends when the next one of its loader begins.

    Where a loop fetches ahead, its loader may be ``exhausted`` before the first step with one of the epoch's batches.
    """
    if isinstance(event, EpochDone):
        exhausted.add((event.loader.name, event.epoch))
        epoch = open_epochs.get((process, event.loader.name))
        if epoch is not None and epoch.current == (run, event.epoch):
            epoch.is_whole = True
        return
    for batch in event.batches:
        key = process, batch.loader.name
        epoch = open_epochs.get(key)
        if epoch is not None and epoch.current[0] < run and not epoch.is_whole:
            epoch.resume(run, batch)
        elif epoch is None or epoch.current != (run, batch.epoch):
            if epoch is not None:
                coverages.append(epoch.coverage())
            epoch = open_epochs[key] = _OpenEpoch(run, process, batch.loader, batch.epoch)
        epoch.is_whole = epoch.is_whole or (batch.loader.name, batch.epoch) in exhausted
        epoch.is_drawn = epoch.is_drawn or (isinstance(event, SampleStep) and event.is_drawn)
        epoch.add(batch)


def findings(runs: Sequence[RunDirectory]) -> list[EpochCoverage]:
    """Return the epochs with repeated or missing samples."""
    return [row for row in coverage(runs) if row.is_finding]


def notes(run: RunDirectory, side: Side) -> Iterator[str]:
    """Yield findings of a run, which equality with another run does not show: both may have the same fault."""
    if empty := sample_ledgers.never_begun(run):
        yield f"of the {side} run, ledgers are empty, as the disk had no room to begin them: {listed(empty, 3)}"
    if drawn := sum(step.is_drawn for ledger in sample_ledgers.ledgers(run) for step in _all_steps(ledger)):
        yield f"of the {side} run, samples of {counted(drawn)} are what was drawn before: {DRAWN}"
    for row in findings([run]):
        yield f"of the {side} run, epoch {row.epoch:,} of {row.loader.name} of process {row.process}: {row.words}"
