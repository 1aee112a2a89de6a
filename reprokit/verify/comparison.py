"""What a comparison of two runs found, as data: verdict and presenters make their words from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from reprokit.core.difference import Difference, Side, Verdict, overall
from reprokit.model.states import SwitchOption, off_in
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.ignores import IgnoreUse, together
from reprokit.verify.read.execution import SharedTrait, shared

PRINTED_MORE = (
    "printed_more"  # in the figures of the console: lines that only the right run printed, or, negative, the left
)
ADDED = "only_added"  # in the figures of files of which recordings found other content: whether that is left out


class Level(Enum):
    """What a fact is about."""

    EXECUTION = "execution"  # what went in, and how the processes ran and ended
    TRAINING = "training"
    RESULT = "result"
    BOOKKEEPING = "bookkeeping"  # of the run itself: never compared


@dataclass(frozen=True)
class Comparison:
    """Two runs, the tree of their differences and its context."""

    left: RunDirectory
    right: RunDirectory
    tree: Difference
    normalizations: tuple[str, ...]
    notes: tuple[str, ...]  # what the user must know beside the verdict
    tolerances: str = ""  # requested tolerances, in words
    ignores: tuple[IgnoreUse, ...] = ()  # the user's rules, and how often each applied
    failures: tuple[str, str] = ("", "")  # how either run failed, in words; empty if it did not
    levels: frozenset[Level] = frozenset()  # those of which anything was compared and is the same

    @property
    def shared(self) -> SharedTrait | None:
        """Return what shows that both directories hold the same execution, which proves nothing; else None."""
        return shared(self.left.run, self.right.run)

    @property
    def switched_off(self) -> list[SwitchOption]:
        """Return what the user switched off in either run."""
        return off_in((*self.left.run.switched_off, *self.right.run.switched_off))

    @property
    def identical(self) -> bool:
        """Return whether nothing that was compared differs but bookkeeping."""
        return self.verdict is Verdict.IDENTICAL

    @property
    def verdict(self) -> Verdict:
        """Return whether the runs are identical, different, not compared, or within the requested tolerances."""
        return overall(self.tree)


@dataclass(frozen=True)
class HostsComparison:
    """The comparison of two runs on the same hosts."""

    left: Path
    right: Path
    hosts: dict[str, Comparison]  # the host that differs first comes first
    lacking: tuple[tuple[str, Side], ...]  # hosts missing in one run, and in which
    notes: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on all hosts."""
        verdicts = {comparison.verdict for comparison in self.hosts.values()}
        if self.lacking or Verdict.DIFFERENT in verdicts:
            return Verdict.DIFFERENT
        lesser = (Verdict.NOT_COMPARED, Verdict.TOLERATED)
        return next((verdict for verdict in lesser if verdict in verdicts), Verdict.IDENTICAL)

    @property
    def ignores(self) -> tuple[IgnoreUse, ...]:
        """Return how often the user's rules applied on all hosts."""
        return together(comparison.ignores for comparison in self.hosts.values())


def only_added(category: Difference) -> list[str]:
    """Return the files of which only what the recordings added is compared."""
    return [file.name for file in category.children if file.figures.get(ADDED)]
