"""Finds the variation that makes a difference: all at once first, each alone where that is not identical."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from reprokit.gate.results import FAILED, PASSED, TROUBLE, Case
from reprokit.rundir import RunDirectory
from reprokit.verify.compare.seeds import in_words
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import ReplacedSeeds, scan

TOGETHER = "together"


class VariedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay under other conditions, and its comparison with the recording."""

    words: dict[str, str]  # of each variation that was made: what is different
    refused: dict[str, str]  # of each that could not be made: why
    apart: tuple[str, ...] = ()  # those that must be tried alone
    cases: Sequence[Case] = ()  # of the comparison; none where nothing could be made

    @property
    def different(self) -> list[Case]:
        return [case for case in self.cases if case.outcome != PASSED]


Given = dict[str, ReplacedSeeds]  # by process: the seeds that a replay gave as recorded, not as the training asked


def seeds_given_again(replay: RunDirectory) -> Given:
    """Return the seeds that a replay restores, which hides a dependence on its environment."""
    return scan(replay, Normalizations()).replaced


def other_seeds(suite: str, usual: Given, given: Given) -> Iterator[Case]:
    """Yield a failed case for each process that asks for other seeds than in the recording."""
    for process, replaced in given.items():
        before = usual[process].count if process in usual else 0
        if replaced.count == before:
            continue
        message = (
            f"{replaced.count} seeds are not as recorded, {before} in the same surroundings; first {in_words(replaced)}"
        )
        yield Case(suite=suite, name=f"seeds of process {process}", outcome=FAILED, message=message)


def judge(suite: str, names: Sequence[str], attempt: Callable[[Sequence[str]], VariedReplay]) -> Iterator[Case]:
    """Yield a case for each variation."""
    tried = attempt(names)
    for name, why in tried.refused.items():
        yield _refused(suite, name, why)
    yield from (_alone(suite, name, attempt([name])) for name in tried.apart)
    if not tried.different:
        yield from (Case(suite=suite, name=name, outcome=PASSED, right=text) for name, text in tried.words.items())
    elif len(tried.words) == 1:
        yield from (_alone(suite, name, tried) for name in tried.words)
    else:
        yield from _each(suite, tried, attempt)


def _each(suite: str, together: VariedReplay, attempt: Callable[[Sequence[str]], VariedReplay]) -> Iterator[Case]:
    outcomes = set()
    for name in together.words:
        case = _alone(suite, name, attempt([name]))
        outcomes.add(case.outcome)
        yield case
    if outcomes == {PASSED}:
        what = "no variation alone makes a difference, but all at once do, or the training does not always repeat"
        message = f"{what}: {_first(together.different)}"
        yield Case(suite=suite, name=TOGETHER, outcome=FAILED, message=message)


def _alone(suite: str, name: str, tried: VariedReplay) -> Case:
    if name in tried.refused:
        return _refused(suite, name, tried.refused[name])
    text = tried.words[name]
    if not tried.different:
        return Case(suite=suite, name=name, outcome=PASSED, right=text)
    is_known = any(case.outcome == FAILED for case in tried.different)
    what = "this variation makes the training differ" if is_known else "it cannot be told whether this matters"
    message = f"{what} ({text}): {_first(tried.different)}"
    return Case(suite=suite, name=name, outcome=FAILED if is_known else TROUBLE, message=message, right=text)


def _refused(suite: str, name: str, why: str) -> Case:
    return Case(suite=suite, name=name, outcome=TROUBLE, message=f"not varied: {why}")


def _first(different: Sequence[Case]) -> str:
    first = different[0]
    more = f"; and {len(different) - 1} more" if len(different) > 1 else ""
    return f"{first.name}: {first.message}{more}"
