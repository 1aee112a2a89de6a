"""A whole gate: every training in turn, one after the other, so that none slows another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reprokit import rundir
from reprokit.gate.check import Check, GateWork
from reprokit.gate.results import PASSED, GateVerdict, Judged
from reprokit.gate.trainings import GateTraining
from reprokit.launch.interruption import Interruption
from reprokit.launch.messages import say
from reprokit.version import VERSION

Witness = Callable[[Judged], Judged]


def judge(
    trainings: Iterable[GateTraining], work: GateWork, interruption: Interruption, witness: Witness | None = None
) -> GateVerdict:
    """Run and check them all; once somebody has asked for the end, what is left is said to be not checked.

    `witness` is called with each training once it has been judged, and can add cases.
    """
    started, judged, key = rundir.utc_now(), [], ""
    for training in trainings:
        say(f"gate: {training.name}")
        check = Check(training, work, interruption)
        found = check.judge()
        judged.append(found if witness is None else witness(found))
        key = check.key or key
        say(f"gate: {training.name}: {_in_words(judged[-1])}")
    is_cut_short = any(one.is_cut_short for one in judged)
    return GateVerdict(
        reprokit=VERSION,
        started=started,
        machine=key,
        trainings=tuple(judged),
        interrupted=interruption.asked if is_cut_short else 0,
    )


def _in_words(judged: Judged) -> str:
    unpassed = [case for case in judged.cases if case.outcome != PASSED]
    if not unpassed:
        return f"passed, {len(judged.cases)} cases"
    return f"{judged.outcome()}: {unpassed[0].message}"
