"""Compares runs of several hosts: RUN/hosts/NAME is the run directory that one host's launcher wrote.

Hosts are matched by name and ranks by number. Clocks of hosts are not compared: the difference at the earliest step
is the first one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from reprokit.core.difference import SIDES, Side
from reprokit.core.errors import RunDamaged, reason
from reprokit.core.tolerance import Tolerances
from reprokit.run_files.rundir import HOSTS, RUN, RunDirectory
from reprokit.verify import runs
from reprokit.verify.categories import ranks
from reprokit.verify.categories.divergence_words import NAMES
from reprokit.verify.categories.divergences import ORDER
from reprokit.verify.categories.ranks import RankState
from reprokit.verify.comparison import Comparison, HostsComparison
from reprokit.verify.ignores import Ignores
from reprokit.verify.read.metric_lines import ComputeLine
from reprokit.verify.read.scan import natural, read

MAX_HOSTS = 10_000
_LAST = 1 << 62  # beyond any step
_QUANTITIES = [NAMES.get(name, name) for name in ORDER]  # quantities of the trail, in causal order


def parts(path: Path) -> dict[str, Path]:
    """Return the run directories of the hosts by name; none if this is a single run."""
    hosts_directory = path / HOSTS
    if os.path.lexists(path / RUN) or not os.path.isdir(hosts_directory) or hosts_directory.is_symlink():
        return {}
    try:
        with os.scandir(hosts_directory) as entries:
            directories = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        raise RunDamaged(f"{hosts_directory}: {reason(error)}; make it readable") from None
    names = [name for name in directories if os.path.lexists(hosts_directory / name / RUN)]
    if len(names) > MAX_HOSTS:
        raise RunDamaged(f"{hosts_directory} holds more than {MAX_HOSTS} hosts; the run cannot be used")
    return {name: hosts_directory / name for name in sorted(names, key=natural)}


def compare(
    left: Path,
    right: Path,
    *,
    tolerances: Tolerances | None = None,
    ignores: Ignores | None = None,
    strict_console: bool = False,
) -> HostsComparison:
    """Compare host by host; raise a RunError or NothingComparable if that is impossible."""
    sides = parts(left), parts(right)
    common = [name for name in sides[0] if name in sides[1]]
    compare_host = partial(runs.compare, tolerances=tolerances, ignores=ignores, strict_console=strict_console)
    comparisons = {name: compare_host(sides[0][name], sides[1][name]) for name in common}
    lacking: list[tuple[str, Side]] = [(name, "right") for name in sides[0] if name not in common]
    lacking += [(name, "left") for name in sides[1] if name not in common]
    notes = [note for parts_of_run, side in zip(sides, SIDES, strict=True) for note in _notes(parts_of_run, side)]
    return HostsComparison(left, right, dict(sorted(comparisons.items(), key=_step)), tuple(lacking), tuple(notes))


def _step(item: tuple[str, Comparison]) -> tuple[bool, int, int]:
    """Return the first differing step and quantity of a host: steps are the only clock that all hosts share."""
    first = item[1].tree.first()
    figures = first.figures if first is not None else {}
    step, quantity = figures.get("step"), figures.get("quantity")
    return (
        first is None,
        step if isinstance(step, int) else _LAST,
        _QUANTITIES.index(quantity) if quantity in _QUANTITIES else 0,
    )


def _notes(parts_of_run: Mapping[str, Path], side: Side) -> Iterator[str]:
    """Yield notes on the ranks of all hosts together."""
    hosts = {name: RunDirectory(path) for name, path in parts_of_run.items()}
    hosts_by_rank: Counter[str] = Counter()
    expected = 0
    for host, run in hosts.items():
        ranks_here: set[str] = set()
        for key, _, _, line in read(run):
            ranks_here.add(ranks.rank_of(key.process)[0])
            if isinstance(line, ComputeLine) and type(size := line.facts.get("ranks")) is int:
                expected = max(expected, size)
        hosts_by_rank.update(ranks_here - {""} or {host})
    repeated = sorted(rank for rank, number in hosts_by_rank.items() if number > 1)
    if repeated:
        yield f"of the {side} run, {repeated[0]} is on more than one host: these are parts of several trainings"
        return
    if len(hosts_by_rank) < expected:
        yield f"of the {side} run, {len(hosts_by_rank)} of {expected} ranks are here: parts of hosts are missing"
    for agreement in ranks.agreements(next(iter(hosts.values())), hosts) if hosts else ():
        if agreement.state is RankState.PARTED:
            yield f"of the {side} run, {agreement.words}"
