"""Compares runs of several hosts: RUN/hosts/NAME is the run directory that the launcher on one host wrote.

Hosts are matched by name and ranks by number. Clocks of hosts are not compared: of several differences the one of the
earliest step is first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from reprokit.difference import SIDES, Side, Verdict
from reprokit.errors import RunDamaged, reason
from reprokit.rundir import HOSTS, RUN, RunDirectory
from reprokit.tolerance import Tolerances
from reprokit.verify.compare import ranks, runs
from reprokit.verify.compare.divergences import NAMES, ORDER
from reprokit.verify.compare.ranks import RankState
from reprokit.verify.compare.runs import Comparison
from reprokit.verify.read.metric_lines import ComputeLine
from reprokit.verify.read.scan import natural, read

MAX_HOSTS = 10_000
_LAST = 1 << 62  # beyond any step
_QUANTITIES = [NAMES.get(name, name) for name in ORDER]  # of the trail, in causal order


@dataclass(frozen=True)
class HostsComparison:
    """Two runs of the same hosts."""

    left: Path
    right: Path
    hosts: dict[str, Comparison]  # what differs first is first
    lacking: tuple[tuple[str, Side], ...]  # hosts of which only one run has a part, and which has none
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """What came out of all hosts."""
        verdicts = {comparison.verdict for comparison in self.hosts.values()}
        if self.lacking or Verdict.DIFFERENT in verdicts:
            return Verdict.DIFFERENT
        return Verdict.TOLERATED if Verdict.TOLERATED in verdicts else Verdict.IDENTICAL


def parts(path: Path) -> dict[str, Path]:
    """Return the runs of the hosts, by name; none where the directory is one run."""
    place = path / HOSTS
    if os.path.lexists(path / RUN) or not os.path.isdir(place) or place.is_symlink():
        return {}
    try:
        with os.scandir(place) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise RunDamaged(f"{place}: {reason(error)}; make it readable") from None
    names = [name for name in found if os.path.lexists(place / name / RUN)]
    if len(names) > MAX_HOSTS:
        raise RunDamaged(f"{place} holds more than {MAX_HOSTS} hosts; the run cannot be used")
    return {name: place / name for name in sorted(names, key=natural)}


def compare(left: Path, right: Path, *, tolerances: Tolerances | None = None) -> HostsComparison:
    """Compare host by host; raises a RunError or NothingComparable where that is impossible."""
    sides = parts(left), parts(right)
    both = [name for name in sides[0] if name in sides[1]]
    found = {name: runs.compare(sides[0][name], sides[1][name], tolerances=tolerances) for name in both}
    lacking: list[tuple[str, Side]] = [(name, "right") for name in sides[0] if name not in both]
    lacking += [(name, "left") for name in sides[1] if name not in both]
    notes = [note for named, side in zip(sides, SIDES, strict=True) for note in _notes(named, side)]
    return HostsComparison(left, right, dict(sorted(found.items(), key=_step)), tuple(lacking), tuple(notes))


def _step(item: tuple[str, Comparison]) -> tuple[bool, int, int]:
    """Return where a host's runs differ first, in steps and in what of a step: the only time that all hosts have."""
    first = item[1].tree.first()
    figures = first.figures if first is not None else {}
    step, quantity = figures.get("step"), figures.get("quantity")
    return (
        first is None,
        step if isinstance(step, int) else _LAST,
        _QUANTITIES.index(quantity) if quantity in _QUANTITIES else 0,
    )


def _notes(named: Mapping[str, Path], side: Side) -> Iterator[str]:
    """Yield what the ranks of all hosts together tell of a run."""
    hosts = {name: RunDirectory(path) for name, path in named.items()}
    count: Counter[str] = Counter()
    expected = 0
    for host, run in hosts.items():
        here: set[str] = set()
        for key, _, _, line in read(run):
            here.add(ranks.rank_of(key.process)[0])
            if isinstance(line, ComputeLine) and type(size := line.facts.get("ranks")) is int:
                expected = max(expected, size)
        count.update(here - {""} or {host})
    twice = sorted(rank for rank, number in count.items() if number > 1)
    if twice:
        yield f"of the {side} run, {twice[0]} is on more than one host: these are parts of several trainings"
        return
    if len(count) < expected:
        yield f"of the {side} run, {len(count)} of {expected} ranks are here: parts of hosts are missing"
    for one in ranks.agreements(next(iter(hosts.values())), hosts) if hosts else ():
        if one.state is RankState.PARTED:
            yield f"of the {side} run, {one.words}"
