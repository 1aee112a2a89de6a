"""Compares the samples of each step of two runs, and counts for one run how often its epochs gave each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from reprokit import sample_ledgers
from reprokit.difference import Difference, Role, Side, Verdict, different, group, information
from reprokit.printable import listed
from reprokit.rundir import RunDirectory
from reprokit.sample_ledgers import EpochDone, ProcessLedger, Sample, SampleLoader, SampleStep
from reprokit.verify.compare.divergences import counted
from reprokit.verify.compare.match import RunPair
from reprokit.verify.compare.resumption import Resumption
from reprokit.verify.read.scan import natural

NAME = "samples"
MAX_COUNTED = 1 << 22  # different samples that are counted at once
SAMPLES, BATCHES = ("sample", "samples"), ("batch", "batches")


# ---- two runs ----------------------------------------------------------------------------------------------


def compare(runs: RunPair, resumed: Mapping[tuple[str, str], Resumption]) -> Difference:
    """Return a leaf for each optimizer of each process; a resumed one is compared from where it goes on."""
    kept = [{ledger.process: ledger for ledger in sample_ledgers.ledgers(run)} for run in runs.directories]
    if any(kept) and not all(kept):
        return group(NAME, (information("ledgers", *("recorded" if found else "" for found in kept)),))
    leaves = []
    for process in sorted(kept[0].keys() & kept[1].keys(), key=natural):
        left, right = kept[0][process], kept[1][process]
        for optimizer in sorted(_optimizers(left) & _optimizers(right), key=natural):
            title = f"samples of {optimizer} of process {process}"
            found = resumed.get((process, optimizer))
            leaf = _compared(title, optimizer, left, right, found)
            is_apart = bool(resumed) and found is None  # no trail says with which step it goes on
            leaves.append(replace(leaf, role=Role.CONSEQUENCE) if is_apart and leaf.verdict.differs else leaf)
    return group(NAME, tuple(leaves))


def _optimizers(ledger: ProcessLedger) -> set[str]:
    return {step.optimizer for step in ledger.read() if isinstance(step, SampleStep)}


def _steps(ledger: ProcessLedger, optimizer: str) -> Iterator[SampleStep]:
    for step in ledger.read():
        if isinstance(step, SampleStep) and step.optimizer == optimizer:
            yield step


def _numbered(
    ledger: ProcessLedger, optimizer: str, resumed: Resumption | None, is_right: bool
) -> Iterator[SampleStep]:
    """Yield steps by their number in the run that was not interrupted, from where the resumed one goes on."""
    for step in _steps(ledger, optimizer):
        if resumed is None:
            yield step
        elif is_right is resumed.is_right:
            yield msgspec.structs.replace(step, number=step.number + resumed.steps)
        elif step.number >= resumed.steps:
            yield step


def _pairs(
    left: ProcessLedger, right: ProcessLedger, optimizer: str, resumed: Resumption | None
) -> Iterator[tuple[SampleStep, SampleStep]]:
    """Yield the steps that both runs took; the first of a resumed one without what it skipped to come to its place."""
    both = (_numbered(ledger, optimizer, resumed, ledger is right) for ledger in (left, right))
    is_first = resumed is not None
    for one, other in zip(*both, strict=False):
        if not is_first:
            yield one, other
            continue
        count, is_first = min(len(one.batches), len(other.batches)), False
        kept = [msgspec.structs.replace(step, batches=step.batches[-count:]) for step in (one, other)]
        yield kept[0], kept[1]


def _compared(
    title: str, optimizer: str, left: ProcessLedger, right: ProcessLedger, resumed: Resumption | None
) -> Difference:
    """Return a leaf for the steps that both runs took; that one took more is the trail's to say."""
    first: tuple[SampleStep, SampleStep] | None = None
    steps = differing = 0
    for one, other in _pairs(left, right, optimizer, resumed):
        steps += 1
        if one.number != other.number or _content(one) != _content(other):
            differing += 1
            first = first or (one, other)
    if first is None:
        text = counted(steps)
        return Difference(title, Verdict.IDENTICAL, text, text)
    meaning, figures = _divergence(*first, right, resumed)
    left_text, right_text = (listed(list(map(str, step.samples)), 8, " ") for step in first)
    figures.update(steps=steps, differing_steps=differing)
    more = f"; in {differing:,} of {counted(steps)}"
    return different(title, left_text, right_text, f"{title}: {meaning}{more}", figures=figures)


def _content(step: SampleStep) -> list[Sequence[Sample]]:
    return [batch.samples for batch in step.batches]


def _divergence(
    left: SampleStep, right: SampleStep, ledger: ProcessLedger, resumed: Resumption | None
) -> tuple[str, dict[str, Any]]:
    """Return what differs in the first step that does, and when the right run saw the samples of the left one's."""
    step, samples = min(left.number, right.number), left.samples
    missing = Counter(samples) - Counter(right.samples)
    count = missing.total()
    figures: dict[str, Any] = {"step": step, "samples": len(samples), "differing_samples": count}
    if left.number != right.number:
        return f"step {step:,} has a batch in one run only", figures
    if not count:
        return f"batch of step {step:,} has the same samples in another order, or more of them", figures
    seen = _seen(set(missing), left, ledger, resumed)
    figures.update(seen_at=[min(seen.values()), max(seen.values())] if seen else None, never=len(missing) - len(seen))
    is_digest = all(batch.is_digest for batch in left.batches)
    what = "" if is_digest else f": {count:,} of {len(samples):,} samples"
    return f"batch of step {step:,} differs{what}; {_seen_in_words(len(missing), seen, is_digest)}", figures


def _seen(
    wanted: set[Sample], left: SampleStep, ledger: ProcessLedger, resumed: Resumption | None
) -> dict[Sample, int]:
    """Return the first step in the same epoch of the run at which it saw each of these samples.

    A resumed run counts its epochs anew: of it, and of the one that it resumes, all that are compared count.
    """
    epochs = {(batch.loader.name, batch.epoch) for batch in left.batches}
    found: dict[Sample, int] = {}
    for step in _numbered(ledger, left.optimizer, resumed, True):
        for batch in step.batches:
            if resumed is not None or (batch.loader.name, batch.epoch) in epochs:
                for sample in wanted.intersection(batch.samples):
                    found.setdefault(sample, step.number)
    return found


def _seen_in_words(count: int, seen: dict[Sample, int], is_digest: bool) -> str:
    it = "it" if is_digest else "them"
    if not seen:
        return f"the other run never saw {it} in that epoch"
    low, high = min(seen.values()), max(seen.values())
    steps = f"step {low:,}" if low == high else f"steps {low:,} to {high:,}"
    some = f" {len(seen):,} of" if len(seen) < count else ""
    return f"the other run saw{some} {it} at {steps}"


def step_of(category: Difference) -> int | None:
    """Return the first step at which samples differ."""
    first = category.first()
    return None if first is None else first.figures["step"]


# ---- one run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpochCoverage:
    """How often one epoch of a data loader gave its samples."""

    run: int  # of several, in which it ended
    process: str
    loader: SampleLoader
    epoch: int
    batches: int
    drawn: int  # samples, or batches of which only digests are known
    distinct: int | None  # None: too many to count
    repeated: int = 0  # samples that came more than once
    most: int = 1  # how often one of them came
    is_digest: bool = False
    is_whole: bool = False  # the loader had no further batch
    resumed: bool = False  # it was begun in one run, and gone on with in the next

    @property
    def never(self) -> int | None:
        """Samples of the data set that did not come, where it is known how many there are."""
        size = self.loader.samples
        return None if size is None or self.distinct is None else max(size - self.distinct, 0)

    @property
    def is_finding(self) -> bool:
        """Whether samples came twice or not at all, though each was to come once."""
        if self.loader.replacement:
            return False
        may_repeat = self.is_digest and not (self.is_whole or self.resumed)  # a data set without an end
        is_short = self.is_whole and (self.never or 0) > self.loader.left_over
        return is_short or (bool(self.repeated) and not may_repeat)

    @property
    def unit(self) -> tuple[str, str]:
        """What is counted."""
        return BATCHES if self.is_digest else SAMPLES

    @property
    def words(self) -> str:
        """What is to be said of it."""
        often = "twice" if self.most == 2 else f"up to {self.most:,} times"
        parts = [f"{counted_as(self.repeated, self.unit)} seen {often}"] if self.repeated else []
        if self.distinct is None:
            return f"more than {MAX_COUNTED:,} samples are not counted"
        if self.loader.replacement:
            return "; ".join(["sampled with replacement", *parts])
        if self.is_finding:
            return ", ".join([*parts, *([f"{self.never:,} never"] if self.never else [])])
        if not self.is_whole:
            return "broken off" if not self.resumed else "gone on with where it was broken off"
        left_over = f"; {self.never:,} fill no batch" if self.never else ""
        return f"each once{left_over}"


def counted_as(count: int, unit: tuple[str, str]) -> str:
    """Return a number with what it counts."""
    return f"{count:,} {unit[count != 1]}"


class _OpenEpoch:
    """An epoch whose samples are being counted."""

    def __init__(self, run: int, process: str, loader: SampleLoader, epoch: int) -> None:
        self.process, self.loader, self.epoch = process, loader, epoch
        self.current = run, epoch  # the run that goes on with it, and the epoch's number there
        self.counts: Counter[Sample] | None = Counter()
        self.batches: list[Sequence[Sample]] = []
        self.is_digest = self.is_whole = self.resumed = False

    def add(self, samples: Sequence[Sample]) -> None:
        self.batches.append(samples)
        if self.counts is not None:
            self.counts.update(samples)
            if len(self.counts) > MAX_COUNTED:
                self.counts = None

    def resume(self, run: int, epoch: int, samples: Sequence[Sample]) -> None:
        """Another run goes on. Steps that it takes again, from its checkpoint on, count once."""
        self.current, self.resumed = (run, epoch), True
        if samples in self.batches and self.counts is not None:
            kept = self.batches[: self.batches.index(samples)]
            self.batches, self.counts = [], Counter()
            for batch in kept:
                self.add(batch)

    def coverage(self) -> EpochCoverage:
        again = [] if self.counts is None else [count for count in self.counts.values() if count > 1]
        return EpochCoverage(
            self.current[0],
            self.process,
            self.loader,
            self.epoch,
            len(self.batches),
            sum(map(len, self.batches)),
            None if self.counts is None else len(self.counts),
            len(again),
            max(again, default=1),
            self.is_digest,
            self.is_whole,
            self.resumed,
        )


def coverage(runs: Sequence[RunDirectory]) -> list[EpochCoverage]:
    """Return how often each epoch gave its samples; of several runs each resumes the one before."""
    found: list[EpochCoverage] = []
    last: dict[tuple[str, str], _OpenEpoch] = {}
    for number, run in enumerate(runs):
        for ledger in sample_ledgers.ledgers(run):
            for event in ledger.read():
                _count(number, ledger.process, event, last, found)
    found += [epoch.coverage() for epoch in last.values()]
    return sorted(found, key=lambda row: (natural(row.process), natural(row.loader.name), row.run, row.epoch))


def _count(
    run: int,
    process: str,
    event: SampleStep | EpochDone,
    last: dict[tuple[str, str], _OpenEpoch],
    found: list[EpochCoverage],
) -> None:
    """Take in a step, or the end of an epoch; an epoch that another one follows is over."""
    if isinstance(event, EpochDone):
        epoch = last.get((process, event.loader.name))
        if epoch is not None and epoch.current == (run, event.epoch):
            epoch.is_whole = True
        return
    for batch in event.batches:
        key = process, batch.loader.name
        epoch = last.get(key)
        if epoch is not None and epoch.current[0] < run and not epoch.is_whole:
            epoch.resume(run, batch.epoch, batch.samples)
        elif epoch is None or epoch.current != (run, batch.epoch):
            if epoch is not None:
                found.append(epoch.coverage())
            epoch = last[key] = _OpenEpoch(run, process, batch.loader, batch.epoch)
        epoch.is_digest = batch.is_digest
        epoch.add(batch.samples)


def findings(runs: Sequence[RunDirectory]) -> list[EpochCoverage]:
    """Return the epochs that gave samples twice or not at all."""
    return [row for row in coverage(runs) if row.is_finding]


def notes(run: RunDirectory, side: Side) -> Iterator[str]:
    """Yield what must be said of a run that agrees with another one: both may have done the same wrong."""
    for row in findings([run]):
        yield f"of the {side} run, epoch {row.epoch:,} of {row.loader.name} of process {row.process}: {row.words}"
