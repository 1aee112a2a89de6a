"""Locates the first divergent operator of a pair that is not identical, as a case of a gate (--locate)."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.core.errors import ReprokitError
from reprokit.core.messages import say
from reprokit.gate.results import FAILED, TROUBLE, Case
from reprokit.questions import divergence_text
from reprokit.questions.locate import LocateOptions, is_locatable, locate
from reprokit.run.interruption import Interruption
from reprokit.run_files.rundir import RunDirectory

NAME = "first divergent operator"


def located(suite: str, recording: RunDirectory, replay: RunDirectory, interruption: Interruption) -> Iterator[Case]:
    """Yield a case that names the operator, if the framework's operators can be logged."""
    if not is_locatable(recording, replay):
        return
    try:
        divergence = locate(recording, replay, LocateOptions(), interruption, say)
    except ReprokitError as error:
        yield Case(suite=suite, name=NAME, outcome=TROUBLE, message=f"it could not be located: {error}")
        return
    words = "; ".join(line.strip() for line in divergence_text.lines(divergence))
    yield Case(suite=suite, name=NAME, outcome=FAILED if divergence.processes else TROUBLE, message=words)
