"""Compares the ranks of one run: in data-parallel training all have equal parameters after every step.

Ranks may be on several hosts, each of which wrote a run directory: steps are matched by their number alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from itertools import pairwise

import msgspec

from reprokit.core.difference import Side
from reprokit.core.printable import listed
from reprokit.run_files import trails
from reprokit.run_files.rundir import RunDirectory
from reprokit.run_files.trails import Series, TrailStep, TrailTensor
from reprokit.verify.categories import status
from reprokit.verify.categories.divergence_words import NAMED, counted
from reprokit.verify.read.metric_lines import ComputeLine
from reprokit.verify.read.scan import MetricsScan, SeriesKey, natural, read

_RANK = re.compile(
    r"(rank[0-9]+(?:\.rank[0-9]+)*)(.*)", re.DOTALL
)  # identity of a rank's process, from native/shim/identity/identity.c
LISTED = 8  # ranks listed in a sentence
QUIET = 10.0  # seconds before the end; where ranks made updates later, one may only have come to its end first
NO_RANKS = "no two ranks were seen to take steps of an optimizer"
REDUCES_WITH, SENDS, NUMBER = "reduces_with", "sends", "rank"  # facts of a rank's collectives


class RankState(Enum):
    """How the parameters of ranks compare."""

    EQUAL = "equal"
    PARTED = "parted"  # equal at first, then different
    APART = "apart"  # not known to be copies: sharded, stages of a pipeline, or separate trainings
    SHARDED = "sharded"  # nothing to compare: each rank has parts of its own
    UNKNOWN = "unknown"  # no step has the parameters of all ranks


@dataclass(frozen=True)
class RankAgreement:
    """The comparison of one optimizer on all ranks."""

    optimizer: str  # as in metrics.jsonl: "optimizer#0"
    ranks: tuple[str, ...]
    steps: int  # steps that all ranks took
    compared: int  # steps with known parameters of all ranks
    state: RankState
    step: int | None = None  # the first after which parameters differ
    left: tuple[str, ...] = ()  # ranks that differ from two thirds of all, or changed between steps
    equal_gradients: bool | None = None  # at that step; None: not known
    found_other: bool = False  # whether parameters changed between that step and the previous one
    tensors: tuple[str, ...] = ()  # that this is about, or, where they parted, that differ; none: all parameters
    are_candidates: bool = False  # whether these are all that are shared, of which single ones have no digests
    of_some: bool = False  # whether there are other ranks, with other parts
    equal_until: int | None = None  # the last step before that was compared, if not each one was
    may_be_stages: bool = False  # whether they send each other tensors, and no DDP reduces their gradients

    @property
    def words(self) -> str:
        """Return a sentence for users."""
        if self.state is RankState.PARTED:
            return f"{self._ranks_words} {self._step_words} ({self._quantity_words}) of {self.optimizer}"
        where = f"{self.optimizer} on {self._where}"
        what = f"parameters{f' ({listed(self.tensors, NAMED)})' if self.tensors else ''}"
        if self.state is RankState.EQUAL:
            more = self.steps - self.compared
            return f"{where}: {what} are equal after each of {counted(self.compared)}" + (
                f", {more:,} more not known" if more else ""
            )
        if self.state is RankState.APART:
            since = "from the start" if not self.step else f"from step {self.step:,} on"
            if self.may_be_stages:
                return f"{where}: {what} differ {since}: as ranks send tensors without DDP, they may be stages"
            return f"{where}: {what} differ {since}: they are sharded, or these are trainings of their own"
        if self.state is RankState.SHARDED:
            return f"{where}: {what} are parts that no other rank has: only another run can be compared with them"
        return f"{where}: of no step are the {what} of all known"

    @property
    def steps_to_ask(self) -> str:
        """The steps whose parameters tell which tensor differs first; empty if that is known, or nothing parted."""
        if self.state is not RankState.PARTED or self.step is None or (self.tensors and not self.are_candidates):
            return ""
        first = self.step - 1 if self.equal_until is None else self.equal_until
        return f"{max(0, first)}-{self.step + 1}"

    @property
    def _where(self) -> str:
        return f"ranks {_numbers(self.ranks)}" if self.of_some else f"{len(self.ranks)} ranks"

    @property
    def _step_words(self) -> str:
        is_known = self.equal_until is None or self.equal_until + 1 == self.step
        return f"at step {self.step:,}" if is_known else f"between steps {self.equal_until:,} and {self.step:,}"

    @property
    def _ranks_words(self) -> str:
        if self.left:
            others = "the other" if len(self.ranks) == 2 else "the others"
            others += f" of {self._where}" if self.of_some else ""
            return f"{'rank' if len(self.left) == 1 else 'ranks'} {_numbers(self.left)} left {others}"
        return f"ranks {_numbers(self.ranks)} parted"

    @property
    def _quantity_words(self) -> str:
        other = "parameters were changed since the step before" if self.found_other else ""
        if self.tensors:
            names = listed(self.tensors, NAMED)
            return "; ".join(filter(None, (f"one or more of {names}" if self.are_candidates else names, other)))
        if other:
            return other
        gradients = {None: "gradients are not known", True: "gradients were equal", False: "gradients differed too"}
        return f"parameters; {gradients[self.equal_gradients]}"


@dataclass(frozen=True)
class DeadRank:
    """A rank that did not come to its end, although no process of the run ended it."""

    rank: str
    signal: str  # its name; empty if unknown
    after: str  # the last thing that it is known to have done; may be empty

    @property
    def words(self) -> str:
        """Return a sentence for users."""
        end = f"was killed by {self.signal}" if self.signal else "ended early"
        return f"{self.rank.replace('rank', 'rank ', 1)} {end}{f', after {self.after}' if self.after else ''}"


def agreements(run: RunDirectory, hosts: Mapping[str, RunDirectory] | None = None) -> list[RankAgreement]:
    """Return the agreement of each optimizer that several ranks stepped, on these hosts; raise RunDamaged."""
    groups: dict[tuple[str, int, str], dict[str, Series]] = {}
    directories = hosts or {"": run}
    of_hosts = [(host, trail) for host, directory in directories.items() for trail in trails.read(directory)]
    if len(of_hosts) < 2:
        return []
    known = _Copies(directories)
    for host, trail in of_hosts:
        rank, process = known.rank_of(trail.process, host)
        for series in trail.series if rank else ():
            if series.count:
                groups.setdefault((process, trail.incarnation, series.name), {})[rank] = series
    keys = sorted(
        (key for key in groups if len(groups[key]) > 1), key=lambda key: (natural(key[0]), key[1], natural(key[2]))
    )
    return [found for key in keys for found in known.agreements(key[2], groups[key])]


class _Copies:
    """What is known of which ranks have copies of the same parameters: by DDP, whose group reduces their gradients.

    Stages of a pipeline are none, although they may have tensors of equal names, shapes and first values.
    """

    def __init__(self, directories: Mapping[str, RunDirectory]) -> None:
        self._members: dict[str, set[tuple[str, ...]]] = {}  # the groups of each rank's DDP models
        self._senders: set[str] = set()  # ranks that send tensors to single ranks
        self._numbers: dict[tuple[str, str], str] = {}  # ranks of processes, as PyTorch knows them
        for host, directory in directories.items():
            for key, _, _, line in read(directory):
                if isinstance(line, ComputeLine):
                    if type(number := line.facts.get(NUMBER)) is int:
                        self._numbers[host, key.process] = f"rank{number}"
                    self._add(self.rank_of(key.process, host)[0], line)

    def rank_of(self, process: str, host: str) -> tuple[str, str]:
        """Return the rank and its process, also of one that its launcher only told its rank, as Ray Train does."""
        rank, rest = rank_of(process, host)
        return (rank, rest) if rank else (self._numbers.get((host, process), ""), "")

    def _add(self, rank: str, line: ComputeLine) -> None:
        members = line.facts.get(REDUCES_WITH)
        if isinstance(members, list):
            self._members.setdefault(rank, set()).add(tuple(members))
        if line.facts.get(SENDS):
            self._senders.add(rank)

    def agreements(self, optimizer: str, series: Mapping[str, Series]) -> Iterator[RankAgreement]:
        """Yield how the ranks of each group agree; of all together if the group of one of them is not known."""
        of_ranks = {rank: self._group(rank) for rank in series}
        by_group: dict[tuple[str, ...], dict[str, Series]] = {}
        for rank, group in of_ranks.items():
            by_group.setdefault(group if all(of_ranks.values()) else (), {})[rank] = series[rank]
        for group, copies in by_group.items():
            if len(copies) == 1:
                yield RankAgreement(optimizer, tuple(copies), 0, 0, RankState.UNKNOWN, of_some=True)
                continue
            for found in _of_optimizer(optimizer, copies):
                may_be_stages = not group and not self._senders.isdisjoint(found.ranks)
                state = RankState.APART if may_be_stages and found.state is RankState.PARTED else found.state
                of_some = found.of_some or len(by_group) > 1
                yield replace(found, state=state, may_be_stages=may_be_stages, of_some=of_some)

    def _group(self, rank: str) -> tuple[str, ...]:
        """Return the ranks that reduce gradients with a rank; nothing where that is not known of all its models."""
        groups = self._members.get(rank, set())
        (group,) = groups if len(groups) == 1 else ((),)
        return group if len(group) > 1 else ()


def rank_of(process: str, host: str = "") -> tuple[str, str]:
    """Return the rank and its process; the host is the rank if its launcher was started once per rank."""
    match = _RANK.fullmatch(process)
    return (host, process) if match is None else (match[1], match[2])


def dead_ranks(run: RunDirectory, scan: MetricsScan) -> Iterator[DeadRank]:
    """Yield each rank that a signal ended, and of a failed run those that ended early."""
    has_failed = status.failed(run.run)
    for name, process in sorted(scan.processes.items(), key=lambda item: natural(item[0])):
        rank, child = rank_of(name)
        if not rank or child or process.was_stopped or not (process.killed_by or (has_failed and not process.ended)):
            continue
        yield DeadRank(rank, process.killed_by, _progress(run, scan, name))


def _progress(run: RunDirectory, scan: MetricsScan, name: str) -> str:
    """Return how far a process came: its last optimizer step, else its last collective; empty if none is known."""
    steps = [series for trail in trails.read(run) if trail.process == name for series in trail.series if series.count]
    if steps:
        last = max(steps, key=lambda series: series.count)
        return f"step {last.count - 1:,} of {last.name}"
    calls = scan.series.get(SeriesKey(name, "collective", "mpi"))
    return f"call {calls.last['step']} of its collectives" if calls is not None and calls.last is not None else ""


def deaths(run: RunDirectory, scan: MetricsScan, side: Side) -> Iterator[str]:
    """Yield notes on the ranks of a run that died."""
    yield from (f"of the {side} run, {rank.words}" for rank in dead_ranks(run, scan))


@dataclass(frozen=True)
class RankProgress:
    """How far a rank came."""

    rank: str
    updates: int
    losses: int
    moment: float  # of the last update, seconds since 1970; 0: not known


def behind(ranks: Sequence[RankProgress], end: float | None, *, is_over: bool, written: float = 0.0) -> Iterator[str]:
    """Yield each rank that is behind another one and made no update for a while before the end, where that is known.

    Ranks that wait for each other have equal updates: those that wait have computed one more loss.
    ``written`` is when files with their numbers last changed, which counts where none made two updates; 0: not known.
    """
    updates, losses = (max((getattr(rank, name) for rank in ranks), default=0) for name in ("updates", "losses"))
    for rank in ranks:
        last = rank.moment or (max([written, *(each.moment for each in ranks)]) if written and updates < 2 else 0)
        quiet = end - last if end is not None and last else None
        if (rank.updates, rank.losses) >= (updates, losses) or (quiet is not None and quiet < QUIET):
            continue
        lag = _lag(updates - rank.updates, "update", "updates") or _lag(losses - rank.losses, "loss", "losses")
        at = datetime.fromtimestamp(rank.moment, timezone.utc) if rank.moment else None
        since = f" since its update {rank.updates - 1:,}" if rank.updates else ""
        since += f" at {at:%Y-%m-%dT%H:%M:%SZ}" if at else ""
        if quiet is not None:
            ago = f", {quiet:,.0f} s {'before the end' if is_over else 'ago'}"
            since += ago if rank.moment else f"; no number was seen to be recorded for {quiet:,.0f} s"
        yield f"rank {_numbers([rank.rank])} is {lag} behind{since}"


def _lag(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}" if count > 0 else ""


def failure(run: RunDirectory, scan: MetricsScan) -> str:
    """Return how a run failed: its status, or a rank that died although the status is 0; else empty."""
    return status.failure(run.run) or next((rank.words for rank in dead_ranks(run, scan)), "")


def notes(run: RunDirectory, side: Side, other: RunDirectory) -> Iterator[str]:
    """Yield ranks whose parameters parted, which equality with another run does not show."""
    for agreement in agreements(run):
        if agreement.state is RankState.PARTED:
            yield f"of the {side} run, {agreement.words}{_witnesses(run, other, agreement)}"


def _witnesses(run: RunDirectory, other: RunDirectory, agreement: RankAgreement) -> str:
    """Return which ranks have the parameters of the other run where they parted, if that speaks for some of them."""
    here, there = (_parameters(side, agreement) for side in (run, other))
    known = {rank: here[rank] == there[rank] for rank in agreement.ranks if None not in (here[rank], there[rank])}
    same, others = ([rank for rank in known if known[rank] is equal] for equal in (True, False))
    if agreement.left or not (same and others):
        return ""
    return f"; there {_ranks_are(same)} as in the other run, {_ranks_are(others)} not"


def _parameters(run: RunDirectory, agreement: RankAgreement) -> dict[str, int | None]:
    """Return the digest of each rank's parameters in the step in which they parted; None if it is not known."""
    step = agreement.step or 0
    digests: dict[str, int | None] = dict.fromkeys(agreement.ranks)
    for trail in trails.read(run):
        for series in trail.series:
            if trail.process in digests and series.name == agreement.optimizer and series.count > step:
                digests[trail.process] = next(iter(series.steps(step, step + 1))).parameters
    return digests


def _of_optimizer(optimizer: str, series: Mapping[str, Series]) -> Iterator[RankAgreement]:
    """Yield how ranks agree that have the same parts of all parameters, then on the parts that more ranks have."""
    ranks = tuple(sorted(series, key=natural))
    steps = min(rank_series.count for rank_series in series.values())
    alike: dict[bytes, list[str]] = {}  # ranks by the tables of their tensors
    for rank in ranks:
        alike.setdefault(msgspec.json.encode([tensors for _, tensors in series[rank].tables]), []).append(rank)
    if len(alike) == 1:
        yield _agreement(optimizer, ranks, series, steps)
        return
    owners: dict[bytes, tuple[TrailTensor, dict[str, None]]] = {}
    for rank in ranks:
        for tensor in series[rank].tensors(0):
            owners.setdefault(msgspec.json.encode(tensor), (tensor, {}))[1][rank] = None
    if not any(tensor.placement for tensor, _ in owners.values()):
        yield RankAgreement(optimizer, ranks, steps, 0, RankState.APART)
        return
    whole = [tuple(some) for some in alike.values() if len(some) > 1]
    for some in whole:
        yield replace(_agreement(optimizer, some, series, steps), of_some=True)
    shared: dict[tuple[str, ...], list[TrailTensor]] = {}
    for tensor, some_ranks in owners.values():
        shared.setdefault(tuple(some_ranks), []).append(tensor)
    for some, tensors in shared.items():
        if len(some) > 1 and some not in whole:
            yield replace(_agreement_on(optimizer, some, tensors, series, steps), of_some=len(some) < len(ranks))
    alone = dict.fromkeys(tensor.name for some, tensors in shared.items() if len(some) == 1 for tensor in tensors)
    if alone:
        yield RankAgreement(optimizer, ranks, steps, 0, RankState.SHARDED, tensors=tuple(alone))


def _agreement_on(
    optimizer: str, ranks: tuple[str, ...], tensors: Sequence[TrailTensor], series: Mapping[str, Series], steps: int
) -> RankAgreement:
    """Compare tensors that several ranks have beside others."""
    names = tuple(tensor.name for tensor in tensors)
    compared, equal_until = 0, None
    earlier: list[int | None] = [None] * len(ranks)
    for shared in _shared_steps([series[rank] for rank in ranks], tensors, steps):
        number, equal = shared.steps[0].number, shared.are_equal
        if equal is False:
            changed, differing = _changed_ranks(ranks, shared.steps, earlier), shared.differing(names)
            left = _deviating(ranks, shared.values) or changed
            return RankAgreement(
                optimizer,
                ranks,
                steps,
                compared,
                RankState.PARTED if compared else RankState.APART,
                step=number,
                left=left,
                found_other=bool(left) and set(left) <= set(changed),
                tensors=differing or names,
                are_candidates=not differing and len(names) > 1,
                equal_until=equal_until,
            )
        if equal:
            compared, equal_until = compared + 1, number
        earlier = [step.parameters for step in shared.steps]
    state = RankState.EQUAL if compared else RankState.UNKNOWN
    return RankAgreement(optimizer, ranks, steps, compared, state, tensors=names, equal_until=equal_until)


@dataclass(frozen=True)
class _SharedStep:
    """A step of several ranks, and by rank the digests of what they share: by placement, and by tensor where kept."""

    steps: tuple[TrailStep, ...]
    by_placement: list[tuple[int, ...] | None]
    by_tensor: list[tuple[int | None, ...]]

    @property
    def values(self) -> Sequence[tuple[int | None, ...] | None]:
        """The digests to be compared."""
        return self.by_tensor if self.by_tensor and None in self.by_placement else self.by_placement

    @property
    def are_equal(self) -> bool | None:
        """Whether these tensors are equal in all ranks; None if that is not known of some, and the others are."""
        if self.values is self.by_placement:
            return _all_equal(self.by_placement)
        known = {_all_equal(digests) for digests in zip(*self.by_tensor, strict=True)}
        return next((equal for equal in (False, None) if equal in known), True)

    def differing(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the tensors that differ; nothing where single ones are not known."""
        return tuple(
            name for name, *digests in zip(names, *self.by_tensor, strict=False) if _all_equal(digests) is False
        )


def _shared_steps(series: Sequence[Series], tensors: Sequence[TrailTensor], steps: int) -> Iterator[_SharedStep]:
    """Yield each step with the digests of tensors that all of these have."""
    kept = set[int].intersection(*(set(each.kept()) for each in series))
    firsts = {first for each in series for first, _ in each.tables if first < steps}
    for start, stop in pairwise([*sorted(firsts), steps]):
        places = [_places(each.tensors(start), tensors) for each in series]
        for of_ranks in zip(*(each.steps(start, stop) for each in series), strict=True):
            is_kept = of_ranks[0].number in kept
            yield _SharedStep(
                of_ranks,
                [_of_placements(step, place) for step, place in zip(of_ranks, places, strict=True)],
                [_of_tensors(each, step, tensors) for each, step in zip(series, of_ranks, strict=True) if is_kept],
            )


def _places(table: Sequence[TrailTensor], tensors: Sequence[TrailTensor]) -> list[int] | None:
    """Return which of a table's placements hold just these tensors, nothing if it has no other; None if none do."""
    wanted = {tensor.placement for tensor in tensors}
    if [tensor for tensor in table if tensor.placement in wanted] != list(tensors):
        return None
    placements = list(dict.fromkeys(tensor.placement for tensor in table))
    return [placements.index(placement) for placement in placements if placement in wanted and len(placements) > 1]


def _of_placements(step: TrailStep, places: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the digests of a step's parameters in these placements; None if not all are known."""
    if places is None or step.partial or step.parameters is None:
        return None
    if not places:
        return (step.parameters,)
    digests = tuple(step.parts[place] for place in places) if step.parts else (0,)
    return None if 0 in digests else digests


def _of_tensors(series: Series, step: TrailStep, tensors: Sequence[TrailTensor]) -> tuple[int | None, ...]:
    """Return the digests of these parameters after a step; None of one that is not known."""
    digests = series.digests(step.number)
    if digests is None or step.parameters is None:
        return (None,) * len(tensors)
    by_name = {tensor.name: digest for tensor, digest in zip(digests.tensors, digests.parameters, strict=True)}
    return tuple(by_name.get(tensor.name) or None for tensor in tensors)


def _agreement(optimizer: str, ranks: tuple[str, ...], series: Mapping[str, Series], steps: int) -> RankAgreement:
    compared, were_equal, equal_until = 0, False, None
    earlier: list[int | None] = [None] * len(ranks)  # parameters that the step before left
    for steps_of_ranks in zip(*(series[rank].steps(0, steps) for rank in ranks), strict=True):
        equal_before = _all_equal(step.before for step in steps_of_ranks)
        if equal_before is False and not were_equal:
            return RankAgreement(optimizer, ranks, steps, compared, RankState.APART, step=steps_of_ranks[0].number)
        equal_after = _all_equal(step.parameters for step in steps_of_ranks)
        if equal_after is False:
            state = RankState.PARTED if were_equal or equal_before else RankState.APART
            number = steps_of_ranks[0].number
            equal_until = number - 1 if equal_before else equal_until
            return RankAgreement(
                optimizer,
                ranks,
                steps,
                compared,
                state,
                step=number,
                left=_deviating(ranks, [s.parameters for s in steps_of_ranks])
                or _changed_ranks(ranks, steps_of_ranks, earlier),
                equal_gradients=_all_equal(step.gradients for step in steps_of_ranks),
                found_other=equal_before is False and equal_until in (None, number - 1),
                equal_until=equal_until,
            )
        if equal_after:
            compared, equal_until = compared + 1, steps_of_ranks[0].number
        were_equal = were_equal or equal_after is True or equal_before is True
        earlier = [step.parameters for step in steps_of_ranks]
    return RankAgreement(optimizer, ranks, steps, compared, RankState.EQUAL if compared else RankState.UNKNOWN)


def _all_equal(values: Iterable[Hashable]) -> bool | None:
    """Return whether all values are equal; None if some are unknown and the others equal."""
    distinct = set(values)
    known_values = distinct - {None}
    return False if len(known_values) > 1 else None if None in distinct else True


def _deviating(ranks: Sequence[str], parameters: Sequence[Hashable]) -> tuple[str, ...]:
    (majority, count), *_ = Counter(parameters).most_common()
    if 3 * count < 2 * len(ranks):
        return ()
    return tuple(rank for rank, digest in zip(ranks, parameters, strict=True) if digest != majority)


def _changed_ranks(
    ranks: Sequence[str], steps_of_ranks: Sequence[TrailStep], earlier: Sequence[int | None]
) -> tuple[str, ...]:
    """Return the ranks that began the step with other parameters than their last one left, if others did not."""
    pairs = zip(ranks, steps_of_ranks, earlier, strict=True)
    known = {rank: step.before != last for rank, step, last in pairs if None not in (step.before, last)}
    changed = tuple(rank for rank, is_changed in known.items() if is_changed)
    return changed if len(known) == len(ranks) and len(changed) < len(ranks) else ()


def _ranks_are(ranks: Sequence[str]) -> str:
    return f"rank {_numbers(ranks)} is" if len(ranks) == 1 else f"ranks {_numbers(ranks)} are"


def _numbers(ranks: Sequence[str]) -> str:
    return listed([rank.replace("rank", "") for rank in ranks], LISTED)
