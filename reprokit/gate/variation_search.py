"""Finds the variation that makes a difference: tries all at once, then each alone if that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from reprokit.gate.results import FAILED, PASSED, TROUBLE, Case
from reprokit.run_files.rundir import RunDirectory
from reprokit.verify.categories.seeds import in_words
from reprokit.verify.read.normalization import Normalizations
from reprokit.verify.read.scan import ReplacedSeeds, scan

TOGETHER = "together"


class VariedReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay under other conditions, and its comparison with the recording."""

    words: dict[str, str]  # by applied variation: what is different
    refused: dict[str, str]  # by impossible variation: why
    apart: tuple[str, ...] = ()  # variations that must be tried alone
    cases: Sequence[Case] = ()  # of the comparison; empty if no variation was possible

    @property
    def different(self) -> list[Case]:
        return [case for case in self.cases if case.outcome != PASSED]


RestoredSeeds = dict[str, ReplacedSeeds]  # by process: seeds that a replay replaced by the recorded ones


def restored_seeds(replay: RunDirectory) -> RestoredSeeds:
    """Return the seeds that a replay replaced, which hides a dependence of seeds on the environment."""
    return scan(replay, Normalizations()).replaced


def other_seeds(suite: str, usual_seeds: RestoredSeeds, seeds: RestoredSeeds) -> Iterator[Case]:
    """Yield a failed case for each process in which other seeds were replaced than in the usual replay."""
    for process, replaced in seeds.items():
        before = usual_seeds[process].count if process in usual_seeds else 0
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
