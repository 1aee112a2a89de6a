"""Compares the ranks of one run: in data-parallel training all have the same parameters after every step.

The ranks may be those of several hosts, each of which wrote a run directory: steps are matched by their number alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from reprokit import trails
from reprokit.difference import Side
from reprokit.printable import listed
from reprokit.rundir import RunDirectory
from reprokit.trails import Series, TrailStep
from reprokit.verify.compare import status
from reprokit.verify.compare.divergences import counted
from reprokit.verify.read.scan import MetricsScan, SeriesKey, natural

_RANK = re.compile(r"(rank[0-9]+(?:\.rank[0-9]+)*)(.*)", re.DOTALL)  # as native/identity.c names processes
LISTED = 8  # ranks in a sentence


class RankState(Enum):
    """How the parameters of ranks stand to each other."""

    EQUAL = "equal"
    PARTED = "parted"  # equal at first
    APART = "apart"  # from the start on: sharded, or trainings of their own
    UNKNOWN = "unknown"  # of no step are all known


@dataclass(frozen=True)
class RankAgreement:
    """What is known of one optimizer on all ranks."""

    optimizer: str  # as in metrics.jsonl: "optimizer#0"
    ranks: tuple[str, ...]
    steps: int  # that all took
    compared: int  # of these, in which the parameters of all are known
    state: RankState
    step: int | None = None  # the first after which parameters differ
    left: tuple[str, ...] = ()  # the ranks that have others than most; empty where no two thirds agree
    equal_gradients: bool | None = None  # at that step; None: not known
    found_other: bool = False  # that step found other parameters than the one before had left

    @property
    def words(self) -> str:
        """One sentence, for people."""
        if self.state is RankState.PARTED:
            return f"{self._who} at step {self.step:,} ({self._what}) of {self.optimizer}"
        steps = counted(self.compared)
        where = f"{self.optimizer} on {len(self.ranks)} ranks"
        if self.state is RankState.EQUAL:
            more = self.steps - self.compared
            return f"{where}: parameters are equal after each of {steps}" + (
                f", {more:,} more not known" if more else ""
            )
        if self.state is RankState.APART:
            return f"{where}: parameters differ from the start: they are sharded, or these are trainings of their own"
        return f"{where}: of no step are the parameters of all known"

    @property
    def _who(self) -> str:
        if self.left:
            return f"{'rank' if len(self.left) == 1 else 'ranks'} {_numbers(self.left)} left the others"
        return f"ranks {_numbers(self.ranks)} parted"

    @property
    def _what(self) -> str:
        if self.found_other:
            return "parameters were changed since the step before"
        gradients = {None: "gradients are not known", True: "gradients were equal", False: "gradients differed too"}
        return f"parameters; {gradients[self.equal_gradients]}"


def agreements(run: RunDirectory, hosts: Mapping[str, RunDirectory] | None = None) -> list[RankAgreement]:
    """Return an agreement for each optimizer that more than one rank stepped, on these hosts; raises RunDamaged."""
    groups: dict[tuple[str, int, str], dict[str, Series]] = {}
    for host, directory in (hosts or {"": run}).items():
        for trail in trails.read(directory):
            rank, process = rank_of(trail.process, host)
            for series in trail.series if rank else ():
                if series.count:
                    groups.setdefault((process, trail.incarnation, series.name), {})[rank] = series
    order = sorted(groups, key=lambda key: (natural(key[0]), key[1], natural(key[2])))
    return [_agreement(key[2], groups[key]) for key in order if len(groups[key]) > 1]


def rank_of(process: str, host: str = "") -> tuple[str, str]:
    """Return the rank and the process of it; on a host whose launcher was started once a rank, the host is the rank."""
    found = _RANK.fullmatch(process)
    return (host, process) if found is None else (found[1], found[2])


def deaths(run: RunDirectory, scan: MetricsScan, side: Side) -> Iterator[str]:
    """Yield which ranks of a run that failed did not come to their end, though nobody of the run ended them."""
    if not status.failed(run.run):
        return
    steps = {trail.process: max(trail.series, key=lambda one: one.count, default=None) for trail in trails.read(run)}
    for name, process in sorted(scan.processes.items(), key=lambda item: natural(item[0])):
        if rank_of(name)[0] and not (rank_of(name)[1] or process.ended or process.was_stopped):
            last, series = steps.get(name), scan.series.get(SeriesKey(name, "collective", "mpi"))
            done = ""
            if last is not None and last.count:
                done = f", after {counted(last.count)} of {last.name}"
            elif series is not None and series.last is not None:
                done = f", after call {series.last['step']} of its collectives"
            yield f"of the {side} run, {name.replace('rank', 'rank ', 1)} ended early{done}"


def notes(run: RunDirectory, side: Side) -> Iterator[str]:
    """Yield what must be said of a run whose ranks parted: another run that agrees with it did the same wrong."""
    for one in agreements(run):
        if one.state is RankState.PARTED:
            yield f"of the {side} run, {one.words}"


def _agreement(optimizer: str, series: Mapping[str, Series]) -> RankAgreement:
    ranks = tuple(sorted(series, key=natural))
    steps = min(one.count for one in series.values())
    tables = [[tensors for _, tensors in series[rank].tables] for rank in ranks]
    if any(table != tables[0] for table in tables):
        return RankAgreement(optimizer, ranks, steps, 0, RankState.APART)
    compared, were_equal = 0, False
    for at in zip(*(series[rank].steps(0, steps) for rank in ranks), strict=True):
        began = _same(step.before for step in at)
        if began is False and not were_equal:
            return RankAgreement(optimizer, ranks, steps, compared, RankState.APART, step=at[0].number)
        same = _same(step.parameters for step in at)
        if same is False:
            state = RankState.PARTED if were_equal or began else RankState.APART
            return RankAgreement(
                optimizer,
                ranks,
                steps,
                compared,
                state,
                step=at[0].number,
                left=_minority(ranks, at),
                equal_gradients=_same(step.gradients for step in at),
                found_other=began is False,
            )
        compared += same is True
        were_equal = were_equal or same is True or began is True
    return RankAgreement(optimizer, ranks, steps, compared, RankState.EQUAL if compared else RankState.UNKNOWN)


def _same(values: Iterable[int | None]) -> bool | None:
    """Return whether all are the same; None where one is not known and the others are the same."""
    found = set(values)
    known = found - {None}
    return False if len(known) > 1 else None if None in found else True


def _minority(ranks: Sequence[str], at: Sequence[TrailStep]) -> tuple[str, ...]:
    (most, count), *_ = Counter(step.parameters for step in at).most_common()
    if 3 * count < 2 * len(ranks):
        return ()
    return tuple(rank for rank, step in zip(ranks, at, strict=True) if step.parameters != most)


def _numbers(ranks: Sequence[str]) -> str:
    return listed([rank.replace("rank", "") for rank in ranks], LISTED)
